"""What a folder takes on the disk, said when the disk is full."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path


def largest_folders(folder: Path, count: int = 3) -> list[tuple[str, int]]:
    """Return the largest of the folders in `folder`, each with its bytes, those inside included."""
    with os.scandir(folder) as entries:
        paths = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted(((path, sum(_sizes(path))) for path in paths), key=lambda size: -size[1])[:count]


def _sizes(folder: str) -> Iterator[int]:
    for top, _, files in os.walk(folder):
        for name in files:
            try:
                yield os.lstat(os.path.join(top, name)).st_blocks * 512
            except FileNotFoundError:  # a trial has removed it meanwhile
                continue


def is_full(error: BaseException) -> bool:
    """True if `error` says that the disk, or a quota on it, is used up."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    if isinstance(error, shutil.Error):  # of a tree: texts of what went wrong, for each file
        return os.strerror(errno.ENOSPC) in str(error) or os.strerror(errno.EDQUOT) in str(error)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def advice(folder: Path, error: BaseException) -> str:
    """Text for a message on `error`: if the disk is full, the largest folders of the experiment; else ''."""
    if not is_full(error):
        return ""
    try:
        free = shutil.disk_usage(folder).free
        largest = [f"{path} ({megabytes(size)})" for path, size in largest_folders(folder) if size]
    except OSError:  # the message is about another one
        return ""
    text = f" The disk is full: {megabytes(free)} are free."
    if largest:
        text += (
            f" The largest folders of the experiment are {', '.join(largest)}; "
            "CheckpointConfig(num_to_keep=...) keeps fewer checkpoints."
        )
    return text


def megabytes(size: int) -> str:
    """Such as '12.3 MB'."""
    return f"{size / 1e6:.1f} MB"
