"""Locks on memory segments, by which the kernel shows which segments are in use.

Each process that uses, maps or has sent a segment has an open file of the segment with a shared lock. The
lock on a segment belongs to the open file. So the lock is sent with the file through a socket, and lasts as
long as any mapping of the file. The lock also ends when the process crashes. The locked range encodes the
session and the segment's size:

    first byte = session's number * 2**40        length = size of the segment
                 + 2**39 if it lies on disk

The kernel's table of locks shows the range, even for a file that is in a socket on its way to a process. A
segment without a lock is only kept for reuse (warm) and may be freed.
"""

from __future__ import annotations

import fcntl
import os
import struct
from functools import partial

PREFIX = "trainkit-"
"""Prefix of the names of segments, which precedes the session's number in hexadecimal."""

_SHIFT = 40
_ON_DISK = 1 << 39
MEMORY_LINK = f"/memfd:{PREFIX}"
"""Prefix of the targets of /proc/PID/fd links of segments in memory."""

SESSIONS = 1 << 22
"""Number of possible session numbers."""

_SEQ_BYTES = 1 << 11
"""Size in bytes below which one read returns the whole lock table, as each read returns one page."""

_MOST_READS = 10

_FLOCK = struct.Struct("@hhqqi")  # the fields of C's struct flock are type, whence, start, length and pid


class Span:
    """Range of bytes that a lock on a segment covers, with prepared requests to the kernel.

    Args:
        session: number of the segment's session.
        size_bytes: size of the segment.
        on_disk: True if the segment is a file on disk.
    """

    __slots__ = ("claim", "on_disk", "release", "session", "share", "size_bytes")

    def __init__(self, session: int, size_bytes: int, on_disk: bool = False) -> None:
        self.session = session
        self.size_bytes = size_bytes
        self.on_disk = on_disk
        start = session << _SHIFT | on_disk * _ON_DISK
        self.share, self.claim, self.release = (
            _FLOCK.pack(kind, os.SEEK_SET, start, size_bytes, 0)
            for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK)
        )


def span_of(fd: int) -> Span:
    """Return the lock range of the segment that is open at `fd`.

    The range follows from the segment's name and size, or from the segment's lock if the segment is on disk.
    """
    name = os.readlink(f"/proc/self/fd/{fd}")
    if name.startswith(MEMORY_LINK):
        return Span(int(name.partition(PREFIX)[2].partition(" ")[0], 16), os.fstat(fd).st_size)
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        for line in file:
            found = _parsed(line.decode())
            if found is not None:
                return Span(*found[1:])
    raise RuntimeError(f"{name} was received as an object in shared memory, but no process has locked it")


def _parsed(line: str) -> tuple[int, int, int, bool] | None:
    """Return a segment's inode, session, size, and True if it is on disk, from a line about its lock.

    Return None if the line does not show a segment's lock.

    Args:
        line: a line of /proc/locks or of a descriptor's fdinfo, such as
            "7: OFDLCK ADVISORY  READ -1 00:01:1153 5497558138880 5497559187455".
    """
    fields = line.removeprefix("lock:").split()
    if len(fields) < 8 or fields[1] != "OFDLCK" or fields[7] == "EOF":
        return None
    start, last = int(fields[6]), int(fields[7])
    inode = int(fields[5].rpartition(":")[2])
    return inode, start >> _SHIFT, last - start + 1, start & _ON_DISK != 0


def share(fd: int, span: Span) -> None:
    """Take the shared lock on a segment. Raise BlockingIOError if another process has the exclusive lock."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, span.share)


def claim(fd: int, span: Span) -> bool:
    """Take the exclusive lock on a segment.

    Return False without effect if another process uses the segment.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, span.claim)
    except BlockingIOError:
        return False
    return True


def release(fd: int, span: Span) -> None:
    """Release the lock on a segment."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, span.release)


def sizes_in_use(session: int | None = None, *, on_disk: bool = False) -> dict[int, int]:
    """Return the sizes in bytes of all segments in use, by inode, including segments in sockets.

    The kernel returns its table of locks page by page. If a lock is released between two pages, the kernel
    skips a different lock. So a table of several pages is read again, with pages of different sizes, until
    two readings are equal, at most 10 times. The result may contain locks that were released during the
    reading.

    Args:
        session: number of the session; None means any session.
        on_disk: True for segments on disk, False for segments in memory.
    """
    found, text = dict[int, int](), ""
    for number in range(_MOST_READS):
        before = text
        with open("/proc/locks", "rb", buffering=0) as file:
            # The pages of successive readings have different sizes, so they end at different locks.
            text = b"".join(iter(partial(file.read, 3001 if number % 2 else 4096), b"")).decode()
        found |= {
            inode: size
            for inode, owner, size, is_on_disk in filter(None, map(_parsed, text.splitlines()))
            if is_on_disk == on_disk and session in (None, owner)
        }
        if len(text) < _SEQ_BYTES or text == before:
            break
    return found
