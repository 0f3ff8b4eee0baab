"""Addresses of experiments on any fsspec file system, and their local folders."""

from __future__ import annotations

import fcntl
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
from trainkit.tune.core.log import logger
from trainkit.tune.store.commands import FOLDER as COMMANDS
from trainkit.tune.store.ownership import owner_of
from trainkit.tune.store.schema import FILENAME, open_database

MAX_TRIES = 3
"""Maximum number of attempts to download an experiment that changes during the download."""

_NETWORK = re.compile(
    r"nfs4?|cifs|smb\w*|fuse(\.(?!fuse-overlayfs).*)?|9p|afs|beegfs|ceph|gfs2|glusterfs|gpfs|lustre|ocfs2|panfs"
    "|virtiofs"
)
"""Types of file systems that several machines share, or on which processes can't share memory."""
_told: set[Path] = set()


class SyncerFileSystem:
    """File system with the fsspec methods that an `Address` needs, on a staging folder that a Syncer copies.

    Files in the staging folder are hard links to the experiment's files where the disk supports them.

    Args:
        syncer: the user's Syncer.
        folder: parent of the staging folder. The staging folder is removed with this object. The staging
            folder of a killed program is removed when the next staging folder is created.
    """

    def __init__(self, syncer: Syncer, folder: Path) -> None:
        self.syncer = syncer
        # Without this lock, other programs could remove the new staging folder before this program locks it.
        with _alone(folder / "syncer"):
            for left in folder.glob(".syncer-*"):
                if not _is_locked(left):
                    shutil.rmtree(left, ignore_errors=True)
            self._staging = tempfile.TemporaryDirectory(prefix=".syncer-", dir=folder)
            descriptor = os.open(self._staging.name, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        weakref.finalize(self, os.close, descriptor)

    def push(self, root: str) -> None:
        """Let the Syncer copy the staged folder to its address."""
        self._do("sync_up", self.syncer.sync_up, str(self._local(root)), root)

    def pull(self, root: str) -> None:
        """Let the Syncer copy an address to the staging folder."""
        self.makedirs(root, exist_ok=True)
        self._do("sync_down", self.syncer.sync_down, root, str(self._local(root)))

    def rm(self, path: str, recursive: bool = False) -> None:
        """Remove a staged file, or a folder both in the staging folder and at its address."""
        local = self._local(path)
        if local.is_dir():
            self._do("delete", self.syncer.delete, path)
            shutil.rmtree(local)
        else:
            local.unlink()

    def unstrip_protocol(self, path: str) -> str:
        """Return the address unchanged, because it already includes its protocol."""
        return path

    def invalidate_cache(self) -> None:
        """Do nothing, because nothing is cached."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create a folder."""
        self._local(path).mkdir(parents=True, exist_ok=exist_ok)

    def put_file(self, source: str, path: str) -> None:
        """Add a file to the staging folder."""
        self._local(path).unlink(missing_ok=True)
        link_or_copy(source, self._local(path))

    def get_file(self, path: str, target: str) -> None:
        """Copy a pulled file to `target`."""
        shutil.copy2(self._local(path), target)

    def pipe_file(self, path: str, data: bytes) -> None:
        """Write a file."""
        self._local(path).write_bytes(data)

    def mv(self, source: str, target: str) -> None:
        """Rename a file."""
        os.replace(self._local(source), self._local(target))

    def exists(self, path: str) -> bool:
        """Return True if a file or folder was added or pulled."""
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
                f"{type(self.syncer).__name__}.{verb}{given} returned False, so the copy cannot begin now"
            )
        self.syncer.wait()


