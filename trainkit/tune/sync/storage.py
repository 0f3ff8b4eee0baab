"""Addresses of experiments: a local folder or any fsspec file system."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainkit import settings
from trainkit.errors import (
    ConfigError,
    ExperimentNotFoundError,
    MissingDependencyError,
    StorageError,
    StoreError,
)
from trainkit.resources import file_system
from trainkit.tune import store
from trainkit.tune.config import RunConfig
from trainkit.tune.core.checkpoint import link_or_copy
from trainkit.tune.core.configs import Syncer
from trainkit.tune.store.ownership import FOLDER as COMMANDS
from trainkit.tune.store.ownership import owner_of
from trainkit.tune.store.schema import FILENAME, open_database

logger = logging.getLogger("trainkit.tune")

MAX_TRIES = 3
"""Downloads of an experiment that changes meanwhile."""

_NETWORK = re.compile(
    r"nfs4?|cifs|smb\w*|fuse(\.(?!fuse-overlayfs).*)?|9p|afs|beegfs|ceph|gfs2|glusterfs|gpfs|lustre|ocfs2|panfs"
    "|virtiofs"
)
"""Types of file systems that other machines write too, or that share no memory among their users."""
_told: set[Path] = set()


class SyncerFileSystem:
    """Those methods of an fsspec file system that an `Address` needs, on a local folder that a Syncer copies.

    Files in that folder are links to the experiment's, where the disk has them.

    Args:
        syncer: the user's.
        folder: that the local folder is made in; it goes when this object does, and what a killed program
            has left there as the next one is made.
    """

    def __init__(self, syncer: Syncer, folder: Path) -> None:
        self.syncer = syncer
        with _alone(folder / "syncer"):  # else another program would find this one's before it is locked
            for left in folder.glob(".syncer-*"):
                if not _is_locked(left):
                    shutil.rmtree(left, ignore_errors=True)
            self._staging = tempfile.TemporaryDirectory(prefix=".syncer-", dir=folder)
            descriptor = os.open(self._staging.name, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        weakref.finalize(self, os.close, descriptor)

    def push(self, root: str) -> None:
        """Have the Syncer copy a folder to its address."""
        self._do("sync_up", self.syncer.sync_up, str(self._local(root)), root)

    def pull(self, root: str) -> None:
        """Have the Syncer copy what is at an address here."""
        self.makedirs(root, exist_ok=True)
        self._do("sync_down", self.syncer.sync_down, root, str(self._local(root)))

    def rm(self, path: str, recursive: bool = False) -> None:
        """Remove a file here, or a folder here and at its address."""
        local = self._local(path)
        if local.is_dir():
            self._do("delete", self.syncer.delete, path)
            shutil.rmtree(local)
        else:
            local.unlink()

    def unstrip_protocol(self, path: str) -> str:
        """Return the address, which has its protocol."""
        return path

    def invalidate_cache(self) -> None:
        """Nothing is cached."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder."""
        self._local(path).mkdir(parents=True, exist_ok=exist_ok)

    def put_file(self, source: str, path: str) -> None:
        """Take a file in."""
        self._local(path).unlink(missing_ok=True)
        link_or_copy(source, self._local(path))

    def get_file(self, path: str, target: str) -> None:
        """Copy a file that was pulled."""
        shutil.copy2(self._local(path), target)

    def pipe_file(self, path: str, data: bytes) -> None:
        """Write a file."""
        self._local(path).write_bytes(data)

    def mv(self, source: str, target: str) -> None:
        """Rename a file."""
        os.replace(self._local(source), self._local(target))

    def exists(self, path: str) -> bool:
        """Return whether a file or folder was taken in, or pulled."""
        return self._local(path).exists()

    def find(self, root: str, detail: bool = True) -> dict[str, dict[str, Any]]:
        """Return the files below a folder, with their sizes."""
        local = self._local(root)
        return {
            f"{root}/{path.relative_to(local)}": {"size": path.stat().st_size}
            for path in local.rglob("*")
            if path.is_file()
        }

    def _local(self, path: str) -> Path:
        return Path(self._staging.name, path.replace("://", "/").lstrip("/"))

    def _do(self, verb: str, method: Callable[..., Any], *given: str) -> None:
        if method(*given) is False:
            raise StorageError(
                f"{type(self.syncer).__name__}.{verb}{given} returned False: it can't begin now"
            )
        self.syncer.wait()


