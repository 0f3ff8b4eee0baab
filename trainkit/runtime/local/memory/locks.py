"""Locks on segments, which tell the kernel which segments are in use.

Whoever uses a segment - holds it, maps it, or has sent it - has an open file of it with a shared lock.
The lock belongs to the open file, so it travels with it through a socket, lasts as long as any mapping
made from it, and goes when a process crashes. The locked range tells session and size:

    first byte = session's number * 2**40        length = size of the segment
                 + 2**39 if it lies on disk

and the kernel's table of locks shows the range, also of a file that is on its way in a socket, where
no process has it. A segment that no process has locked is warm memory that may be taken.
"""

from __future__ import annotations

import fcntl
import os
import struct

PREFIX = "trainkit-"
"""Start of the names of segments; the session's number in hexadecimal follows."""

_SHIFT = 40
_ON_DISK = 1 << 39
MEMORY_LINK = f"/memfd:{PREFIX}"
"""First characters of links to descriptors of segments in memory."""

SESSIONS = 1 << 22
"""Count of the numbers for sessions."""

_SEQ_BYTES = 1 << 11
"""A table shorter than this came in one piece: the kernel fills a page, less its last record."""

_MOST_READS = 5

_FLOCK = struct.Struct("@hhqqi")  # the C library's struct flock: type, whence, start, length, pid


class Span:
    """Range of bytes that a lock on a segment covers, with prepared requests to the kernel.

    Args:
        session: number of the session that it belongs to.
        size_bytes: of the segment.
        on_disk: it is a file on disk.
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
    """Return the span of the segment open at `fd`: from name and size; of a file on disk, from its lock."""
    name = os.readlink(f"/proc/self/fd/{fd}")
    if name.startswith(MEMORY_LINK):
        return Span(int(name.partition(PREFIX)[2].partition(" ")[0], 16), os.fstat(fd).st_size)
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        for line in file:
            span = locked_span(line.decode())
            if span is not None:
                return span
    raise RuntimeError(f"{name} arrived as an object in shared memory, but has no lock on it")


def locked_span(line: str) -> Span | None:
    """Return the span in a line of /proc/locks, or of a descriptor's fdinfo; None if there is none."""
    found = _parsed(line)
    return None if found is None else Span(*found[1:])


def _parsed(line: str) -> tuple[int, int, int, bool] | None:
    """Return the inode, the session and the size of a segment by a lock on it, and whether it is on disk.

    Args:
        line: such as "7: OFDLCK ADVISORY  READ -1 00:01:1153 5497558138880 5497559187455".
    """
    fields = line.removeprefix("lock:").split()
    if len(fields) < 8 or fields[1] != "OFDLCK" or fields[7] == "EOF":
        return None
    start, last = int(fields[6]), int(fields[7])
    inode = int(fields[5].rpartition(":")[2])
    return inode, start >> _SHIFT, last - start + 1, start & _ON_DISK != 0


def share(fd: int, span: Span) -> None:
    """Use the segment from now on, beside others; raises BlockingIOError while a process has it alone."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, span.share)


def claim(fd: int, span: Span) -> bool:
    """Have the segment alone; False, and nothing changes, if another process uses it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, span.claim)
    except BlockingIOError:
        return False
    return True


def release(fd: int, span: Span) -> None:
    """Use it no more."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, span.release)


def sizes_in_use(session: int | None = None, *, on_disk: bool = False) -> dict[int, int]:
    """Return the bytes of every segment of the session that is in use, by inode; None means of any session.

    What is on its way between two processes is among them. Files on disk are counted for themselves.
    The kernel tells a page of its table at a time, and a lock that goes in between makes it pass over
    another one: so a longer table is read until nothing is new in it, a few times at most.
    """
    found: dict[int, int] = {}
    for number in range(_MOST_READS):
        with open("/proc/locks") as file:
            text = file.read()
        known = len(found)
        found |= {
            inode: size
            for inode, owner, size, is_on_disk in filter(None, map(_parsed, text.splitlines()))
            if is_on_disk == on_disk and session in (None, owner)
        }
        if len(text) < _SEQ_BYTES or (number and len(found) == known):
            break
    return found
