"""Large values in shared memory: written once, mapped by every reader, freed by the kernel.

A segment is an anonymous memory file, named by nothing but its descriptors, so it lasts as long as
some process holds or maps it, and nothing can be left behind. Whether somebody still does is asked of
the kernel too: every receiver gets an open file of its own, which holds a shared lock on the segment
while it is in flight, held or mapped, and lets go of it even by a crash. When the writer can take the
exclusive lock, nobody else has the segment, and its warm pages are used for the next value.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
import threading
from collections.abc import Sequence
from typing import Any

from trainkit.runtime.local.channel import HANDLE_KINDS
from trainkit.runtime.serialize import Handle, Packed

LARGE_BYTES = 256 * 1024
"""Values of this size and more go to shared memory."""

_ALIGN_BYTES = 64
_KEEP_MOST = 16
"""Segments kept warm, as each takes two descriptors."""

SEGMENT = 1


class Segment:
    """A memory file with one value in it; a handle that can be sent any number of times.

    Args:
        fd: owned from here on.
        memory: in the process that wrote it, its mapping, which stays warm for the next value.
        pool: in the process that wrote it, where it goes when it is let go of.
    """

    kind = SEGMENT
    __slots__ = ("__weakref__", "_fd", "_mapping", "_pool", "memory")

    def __init__(self, fd: int, memory: mmap.mmap | None = None, pool: SegmentPool | None = None) -> None:
        self._fd = fd
        self._pool = pool
        self._mapping: mmap.mmap | None = None
        self.memory = memory

    def open_fd(self) -> int:
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def view(self, private: bool) -> memoryview:
        """The whole segment, mapped copy-on-write: what a reader writes stays its own.

        Args:
            private: make a mapping for this reader alone; else all readers in this process share one.
        """
        if self._mapping is not None and not private:
            return memoryview(self._mapping)
        # A mapping holds the file it was made from, so a received segment's own lock lasts as long
        # as any array still lies in it. The writer maps another file than the one it keeps.
        fd = self.open_fd() if self._pool is not None else self._fd
        try:
            mapping = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            if fd != self._fd:
                os.close(fd)
        if not private:
            self._mapping = mapping
        return memoryview(mapping)

    def __copy__(self) -> Segment:
        return self

    def __deepcopy__(self, memo: object) -> Segment:
        return self

    def __del__(self) -> None:
        self._mapping = None
        if self._pool is not None and self.memory is not None:
            self._pool.recycle(self._fd, self.memory)
        else:
            os.close(self._fd)


HANDLE_KINDS[SEGMENT] = Segment


class SegmentPool:
    """Writes values to segments, reusing those that nobody reads any more.

    Args:
        keep_bytes: how much warm memory to keep for reuse at most.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._free: list[tuple[int, mmap.mmap]] = []
        self._lent: list[tuple[int, mmap.mmap]] = []
        self._lock = threading.RLock()  # a collection in the middle of a write may recycle a segment
        self._closed = False
        self._pid = os.getpid()

    def write(self, packed: Packed) -> Packed:
        """Move a large value to a segment; a small one is returned as it is."""
        if packed.size_bytes < LARGE_BYTES:
            return packed
        spans: list[tuple[int, int]] = []
        end = 0
        parts = [packed.payload, *packed.buffers]
        for part in parts:
            start = -(-end // _ALIGN_BYTES) * _ALIGN_BYTES
            end = start + len(part)
            spans.append((start, end))
        segment = self._segment(end)
        with memoryview(segment.memory or b"") as target:
            for part, (start, stop) in zip(parts, spans, strict=True):
                target[start:stop] = part
        return Packed(pickle.dumps((packed.writable, spans)), (), [segment, *packed.handles], stored=True)

    def _segment(self, size: int) -> Segment:
        with self._lock:
            self._take_back()
            fitting = [kept for kept in self._free if size <= len(kept[1]) <= 2 * size]
            if fitting:
                best = min(fitting, key=lambda kept: len(kept[1]))
                self._free.remove(best)
                return Segment(*best, self)
        fd = os.memfd_create("trainkit", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            return Segment(fd, mmap.mmap(fd, 0), self)
        except OSError:
            os.close(fd)
            raise

    def recycle(self, fd: int, memory: mmap.mmap) -> None:
        """Keep a segment that its last local holder let go of, until or while nobody else has it."""
        with self._lock:
            if self._pid != os.getpid():  # a forked copy: the memory is its parent's to reuse
                os.close(fd)
                return
            kept = sum(len(other) for _, other in [*self._free, *self._lent])
            many = len(self._free) + len(self._lent) >= _KEEP_MOST
            if self._closed or many or kept + len(memory) > self._keep_bytes:
                os.close(fd)
            elif _is_only_ours(fd):
                self._free.append((fd, memory))
            else:  # such as the argument of a call that is still on its way
                self._lent.append((fd, memory))

    def _take_back(self) -> None:
        """Find out which of the segments that others still had are free by now."""
        lent, self._lent = self._lent, []
        for kept in lent:
            (self._free if _is_only_ours(kept[0]) else self._lent).append(kept)

    def close(self) -> None:
        """Free what is kept; segments still in use are freed when they are let go of."""
        self._closed = True
        with self._lock:
            for fd, _ in [*self._free, *self._lent]:
                os.close(fd)
            self._free.clear()
            self._lent.clear()


def _is_only_ours(fd: int) -> bool:
    """Whether no other process holds or maps the segment, and none is on its way to one."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def opened(packed: Packed) -> Packed:
    """The value itself of a stored one, its parts mapped, not copied; others are returned as they are."""
    if not packed.stored:
        return packed
    segment: Any = packed.handles[0]
    rest: Sequence[Handle] = packed.handles[1:]
    writable, ((start, stop), *spans) = pickle.loads(packed.payload)
    view = segment.view(private=writable)
    return Packed(view[start:stop], [view[a:b] for a, b in spans], rest)