@dataclass(frozen=True)
class Address:
    """A folder on a file system of fsspec's.

    Attributes:
        fs: the file system; or a SyncerFileSystem, which has what is needed here of one.
        root: path of the folder there.
    """

    fs: Any
    root: str

    def __str__(self) -> str:
        return str(self.fs.unstrip_protocol(self.root))

    def path(self, name: str) -> str:
        """Path of the file `name` in this folder."""
        return f"{self.root}/{name}"

    def put(self, source: Path, name: str) -> None:
        """Copy a file there; a reader may see a part of it meanwhile."""
        path = self.path(name)
        self.fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        self.fs.put_file(str(source), path)

    def require_writable(self, name: str) -> None:
        """Write and remove a file `name`, which raises if the folder can't be written."""
        self.fs.makedirs(self.root, exist_ok=True)
        self.fs.pipe_file(self.path(name), b"trainkit")
        self.remove(name)
        self.push()

    def push(self) -> None:
        """Have all that was put there arrive: with a Syncer, nothing has yet."""
        if isinstance(self.fs, SyncerFileSystem):
            self.fs.push(self.root)

    def pull(self) -> None:
        """Make ready to read; with a Syncer, all is copied here."""
        if isinstance(self.fs, SyncerFileSystem):
            self.fs.pull(self.root)

    def replace(self, source: Path, name: str) -> None:
        """Copy a file there; a reader sees the old one or the new one, whole."""
        self.put(source, f"{name}.partial")
        self.fs.mv(self.path(f"{name}.partial"), self.path(name))

    def remove(self, name: str) -> None:
        """Remove a file or a folder; nothing if it isn't there."""
        if self.fs.exists(self.path(name)):
            self.fs.rm(self.path(name), recursive=True)

    def sizes(self) -> dict[str, int]:
        """Bytes of each file below, by its name in this folder."""
        self.fs.invalidate_cache()
        if not self.fs.exists(self.root):
            return {}
        start = len(self.root.rstrip("/")) + 1
        found: Mapping[str, Any] = self.fs.find(self.root, detail=True)
        return {str(path)[start:]: int(info["size"] or 0) for path, info in found.items()}

    def holds_experiment(self) -> bool:
        """True if an experiment was copied there."""
        self.fs.invalidate_cache()
        return bool(self.fs.exists(self.path(FILENAME)))


def locate(path: str | os.PathLike[str], filesystem: Any = None) -> Path | Address:
    """Return the local folder that `path` names, be it as file://..., or else the address.

    Args:
        path: a folder; or an address such as "s3://bucket/folder".
        filesystem: that `path` is a path of, though it be the local one; None: the one that it names.

    Raises:
        ConfigError: there is no such protocol, or `filesystem` is no file system of fsspec or pyarrow.
        MissingDependencyError: fsspec, or what the protocol needs, is not installed.
    """
    text = os.fspath(path)
    protocol, mark, rest = text.partition("://")
    if isinstance(filesystem, Syncer):
        return Address(SyncerFileSystem(filesystem, _live_folder("")), text.rstrip("/"))
    if filesystem is None and not mark:
        return Path(text).expanduser().absolute()
    if filesystem is None and protocol in ("file", "local"):
        return Path(rest).absolute()
    if filesystem is None:
        return _named_by(text)
    base = _fsspec(text).AbstractFileSystem
    if type(filesystem).__module__ == "pyarrow._fs":
        filesystem = _of_pyarrow(filesystem)
    if not isinstance(filesystem, base):
        raise ConfigError(
            f"storage_filesystem={filesystem!r} is no file system of fsspec or pyarrow, and no "
            "tune.syncer.Syncer"
        )
    return Address(filesystem, str(filesystem._strip_protocol(text)).rstrip("/"))


def _of_pyarrow(filesystem: Any) -> Any:
    """Return a file system of pyarrow as one of fsspec; one that was made of fsspec's is that again."""
    from fsspec.implementations.arrow import ArrowFSWrapper

    made_of = getattr(getattr(filesystem, "handler", None), "fs", None)
    return ArrowFSWrapper(filesystem) if made_of is None else made_of


