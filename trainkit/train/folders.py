"""Folders that are there whole or not at all: written beside their place, then moved into it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A block that fills a new folder, which then takes the place of `path` in one step.

    Whoever opens `path` finds the previous content or the new one, whole, whenever the writer is killed
    or the power fails. If the block raises, `path` is as it was. What an earlier, killed writer left
    beside it is removed.

    Args:
        path: where the folder is to be; an existing folder there is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(path)
    aside = aside_of(path, os.getpid())
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        for file in sorted(aside.rglob("*")):
            _sync(file)
        _sync(aside)
        _take_place(aside, path)
        _sync(path.parent)
    finally:
        # After an exchange it holds the previous content.
        shutil.rmtree(aside, ignore_errors=True)


def aside_of(path: Path, writer: int) -> Path:
    """Where the process `writer` fills the folder that is to be at `path`."""
    return path.with_name(f".{path.name}.writing-{writer}")


def resolve(path: Path) -> Path:
    """`path`, or where its content is if a writer was killed while it took the place of another.

    That can only be on file systems that can't exchange two folders in one step.
    """
    previous = _previous(path)
    return previous if not path.exists() and previous.exists() else path


def _take_place(aside: Path, path: Path) -> None:
    try:
        os.rename(aside, path)  # Enough if nothing, or an empty folder, is there.
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if _exchange(aside, path):
        return
    previous = _previous(path)
    os.rename(path, previous)
    os.rename(aside, path)
    shutil.rmtree(previous)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system or the file system can't."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_SUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _previous(path: Path) -> Path:
    return path.with_name(f".{path.name}.previous")


def _remove_left_over(path: Path) -> None:
    for left in path.parent.glob(f".{_escaped(path.name)}.writing-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    if path.exists():
        shutil.rmtree(_previous(path), ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