@dataclass(frozen=True)
class Address:
    """Folder on an fsspec file system.

    Attributes:
        fs: the file system, or a SyncerFileSystem with the required methods.
        root: path of the folder on the file system.
    """

    fs: Any
    root: str

    def __str__(self) -> str:
        return str(self.fs.unstrip_protocol(self.root))

    def path(self, name: str) -> str:
        """Return the path of the file `name` in this folder."""
        return f"{self.root}/{name}"

    def put(self, source: Path, name: str) -> None:
        """Copy a file to the folder; readers may see a partial file during the copy."""
        path = self.path(name)
        self.fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        self.fs.put_file(str(source), path)

    def require_writable(self, name: str) -> None:
        """Write and remove a file `name`; raise the file system's error if writing fails."""
        self.fs.makedirs(self.root, exist_ok=True)
        self.fs.pipe_file(self.path(name), b"trainkit")
        self.remove(name)
        self.push()

    def push(self) -> None:
        """Complete the transfer of files. Only a Syncer needs this call: it copies the files now."""
        if isinstance(self.fs, SyncerFileSystem):
            self.fs.push(self.root)

    def pull(self) -> None:
        """Prepare for reading. Only a Syncer needs this call: it copies the files to its staging folder."""
        if isinstance(self.fs, SyncerFileSystem):
            self.fs.pull(self.root)

    def replace(self, source: Path, name: str) -> None:
        """Replace a file at the address; readers see either the old or the new complete file."""
        self.put(source, f"{name}.partial")
        self.fs.mv(self.path(f"{name}.partial"), self.path(name))

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it exists."""
        if self.fs.exists(self.path(name)):
            self.fs.rm(self.path(name), recursive=True)

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file in this folder, by relative name."""
        self.fs.invalidate_cache()
        if not self.fs.exists(self.root):
            return {}
        start = len(self.root.rstrip("/")) + 1
        found: Mapping[str, Any] = self.fs.find(self.root, detail=True)
        return {str(path)[start:]: int(info["size"] or 0) for path, info in found.items()}

    def holds_experiment(self) -> bool:
        """Return True if the folder contains an experiment's copy."""
        self.fs.invalidate_cache()
        return bool(self.fs.exists(self.path(FILENAME)))


def locate(path: str | os.PathLike[str], filesystem: Any = None) -> Path | Address:
    """Return the folder if `path` is local (also as file://...), otherwise the address.

    Args:
        path: a folder, or an address such as "s3://bucket/folder".
        filesystem: file system of `path`, which may be the local file system; None: the file system that
            `path` names.

    Raises:
        ConfigError: the protocol is unknown, or `filesystem` is not a file system of fsspec or pyarrow.
        MissingDependencyError: fsspec, or a package for the protocol, is not installed.
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
            f"storage_filesystem={filesystem!r} is not a file system of fsspec or pyarrow, nor a "
            "tune.syncer.Syncer"
        )
    return Address(filesystem, str(filesystem._strip_protocol(text)).rstrip("/"))


def _of_pyarrow(filesystem: Any) -> Any:
    """Return the fsspec file system that a pyarrow file system wraps; wrap any other pyarrow file system."""
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
    """Return the address with the file system of its protocol, including file://."""
    try:
        filesystem, root = _fsspec(address).core.url_to_fs(address)
    except MissingDependencyError:
        raise
    except ImportError as error:
        raise MissingDependencyError(f"{address} cannot be reached: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{address!r} is not an address: {error}") from error
    return Address(filesystem, str(root).rstrip("/"))


def new_place(path: str | os.PathLike[str] | None, filesystem: Any, name: str) -> tuple[Path, Address | None]:
    """Return the folder of a new experiment, and the address that the folder is copied to (or None).

    Raises:
        ConfigError: a file system is given without a path, or `locate` raises this error.
        MissingDependencyError: fsspec, or a package for the protocol, is not installed.
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
    """Return the type of the file system with a device number if it is a network file system; else None.

    SQLite's log needs shared memory and working locks for all users of the file. Machines that share a drive
    have no shared memory, and FUSE file systems do not guarantee shared memory and locks.

    Args:
        mounts: text of /proc/self/mountinfo.
        device: the device number.
    """
    kind = file_system(mounts, device)
    return kind if _NETWORK.fullmatch(kind) else None


def _network(folder: Path) -> str | None:
    """Return the type of a folder's network file system, else None; the folder may not exist yet."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except FileNotFoundError:  # the system is not Linux
        return None
    return network_file_system(mounts, there.stat().st_dev)