def _fsspec(address: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError.of(f"{address} needs fsspec", "storage") from error
    return fsspec


def _named_by(address: str) -> Address:
    """The address as its protocol has it, file:// too."""
    try:
        filesystem, root = _fsspec(address).core.url_to_fs(address)
    except MissingDependencyError:
        raise
    except ImportError as error:
        raise MissingDependencyError(f"{address} cannot be reached: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{address!r} is no address: {error}") from error
    return Address(filesystem, str(root).rstrip("/"))


def new_place(path: str | os.PathLike[str] | None, filesystem: Any, name: str) -> tuple[Path, Address | None]:
    """Return where a new experiment is written, and where it is copied to.

    Raises:
        ConfigError: a file system without a path, or see `locate`.
        MissingDependencyError: see `locate`.
    """
    if path is None and filesystem is not None:
        raise ConfigError("storage_filesystem needs storage_path: a path on that file system")
    place = settings.results_dir().absolute() if path is None else locate(path, filesystem)
    if isinstance(place, Path):
        if "://" in os.fspath(path or "") or (shared := _shared(place)) is None:
            return place / name, None
        place = shared
    return _live_folder(name), Address(place.fs, place.path(name))


def network_file_system(mounts: str, device: int) -> str | None:
    """Return the type of the network file system with that number; None if it is another.

    SQLite's log needs memory that all who have the file open share, and locks that they heed. Drives of
    several machines can't have such memory, and file systems of programs, FUSE's, don't promise both.

    Args:
        mounts: text of /proc/self/mountinfo.
        device: the number.
    """
    kind = file_system(mounts, device)
    return kind if _NETWORK.fullmatch(kind) else None


def _network(folder: Path) -> str | None:
    """Return the type of the network file system that a folder is on, or will be on; None: another."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except FileNotFoundError:  # no Linux
        return None
    return network_file_system(mounts, there.stat().st_dev)


def _shared(folder: Path) -> Address | None:
    """Return the address of a folder on a network file system; None for a folder where SQLite works."""
    kind = _network(folder)
    if kind is None:
        return None
    first = folder not in _told
    _told.add(folder)
    if find_spec("fsspec") is None:
        if first:
            logger.warning(
                "%s is on a network file system (%s), where SQLite's log is not safe: pip install "
                "'trainkit-ml[storage]', and experiments are written on a local disk and copied there",
                *(folder, kind),
            )
        return None
    if first:
        logger.warning(
            "%s is on a network file system (%s), where SQLite's log is not safe: experiments are written in "
            "%s, and copied there while they run; file://%s has them written in place",
            *(folder, kind, _live_folder(""), folder),
        )
    return _named_by(folder.as_uri())


def _live_folder(name: str) -> Path:
    """Return the local folder of an experiment that is copied elsewhere.

    Raises:
        StorageError: another user has a folder of its name.
    """
    folder = settings.results_dir().absolute()
    if _network(folder) is not None:
        folder = Path(tempfile.gettempdir(), f"trainkit-results-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():
            raise StorageError(
                f"{folder} is another user's, and experiments were to be written there, as "
                f"{settings.results_dir()} is on a network file system: set TRAINKIT_RESULTS_DIR to a folder "
                "of a local disk"
            )
    return folder / name


def describe_address(address: Address | None) -> dict[str, Any]:
    """Return the address as stored: without the file system object, which may hold a password."""
    if address is None:
        return {"copied_to": None}
    text = str(address)
    try:
        again = _named_by(text).fs == address.fs  # fsspec compares classes and arguments
    except (ConfigError, MissingDependencyError):
        again = False
    made_by = address.fs.syncer if isinstance(address.fs, SyncerFileSystem) else address.fs
    return {"copied_to": {"address": text, "filesystem": None if again else type(made_by).__qualname__}}


def stored_address(facts: Mapping[str, Any], name: str, run: RunConfig | None) -> Address | None:
    """Where a restored experiment goes on being copied to; `run` may name another place.

    Raises:
        ConfigError: the copy lies on a file system that was given as an object, and is not given again.
    """
    if run is not None and run.storage_path is not None:
        place = locate(run.storage_path, run.storage_filesystem)
        if isinstance(place, Address):
            return Address(place.fs, place.path(name))
        if (shared := _shared(place)) is not None:
            return Address(shared.fs, shared.path(name))
    stored = facts.get("copied_to")
    if stored is None:
        return None
    if stored["filesystem"] is not None:
        raise ConfigError(
            f"this experiment is copied to {stored['address']} by storage_filesystem="
            f"{stored['filesystem']}(...), which its file cannot hold: give both again, as "
            "Tuner.restore(path, trainable, "
            "run_config=tune.RunConfig(storage_path=..., storage_filesystem=...))"
        )
    return _named_by(stored["address"])


def can_read(path: str | os.PathLike[str], filesystem: Any = None) -> bool:
    """True if `path`, a folder or an address, holds an experiment that can be read.

    Raises:
        ConfigError, MissingDependencyError: see `locate`.
        StorageError: the address can't be reached.
    """
    place = locate(path, filesystem)
    try:
        if isinstance(place, Path):
            store.ExperimentReader(place).close()
        else:
            with tempfile.TemporaryDirectory(prefix="trainkit-") as folder:
                _get_store(place, Path(folder))
                store.ExperimentReader(Path(folder)).close()
    except StoreError:
        return False
    return True


def is_taken(folder: Path, address: Address | None) -> bool:
    """Return True if there is an experiment in a folder, or at its address, whether it can be read or not.

    One that another program makes just now is there too.

    Raises:
        StorageError: the address can't be reached.
    """
    if (folder / FILENAME).exists() or owner_of(folder) is not None:
        return True
    if address is None:
        return False
    try:
        return address.holds_experiment()
    except Exception as error:
        raise StorageError(
            f"{address} cannot be read: {type(error).__name__}: {error}. Nothing was started"
        ) from error


def working_folder(path: str | os.PathLike[str], filesystem: Any = None) -> tuple[Path, Address | None]:
    """Return the local folder of the experiment at `path`, which is copied here if it is elsewhere.

    Raises:
        StoreError: there is no experiment, or it is damaged.
        StorageError: the address can't be read.
        ConfigError: the local folder holds another experiment, or an older state of this one.
    """
    address = locate(path, filesystem)
    if isinstance(address, Path):
        copy = _as_copy(address)
        if copy is None:
            return address, None
        address = copy
    folder = _live_folder(address.root.rsplit("/", 1)[-1])
    with _alone(folder):
        _download(address, folder)
    return folder, address


def _as_copy(folder: Path) -> Address | None:
    """Return the address of a folder on a network file system that holds a copy; None for another folder."""
    if _network(folder) is None or not (folder / FILENAME).is_file():
        return None
    with store.ExperimentReader(folder) as reader:
        is_copy = reader.facts().get("copied_to") is not None
    shared = _shared(folder.parent) if is_copy else None
    return None if shared is None else Address(shared.fs, shared.path(folder.name))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold back other programs that would download to `folder` too."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    while True:
        with open(path, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever held it before has removed it, and another may hold a new one.
            if not _is_open(path, lock.fileno()):
                continue
            try:
                yield
            finally:
                path.unlink()
            return


def _is_locked(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return True  # its program has just removed it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_open(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _download(address: Address, folder: Path) -> None:
    """Make `folder` a copy of what is at `address`, or see that it is of the same experiment."""
    aside = folder.with_name(f".{folder.name}.partial")
    for attempt in range(MAX_TRIES):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            _get_store(address, aside)
            if (folder / FILENAME).exists():
                _require_same(folder, aside, address)
                return
            _reaching(address, lambda: _get_files(address, aside))
            aside.rename(folder)
            return
        except StorageError as error:
            # A checkpoint may have been replaced while it was read, by a driver that still runs.
            if attempt == MAX_TRIES - 1 or not isinstance(error.__cause__, FileNotFoundError):
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _get_store(address: Address, folder: Path) -> None:
    _reaching(address, address.pull)
    if not _reaching(address, address.holds_experiment):
        raise ExperimentNotFoundError(f"{address} holds no experiment: there is no {FILENAME}")
    _reaching(address, lambda: address.fs.get_file(address.path(FILENAME), str(folder / FILENAME)))


def _get_files(address: Address, folder: Path) -> None:
    """Copy what belongs to the experiment: all but checkpoints that its store doesn't know."""
    with store.ExperimentReader(folder) as reader:
        known = reader.checkpoint_folders()
    for name in address.sizes():
        parts, checkpoint = name.split("/"), checkpoint_of(name)
        unknown = checkpoint and checkpoint not in known
        if name == FILENAME or unknown or name.endswith(".partial") or ".." in parts or parts[0] == COMMANDS:
            continue
        target = folder.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        address.fs.get_file(address.path(name), str(target))


def checkpoint_of(name: str) -> str:
    """The checkpoint that a file in an experiment's folder is of, as trial/checkpoint_000003; '' for none."""
    parts = name.split("/")
    is_one = len(parts) > 2 and parts[1].startswith("checkpoint_") and parts[1][11:].isdigit()
    return "/".join(parts[:2]) if is_one else ""


def _require_same(folder: Path, copy: Path, address: Address) -> None:
    """The local folder goes before the copy, which lags behind it; unless the copy went on elsewhere."""
    (here, here_seq), (there, there_seq) = _identity(folder), _identity(copy)
    if here != there:
        raise ConfigError(
            f"{folder} holds another experiment than {address}: rename it, or set TRAINKIT_RESULTS_DIR to "
            "another folder"
        )
    if here_seq < there_seq:
        raise ConfigError(
            f"{folder} holds an older state of the experiment at {address}, which went on elsewhere: remove "
            "or rename the folder, and restore again"
        )


def _identity(folder: Path) -> tuple[Any, int]:
    with store.ExperimentReader(folder) as reader:
        facts = reader.facts()
    with closing(open_database(folder / FILENAME, read_only=True)) as connection:
        (seq,) = connection.execute(
            "SELECT coalesce(max(seq), 0) FROM (SELECT seq FROM trials UNION ALL SELECT seq FROM results "
            "UNION ALL SELECT seq FROM events)"
        ).fetchone()
    return [facts.get(key) for key in ("created", "seed", "prefix", "trainable")], seq


def _reaching(address: Address, do: Callable[[], Any]) -> Any:
    """Return what `do` returns.

    Raises:
        StorageError: the file system raised, whatever it raised.
    """
    try:
        return do()
    except (StoreError, ConfigError, StorageError, sqlite3.Error):
        raise
    except Exception as error:
        raise StorageError(f"{address} cannot be read: {type(error).__name__}: {error}") from error
