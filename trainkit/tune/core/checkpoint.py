"""Checkpoints: directories that are written under a temporary name, flushed and renamed."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import secrets
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from trainkit import runtime
from trainkit.errors import CheckpointError
from trainkit.runtime import serialize


def largest_folders(folder: Path, count: int = 3) -> list[tuple[str, int]]:
    """Return the `count` largest subfolders of `folder`, each with its total size in bytes."""
    with os.scandir(folder) as entries:
        paths = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted(((path, sum(_sizes(path))) for path in paths), key=lambda size: -size[1])[:count]


def _sizes(folder: str) -> Iterator[int]:
    for top, _, files in os.walk(folder):
        for name in files:
            try:
                yield os.lstat(os.path.join(top, name)).st_blocks * 512
            except FileNotFoundError:  # a running trial may remove files while this loop reads them
                continue


def is_full(error: BaseException) -> bool:
    """Return True if `error` says that the disk or its quota is full."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    if isinstance(error, shutil.Error):  # shutil.copytree raises one error with a message for each file
        return os.strerror(errno.ENOSPC) in str(error) or os.strerror(errno.EDQUOT) in str(error)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def advice(folder: Path, error: BaseException) -> str:
    """Return a hint for the message of `error`: the largest folders if the disk is full; otherwise ''."""
    if not is_full(error):
        return ""
    try:
        free = shutil.disk_usage(folder).free
        largest = [f"{path} ({megabytes(size)})" for path, size in largest_folders(folder) if size]
    except OSError:  # a failure here must not replace `error`, which the message describes
        return ""
    text = f" The disk is full: {megabytes(free)} are free."
    if largest:
        text += (
            f" The largest folders are {', '.join(largest)}; CheckpointConfig(num_to_keep=...) keeps fewer."
        )
    return text


def megabytes(size: int) -> str:
    """Return a size in megabytes, such as '12.3 MB'."""
    return f"{size / 1e6:.1f} MB"


FILENAME = "dictionary.pkl"
RETURNED = ".returned_path"
"""Name of the file with the path that `save_checkpoint` returned, relative to the checkpoint folder."""


def write_dictionary(folder: str, state: Mapping[str, Any]) -> None:
    """Write `state` into `folder`.

    Raises:
        CheckpointError: a value in `state` can't be pickled.
    """
    try:
        data = serialize.dumps(dict(state))
    except Exception as error:
        raise CheckpointError(
            f"a checkpoint can't be made of the dictionary with {', '.join(map(repr, state))}: {error}"
        ) from error
    Path(folder, FILENAME).write_bytes(data)