def _shared(folder: Path) -> Address | None:
    """Return the address of a folder on a network file system; None elsewhere, or if fsspec is missing."""
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
    """Return the local folder of an experiment that is copied to an address.

    Raises:
        StorageError: the folder belongs to another user.
    """
    folder = settings.results_dir().absolute()
    if _network(folder) is not None:
        folder = Path(tempfile.gettempdir(), f"trainkit-results-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():
            raise StorageError(
                f"{folder} belongs to another user, but experiments would be written there because "
                f"{settings.results_dir()} is on a network file system: set TRAINKIT_RESULTS_DIR to a folder "
                "of a local disk"
            )
    return folder / name


def describe_address(address: Address | None) -> dict[str, Any]:
    """Return the address in stored form, without the file system object, which may contain a password."""
    if address is None:
        return {"copied_to": None}
    text = str(address)
    try:
        again = _named_by(text).fs == address.fs  # fsspec's comparison covers classes and arguments
    except (ConfigError, MissingDependencyError):
        again = False
    made_by = address.fs.syncer if isinstance(address.fs, SyncerFileSystem) else address.fs
    return {"copied_to": {"address": text, "filesystem": None if again else type(made_by).__qualname__}}


def stored_address(facts: Mapping[str, Any], name: str, run: RunConfig | None) -> Address | None:
    """Return the address that a restored experiment is copied to; `run` may name a new address.

    Raises:
        ConfigError: the file system of the copy was given as an object and is missing now.
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
            f"{stored['filesystem']}(...), which can't be stored in a file: pass it again, as "
            "Tuner.restore(path, trainable, "
            "run_config=tune.RunConfig(storage_path=..., storage_filesystem=...))"
        )
    return _named_by(stored["address"])


def can_read(path: str | os.PathLike[str], filesystem: Any = None) -> bool:
    """Return True if `path`, a folder or an address, contains a readable experiment.

    Raises:
        ConfigError, MissingDependencyError: `locate` raises the error.
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
    """Return True if a folder or its address contains an experiment, readable or not.

    The answer is also True for an experiment that another program is just creating.

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
    """Return the local folder of the experiment at `path`; download the experiment if necessary.

    Raises:
        StoreError: the experiment is missing or damaged.
        StorageError: the address can't be read.
        ConfigError: the local folder contains a different experiment, or an older state of this experiment.
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
    """Return the address of a folder with a copy on a network file system; None for other folders."""
    if _network(folder) is None or not (folder / FILENAME).is_file():
        return None
    with store.ExperimentReader(folder) as reader:
        is_copy = reader.facts().get("copied_to") is not None
    shared = _shared(folder.parent) if is_copy else None
    return None if shared is None else Address(shared.fs, shared.path(folder.name))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock that excludes other programs from downloading to `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    while True:
        with open(path, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The previous holder of the lock removes its file, so this lock may be on a file that is no
            # longer in use.
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
        return True  # the program that owned the folder has just removed it
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
    """Download an address to `folder`; an existing `folder` must contain the same experiment."""
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
            # A running driver may have replaced a checkpoint during the read, so the read is repeated.
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
    """Download the files of the experiment, except checkpoints that its store does not contain."""
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
    """Return the checkpoint that a file's name belongs to, as trial/checkpoint_000003, or ''."""
    parts = name.split("/")
    is_one = len(parts) > 2 and parts[1].startswith("checkpoint_") and parts[1][11:].isdigit()
    return "/".join(parts[:2]) if is_one else ""


def _require_same(folder: Path, copy: Path, address: Address) -> None:
    """Check that a local folder contains the same experiment as its copy, in the same or a newer state."""
    (here, here_seq), (there, there_seq) = _identity(folder), _identity(copy)
    if here != there:
        raise ConfigError(
            f"{folder} holds another experiment than {address}: rename it, or set TRAINKIT_RESULTS_DIR to "
            "another folder"
        )
    if here_seq < there_seq:
        raise ConfigError(
            f"{folder} holds an older state of the experiment at {address}, which continued elsewhere: "
            "remove or rename the folder, and restore again"
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
    """Return the result of `do`, a function that reads from `address`.

    Raises:
        StorageError: the file system raised any exception.
    """
    try:
        return do()
    except (StoreError, ConfigError, StorageError, sqlite3.Error):
        raise
    except Exception as error:
        raise StorageError(f"{address} cannot be read: {type(error).__name__}: {error}") from error
