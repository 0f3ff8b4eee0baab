"""Files on disk for values that do not fit into memory.

A file has no name, so the kernel removes it when no process has it open or mapped any more, even after a
crash. The file is sent and mapped like a segment in memory, and the kernel caches as much of it as fits.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Literal

from trainkit.errors import ConfigError, ObjectStoreFullError, OutOfDiskError
from trainkit.resources import describe_bytes, file_system
from trainkit.runtime.local.memory.locks import PREFIX, Span, share
from trainkit.runtime.local.wire.channel import Explained

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "rootfs")
_SPARED = 20
"""Divisor of a disk's size: one twentieth of the disk is left free, as in Ray."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def choose_folder(asked: str | os.PathLike[str] | Literal[False] | None) -> str:
    """Return the folder for the files of a session; "" turns spilling off.

    Args:
        asked: `object_spilling_directory` of `init`. False turns spilling off. None means the temporary
            folder, or /var/tmp if the temporary folder is in memory.

    Raises:
        ConfigError: the requested folder can't be written to.
    """
    if asked is False:
        return ""
    if asked is not None:
        folder = Path(asked).expanduser().absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"object_spilling_directory={os.fspath(asked)!r}: {error}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"object_spilling_directory={os.fspath(asked)!r} is not writable")
        return str(folder)
    mounts = Path("/proc/self/mountinfo").read_text()
    for candidate in (tempfile.gettempdir(), "/var/tmp"):
        if os.access(candidate, os.W_OK | os.X_OK) and on_disk(mounts, os.stat(candidate).st_dev):
            return candidate
    return ""


def on_disk(mounts: str, device: int) -> bool:
    """Return True if a file system is on a disk rather than in memory.

    A device without a mount counts as a disk, as some file systems, such as Btrfs, use different device
    numbers for their files.

    Args:
        mounts: text of /proc/self/mountinfo.
        device: device number of a file.
    """
    return file_system(mounts, device) not in _IN_MEMORY


def has_room(available_bytes: int, total_bytes: int, size_bytes: int) -> bool:
    """Return True if `size_bytes` fit on a disk and leave one twentieth of the disk free."""
    return available_bytes - size_bytes >= total_bytes // _SPARED


def make_file(folder: str, span: Span) -> int:
    """Return the descriptor of a new unnamed file in `folder`, which has a shared lock.

    Raises:
        OutOfDiskError: the disk is full.
        ObjectStoreFullError: the file can't be created.
    """
    size = span.size_bytes
    with explained(folder, size):
        disk = os.statvfs(folder)
        if not has_room(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, size):
            raise OutOfDiskError(_full_text(folder, size))
        with tempfile.TemporaryFile(prefix=PREFIX, dir=folder, buffering=0) as file:
            os.ftruncate(file.fileno(), size)
            # The lock belongs to the open file, which stays open when this descriptor is closed, because
            # another descriptor refers to it.
            share(file.fileno(), span)
            return os.dup(file.fileno())


def copy(source: int, target: int, folder: str, size_bytes: int) -> None:
    """Copy a segment in memory to a file in `folder`. Raise the same errors as `make_file`."""
    done = 0
    with explained(folder, size_bytes):
        while done < size_bytes:
            sent = os.sendfile(target, source, done, size_bytes - done)
            if not sent:
                raise RuntimeError(f"a segment of {size_bytes} bytes in memory ends after {done} bytes")
            done += sent


def explained(folder: str, size_bytes: int) -> Explained:
    """Return a context manager that replaces an OSError of writing to `folder` with a readable error."""
    return Explained(lambda error: explain(error, folder, size_bytes))


def explain(error: OSError, folder: str, size_bytes: int) -> None:
    """Raise a readable error for a failed disk operation.

    Return without an error if `error` is a lack of descriptors.
    """
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return
    if error.errno in _NO_SPACE:
        raise OutOfDiskError(_full_text(folder, size_bytes)) from error
    raise ObjectStoreFullError(
        f"the object store is full, and a value of {describe_bytes(size_bytes)} can't be written to {folder} "
        f"instead ({error}): choose another folder by object_spilling_directory in init()"
    ) from error


def _full_text(folder: str, size_bytes: int) -> str:
    return (
        f"the object store is full, and so is the disk of {folder}: {describe_bytes(size_bytes)} can't be "
        f"written, as only {1 - 1 / _SPARED:.0%} of the disk may be used. Release references, free disk "
        "space, or choose another disk by object_spilling_directory in init()."
    )