def read_dictionary(folder: str) -> dict[str, Any]:
    """Return the dictionary that `write_dictionary` wrote into `folder`.

    Raises:
        CheckpointError: the dictionary is missing or damaged.
    """
    try:
        state: dict[str, Any] = pickle.loads(Path(folder, FILENAME).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{folder} contains no dictionary: read its files in as_directory()") from None
    except Exception as error:
        raise CheckpointError(
            f"the dictionary in {folder} can't be read: {type(error).__name__}: {error}"
        ) from error
    return state


def keep_returned(folder: str, returned: Any) -> None:
    """Store in `folder` the value that `save_checkpoint(folder)` returned.

    Raises:
        CheckpointError: the value is neither None, a dictionary, nor a path within the folder.
    """
    if returned is None:
        return
    if isinstance(returned, Mapping):
        write_dictionary(folder, returned)
        return
    path = Path(returned) if isinstance(returned, (str, Path)) else None
    if path is None or not path.is_relative_to(folder) or not path.exists():
        raise CheckpointError(
            f"save_checkpoint({folder!r}) returned {returned!r}: return None, a dict or a path in the folder"
        )
    if path != Path(folder):
        Path(folder, RETURNED).write_text(str(path.relative_to(folder)))


def given_back(folder: str) -> Any:
    """Return the dictionary or path that `keep_returned` stored in `folder`; `folder` itself if nothing is
    stored.
    """
    if Path(folder, FILENAME).exists():
        return read_dictionary(folder)
    returned = Path(folder, RETURNED)
    return str(Path(folder, returned.read_text())) if returned.exists() else folder


METADATA = ".metadata.json"

CHECKPOINT_FOLDER = re.compile(r"checkpoint_\d{6,}|\.checkpoint_\d{6,}\.partial")
"""Pattern of the names of complete and of partial checkpoint folders; other folders belong to the user."""


@contextmanager
def temporary_folder(prefix: str = "trainkit_") -> Iterator[str]:
    """Yield a temporary folder, which is also removed if the calling worker or trial is killed.

    If the process is killed, the session removes the folder; a folder of `tempfile.TemporaryDirectory` would
    stay.

    Args:
        prefix: first letters of the folder's name.
    """
    engine = runtime.session.running()
    # Checkpoints are large, and the session's own folder may be on a small RAM disk, so the system's default
    # folder for temporary files is used. The link is made first: a kill before the folder leaves nothing.
    made = Path(tempfile.gettempdir(), f"{prefix}{secrets.token_hex(4)}")
    is_of_actor = engine is not None and engine.current_actor() is not None
    with runtime.session.linked(made) if is_of_actor else nullcontext():
        made.mkdir(mode=0o700)
        try:
            yield os.fspath(made)
        finally:
            shutil.rmtree(made, ignore_errors=True)


class Checkpoint:
    """Directory of files that a trial saved, from which a trial can resume or a model be loaded.

    Args:
        path: path of an existing directory.

    Raises:
        CheckpointError: `path` is not a directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        if not os.path.isdir(self.path):
            raise CheckpointError(f"Checkpoint({os.fspath(path)!r}): there is no such directory")

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a checkpoint of the directory `path`.

        The files are copied only when the checkpoint is reported.
        """
        return cls(path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkpoint:
        """Return a checkpoint of `data`, in a temporary folder that is deleted together with the returned
        object.

        Raises:
            CheckpointError: a value in `data` can't be pickled.
        """
        with ExitStack() as stack:
            folder = stack.enter_context(temporary_folder("trainkit_dictionary_"))
            write_dictionary(folder, data)
            checkpoint = cls(folder)
            weakref.finalize(checkpoint, stack.pop_all().close)
        return checkpoint

    def to_dict(self) -> dict[str, Any]:
        """Return the dictionary that the checkpoint was made from. The dictionary is stored as a pickle: load
        only trusted files.

        Raises:
            CheckpointError: the checkpoint was made from files.
        """
        return read_dictionary(self.path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to `path`, or to a new temporary directory, and return the directory."""
        target = os.fspath(path) if path is not None else tempfile.mkdtemp(prefix="trainkit_checkpoint_")
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield a directory with the files, for reading only: `with checkpoint.as_directory() as path:`."""
        yield self.path

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata stored by `set_metadata` and `update_metadata`; {} if nothing was stored."""
        try:
            text = Path(self.path, METADATA).read_text()
        except FileNotFoundError:
            return {}
        metadata: dict[str, Any] = json.loads(text)
        return metadata

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the stored metadata by `metadata`, which must be JSON data."""
        aside = Path(self.path, f"{METADATA}.partial")
        aside.write_text(json.dumps(dict(metadata)))
        aside.replace(Path(self.path, METADATA))

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add `metadata` to the stored metadata; equal keys are replaced."""
        self.set_metadata({**self.get_metadata(), **metadata})

    @property
    def value(self) -> str:
        """Path of the directory; `value` is the attribute's name in Ray 1.x."""
        return self.path

    dir_or_data = value

    def __fspath__(self) -> str:
        """Return the path, so that `os.path.join(checkpoint, "model.pt")` works."""
        return self.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})"


def checkpoint_dirname(number: int) -> str:
    """Return the folder name of a trial's n-th checkpoint, counted from 0."""
    return f"checkpoint_{number:06d}"


def commit_directory(partial: str, target: str, *, durable: bool = True) -> None:
    """Flush all files under `partial` to the disk and rename the folder to `target`.

    A folder that already exists at `target` is removed. A folder at `target` comes from an attempt that ended
    before its report was committed, so no report refers to the folder.

    Args:
        partial: current path of the folder, under a temporary name.
        target: final path of the folder.
        durable: False skips the flush, for an experiment that is not kept after its program.
    """
    for folder, _, files in os.walk(partial) if durable else ():
        for name in files:
            _flush(os.path.join(folder, name))
        _flush(folder)
    if os.path.lexists(target):
        shutil.rmtree(target)
    os.rename(partial, target)
    if durable:
        _flush(os.path.dirname(target))


def link_checkpoint(source: str, trial_dir: str, dirname: str, *, durable: bool = True) -> str:
    """Copy the checkpoint at `source` into a trial's folder as `dirname`, and return `dirname`.

    The files are hard links where the file system supports them: a finished checkpoint never changes, and the
    copy survives the deletion of the original. `durable=False` skips the flush to the disk.

    Raises:
        OSError: the copy failed; its partial files are removed.
    """
    partial = os.path.join(trial_dir, f".{dirname}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(source, partial, copy_function=link_or_copy)
        commit_directory(partial, os.path.join(trial_dir, dirname), durable=durable)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return dirname


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Hard-link a file, so that its content stays when `source` is removed; copy the file if linking is not
    supported.
    """
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)


def remove_checkpoint(trial_dir: str, dirname: str) -> None:
    """Rename a checkpoint's folder, then remove it, so that a kill leaves no partial checkpoint."""
    path, aside = os.path.join(trial_dir, dirname), os.path.join(trial_dir, f".{dirname}.partial")
    try:
        os.rename(path, aside)
    except FileNotFoundError:  # a missing folder need not be removed
        return
    except OSError:  # a folder that remains is removed by the next restore
        aside = path
    shutil.rmtree(aside, ignore_errors=True)


def remove_unknown(trial_dir: str, known: Collection[str]) -> None:
    """Remove the checkpoint folders not named in `known`, because no committed report refers to them."""
    try:
        names = os.listdir(trial_dir)
    except FileNotFoundError:  # without a folder, the trial has no checkpoints
        return
    for name in names:
        if CHECKPOINT_FOLDER.fullmatch(name) and name not in known:
            shutil.rmtree(os.path.join(trial_dir, name), ignore_errors=True)


def persist(checkpoint: Checkpoint, trial_dir: str, number: int) -> str:
    """Copy `checkpoint` into the trial's folder; return the new folder's name.

    Raises:
        CheckpointError: the copy failed, for example on a full disk; its partial files are removed.
    """
    dirname = checkpoint_dirname(number)
    partial = partial_directory(trial_dir, number)
    try:
        shutil.copytree(checkpoint.path, partial)
        commit_directory(partial, os.path.join(trial_dir, dirname))
    except OSError as error:
        # The advice states the free space, so it must be made before the partial copy is removed.
        more = advice(Path(trial_dir).parent, error)
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"{checkpoint} cannot be copied to {trial_dir}: {error}.{more}") from error
    return dirname


def partial_directory(trial_dir: str, number: int) -> str:
    """Return the path that a checkpoint is first written to; remove leftovers of an earlier attempt."""
    partial = os.path.join(trial_dir, f".{checkpoint_dirname(number)}.partial")
    if os.path.lexists(partial):
        shutil.rmtree(partial)
    return partial


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
