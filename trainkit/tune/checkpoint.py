"""A checkpoint is a directory. Written aside, flushed, renamed: a half-written one is never seen."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainkit.errors import CheckpointError
from trainkit.tune.dictionaries import read_dictionary, write_dictionary
from trainkit.tune.storing.usage import advice

METADATA = ".metadata.json"

CHECKPOINT_FOLDER = re.compile(r"checkpoint_\d{6,}|\.checkpoint_\d{6,}\.partial")
"""Names by `checkpoint_dirname`, of whole ones and of those aside; other folders are the user's."""


class Checkpoint:
    """A directory of files that a trial saved, to go on from or to load a model from.

    Args:
        path: of a directory that exists.

    Raises:
        CheckpointError: `path` is not a directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        if not os.path.isdir(self.path):
            raise CheckpointError(f"Checkpoint({os.fspath(path)!r}): there is no such directory")

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return the checkpoint in the directory `path`; nothing is copied until it is reported."""
        return cls(path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkpoint:
        """Return a checkpoint that holds a dictionary, for `to_dict`; gone with this object if not reported.

        Raises:
            CheckpointError: a part of it can't be pickled.
        """
        folder = tempfile.mkdtemp(prefix="trainkit_dictionary_")
        try:
            write_dictionary(folder, data)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        checkpoint = cls(folder)
        weakref.finalize(checkpoint, shutil.rmtree, folder, ignore_errors=True)
        return checkpoint

    def to_dict(self) -> dict[str, Any]:
        """Return the dictionary that the checkpoint was made of; trust it, as it is a pickle.

        Raises:
            CheckpointError: it was made of files.
        """
        return read_dictionary(self.path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to `path`, or to a new temporary directory; return where they are."""
        target = os.fspath(path) if path is not None else tempfile.mkdtemp(prefix="trainkit_checkpoint_")
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give a directory with the files, to read: `with checkpoint.as_directory() as path:`."""
        yield self.path

    def get_metadata(self) -> dict[str, Any]:
        """Return what `set_metadata` and `update_metadata` stored; {} at first."""
        try:
            text = Path(self.path, METADATA).read_text()
        except FileNotFoundError:
            return {}
        metadata: dict[str, Any] = json.loads(text)
        return metadata

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Store `metadata`, which JSON must be able to hold, in place of what was there."""
        aside = Path(self.path, f"{METADATA}.partial")
        aside.write_text(json.dumps(dict(metadata)))
        aside.replace(Path(self.path, METADATA))

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Store `metadata` beside what is there; equal keys are replaced."""
        self.set_metadata({**self.get_metadata(), **metadata})

    @property
    def value(self) -> str:
        """The path, by the name that a trial's checkpoint had in Ray 1.x."""
        return self.path

    dir_or_data = value

    def __fspath__(self) -> str:
        """A checkpoint stands wherever its path may: `os.path.join(checkpoint, "model.pt")`."""
        return self.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})"


def checkpoint_dirname(number: int) -> str:
    """Name of a trial's n-th checkpoint folder, from 0."""
    return f"checkpoint_{number:06d}"


def commit_directory(partial: str, target: str) -> None:
    """Flush all files under `partial` to the disk and give it the name `target`.

    What lies at `target` was written by an attempt that ended before its report was committed, so
    nobody refers to it: it goes.
    """
    for folder, _, files in os.walk(partial):
        for name in files:
            _flush(os.path.join(folder, name))
        _flush(folder)
    if os.path.lexists(target):
        shutil.rmtree(target)
    os.rename(partial, target)
    _flush(os.path.dirname(target))


def link_checkpoint(source: str, trial_dir: str, dirname: str) -> str:
    """Put a copy of the checkpoint at `source` into a trial's folder as `dirname`, which is returned.

    Its files are second names of the same ones where the file system has such: no checkpoint is changed
    once it is whole, and the copy stays when the original goes.

    Raises:
        OSError: it can't be made; nothing is left of it.
    """
    partial = os.path.join(trial_dir, f".{dirname}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(source, partial, copy_function=link_or_copy)
        commit_directory(partial, os.path.join(trial_dir, dirname))
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return dirname


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a file a second name, so that its content stays; copy it where there is no such thing."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)


def remove_checkpoint(trial_dir: str, dirname: str) -> None:
    """Remove a checkpoint's folder, in a way that a kill leaves no half of it under its name."""
    path, aside = os.path.join(trial_dir, dirname), os.path.join(trial_dir, f".{dirname}.partial")
    try:
        os.rename(path, aside)
    except FileNotFoundError:  # somebody else removed it
        return
    except OSError:  # what can't be removed at all, a restore tries to again
        aside = path
    shutil.rmtree(aside, ignore_errors=True)


def remove_unknown(trial_dir: str, known: Collection[str]) -> None:
    """Remove checkpoint folders that nothing refers to: of reports that were never committed."""
    try:
        names = os.listdir(trial_dir)
    except FileNotFoundError:  # the trial never ran, or somebody removed it
        return
    for name in names:
        if CHECKPOINT_FOLDER.fullmatch(name) and name not in known:
            shutil.rmtree(os.path.join(trial_dir, name), ignore_errors=True)


def persist(checkpoint: Checkpoint, trial_dir: str, number: int) -> str:
    """Copy `checkpoint` into the trial's folder; return the new folder's name.

    Raises:
        CheckpointError: the copy can't be made, such as on a full disk; nothing is left of it.
    """
    dirname = checkpoint_dirname(number)
    partial = partial_directory(trial_dir, number)
    try:
        shutil.copytree(checkpoint.path, partial)
        commit_directory(partial, os.path.join(trial_dir, dirname))
    except OSError as error:
        more = advice(Path(trial_dir).parent, error)  # before what there is of it goes
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"{checkpoint} cannot be copied to {trial_dir}: {error}.{more}") from error
    return dirname


def partial_directory(trial_dir: str, number: int) -> str:
    """Path of the folder that a checkpoint is written to first; what an earlier attempt left there goes."""
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
