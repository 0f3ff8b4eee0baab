"""Shared memory segments, each of which contains one large value.

A value is written once, mapped by each reader, and freed by the kernel. A segment is an anonymous memory
file. A segment exists only while a process has it open or mapped, so no segment is left behind when processes
end. The kernel also knows whether a segment is in use. Each process that uses the segment has a separate open
file with a shared lock on the segment, see `locks`. When the writer gets the exclusive lock, no other process
uses the segment, and its warm (already allocated) pages are reused for the next value.

A new segment is filled by `pwrite`, which is twice as fast as touching each page of a mapping for the first
time. If the kernel has no memory, `pwrite` raises an error, while a mapping would end the process by SIGBUS.
Warm pages are written through a mapping, which needs no system call.

If the store is full, this process moves segments to files on disk, oldest first. A segment that this process
has mapped, or that another process uses, is not moved. A value that still does not fit is written to a file
directly. A segment on disk is read, sent and released like a segment in memory, see `spilling`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import pickle
import resource
import threading
import weakref
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ObjectStoreFullError
from trainkit.resources import describe_bytes
from trainkit.runtime.local.memory import locks, spilling, usage
from trainkit.runtime.local.memory.budget import StoreBudget
from trainkit.runtime.local.memory.locks import Span
from trainkit.runtime.local.wire.channel import HANDLE_KINDS, Explained
from trainkit.runtime.refs import Uncopied
from trainkit.runtime.serialize import Handle, Packed, present
from trainkit.runtime.signals import InterruptGuard

LARGE_BYTES = 256 * 1024
"""Minimum size of values that are written to shared memory."""

_ALIGN_BYTES = 64
_KEEP_MOST = 16
"""Maximum number of segments that a process keeps for reuse, as each needs two descriptors."""

_KEEP_MOST_BYTES = 1 << 30
_KEEP_SHARE = 10
"""Divisor of the store's size: each process keeps at most one tenth of the whole store for reuse."""

_PATIENCE_S = 0.25
"""Longest wait in seconds for room in a full store; other processes may release values during this wait."""

_LOOK_AGAIN_S = 0.01

_BATCH_SHARE = 10
"""Divisor of the store's size: a process moves up to one tenth of a full store to disk at once."""

_BATCH_MOST_BYTES = 100 << 20

SEGMENT = 1

_logger = logging.getLogger(__name__)

_held: dict[weakref.ref[Segment], None] = {}
"""Segments of this process that contain a value, oldest first."""

_moving = threading.RLock()
"""Lock held for short times while a segment is opened, mapped, or moved to disk."""


@dataclass(eq=False, slots=True)
class _File:
    """Open memory file, or file on disk, of a segment.

    Args:
        fd: descriptor of the file.
        known_span: range of bytes that a lock on the file covers; None to read it from the kernel later.
        pool: pool that reuses the file, in the process that wrote it; None in other processes.
        memory: writable mapping of a reused file, in the process that wrote it; None otherwise.

    Attributes:
        mapping: mapping that readers share, if any.
    """

    fd: int
    known_span: Span | None = None
    pool: SegmentPool | None = None
    memory: mmap.mmap | None = None
    mapping: mmap.mmap | None = None

    @property
    def span(self) -> Span:
        """Range of bytes that a lock on the file covers."""
        if self.known_span is None:
            self.known_span = locks.span_of(self.fd)
        return self.known_span

    def release(self) -> None:
        """Keep the file for reuse, or close the file."""
        self.mapping = None
        if self.pool is not None:
            self.pool.recycle(self)
        else:
            os.close(self.fd)


@dataclass(eq=False, slots=True)
class _End:
    """Object that closes a file, or keeps the file for reuse, when the object is released."""

    file: _File

    def __del__(self) -> None:
        self.file.release()


@dataclass(eq=False, slots=True)
class _Owner:
    """Owner of a segment's file. The owner is released with the segment.

    A garbage collection calls the `__del__` of all objects of a cycle before it releases them, and the
    `__del__` of a user's object may still read the segment. So `__del__` leaves the file to a new object,
    which is released after the cycle.
    """

    file: _File
    end: _End | None = None

    def __del__(self) -> None:
        self.end = _End(self.file)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Segment(Uncopied):
    """Memory file that contains one value. A segment is a handle that can be sent any number of times.

    The class has no `__del__`, as weak references to an object are valid while its `__del__` runs. Another
    thread could thus move a segment to disk whose descriptor is already closed or reused.
    """

    kind = SEGMENT
    _file: _File
    _views: int = 0
    _owner: _Owner = field(init=False)

    def __post_init__(self) -> None:
        self._owner = _Owner(self._file)

    @classmethod
    def received(cls, fd: int) -> Segment:
        """Return a segment for a descriptor that another process has sent."""
        segment = cls(_File(fd))
        segment.noted()
        return segment

    def noted(self) -> None:
        """Register that the segment contains a value, so that it may be moved to disk."""
        _held[weakref.ref(self, _held.__delitem__)] = None

    @property
    def span(self) -> Span:
        """Range of bytes that a lock on the segment covers."""
        return self._file.span

    def open_fd(self) -> int:
        with InterruptGuard(), _moving:  # Ctrl-C must not lose a descriptor with a lock
            with _explained:
                fd = os.open(f"/proc/self/fd/{self._file.fd}", os.O_RDWR | os.O_CLOEXEC)
            locks.share(fd, self.span)
        return fd

    def fill(self, parts: Sequence[Any], spans: Sequence[tuple[int, int]]) -> None:
        """Write each part of a value to the range of the segment that is given for the part."""
        if self._file.memory is not None:
            with memoryview(self._file.memory) as target:
                for part, (start, stop) in zip(parts, spans, strict=True):
                    target[start:stop] = part
            return
        for part, (start, _) in zip(parts, spans, strict=True):
            with memoryview(part) as view, view.cast("B") as rest:
                done = 0
                while done < len(rest):  # the kernel writes at most 2 GiB at a time
                    done += os.pwrite(self._file.fd, rest[done:], start + done)

    def spill(
        self, account: StoreBudget, lock: threading.RLock, *, mapped: Container[int], views: int
    ) -> bool:
        """Move the segment to disk if only this process has it and does not map it. Return True on success.

        The descriptor keeps its number, and then refers to the file on disk. If a thread opens the segment
        during the move, the segment stays in memory. A use of the segment by children that the program itself
        forks is not detected, because such children share the open file.

        Args:
            account: budget of the session's shared memory.
            lock: lock that a thread of this process takes before it uses the account.
            mapped: inodes of the segments that this process maps for reading.
            views: result of `unmap_idle` before `mapped` was read.

        Raises:
            OutOfDiskError, ObjectStoreFullError: the file could not be written.
            RuntimeError: another program has cut the segment.
        """
        if os.fstat(self._file.fd).st_ino in mapped or not self._is_idle(views):
            return False
        span = Span(self.span.session, self.span.size_bytes, on_disk=True)
        file = spilling.make_file(account.folder, span)
        try:
            spilling.copy(self._file.fd, file, account.folder, span.size_bytes)
            # The memory is freed and subtracted from the account under one lock. With two locks, another
            # process could count between them, and the memory would be subtracted twice. The code does not
            # wait for `_moving`, as the thread with that lock may run a garbage collection that needs `lock`.
            with lock, account.locked():
                if not _moving.acquire(blocking=False):
                    return False
                try:
                    if not self._is_idle(views):
                        return False
                    account.note_spilled(span.size_bytes, freed=self._file.pool is not None)
                    os.dup2(file, self._file.fd, inheritable=False)
                    self._file.known_span, self._file.pool, self._file.memory = span, None, None
                finally:
                    _moving.release()
        finally:
            os.close(file)
        return True

    def _is_idle(self, views: int) -> bool:
        with _moving:
            if self._views != views or not locks.claim(self._file.fd, self.span):
                return False
            locks.share(self._file.fd, self.span)
            return True

    def unmap_idle(self) -> int:
        """Release the mapping that readers share, unless a reader still uses an array (view) in the mapping.

        Return the number of views that readers have received so far.
        """
        with _moving:
            mapping = self._file.mapping
            if mapping is not None:
                with contextlib.suppress(BufferError):
                    mapping.close()
                    self._file.mapping = None
            return self._views

    def view(self, private: bool) -> memoryview:
        """Return the whole segment, mapped copy-on-write, so that writes stay in this process.

        Args:
            private: True for a separate mapping for this reader; False for the mapping that readers share.
        """
        file = self._file
        with InterruptGuard(), _moving:
            self._views += 1
            if file.mapping is not None and not private:
                return memoryview(file.mapping)
            # A mapping keeps its open file, and so the file's lock. A received segment thus stays locked
            # while an array uses it. The process that wrote the segment maps a second open file, because it
            # releases the lock on the first open file.
            fd = self.open_fd() if file.pool is not None else file.fd
            try:
                with _explained:
                    mapping = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            finally:
                if fd != file.fd:
                    os.close(fd)
            if not private:
                file.mapping = mapping
            return memoryview(mapping)


HANDLE_KINDS[SEGMENT] = Segment.received


class SegmentPool:
    """Pool that writes values to segments, and reuses segments that are no longer read by any process.

    Args:
        account: budget of the session's shared memory, which is closed with the pool.
    """

    def __init__(self, account: StoreBudget) -> None:
        self._account = account
        self._keep_bytes = min(_KEEP_MOST_BYTES, account.limit_bytes // _KEEP_SHARE)
        # The segment to be dropped next comes first. Other processes may still use some of these segments,
        # for example as an argument of a running call.
        self._kept: list[_File] = []
        self._lock = threading.RLock()  # the lock is reentrant, as garbage collection may recycle a segment
        self._spilling = threading.Lock()
        self._closed = False
        self._pid = os.getpid()

    def write(self, packed: Packed) -> Packed:
        """Write a large value to a segment and return the stored value. Return a small value unchanged.

        Raises:
            ObjectStoreFullError: the store is full or no descriptor is left; the value was not written.
            OutOfDiskError: the store and the disk are full.
        """
        if packed.size_bytes < LARGE_BYTES:
            return packed
        spans: list[tuple[int, int]] = []
        end = 0
        parts = [packed.payload, *packed.buffers]
        for part in parts:
            start = -(-end // _ALIGN_BYTES) * _ALIGN_BYTES
            end = start + len(part)
            spans.append((start, end))
        segment = self._segment(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE)
        to_disk = spilling.explained(self._account.folder, segment.span.size_bytes)
        with _explained, to_disk if segment.span.on_disk else contextlib.nullcontext():
            segment.fill(parts, spans)
        segment.noted()
        return Packed(pickle.dumps((packed.writable, spans)), (), [segment, *packed.handles], stored=True)

    def _segment(self, size: int) -> Segment:
        limit, spills = self._account.limit_bytes, self._account.folder != ""
        if size > limit and not spills:
            raise ObjectStoreFullError(
                f"a value of {describe_bytes(size)} does not fit the object store, which holds "
                f"{describe_bytes(limit)} in all: raise object_store_memory in init(), "
                "or pass the value in parts"
            )
        deadline: float | None = None
        while size <= limit:
            with InterruptGuard(), self._lock:  # Ctrl-C must not lose a segment
                segment = self._warm(size) or self._new(size)
            if segment is not None:
                return segment
            if spills:
                with InterruptGuard():  # Ctrl-C must not lose a lock or a descriptor
                    moved = self._spill(size)
                if not moved:
                    break
                continue
            now = SYSTEM.monotonic()
            deadline = deadline or now + _PATIENCE_S
            if now >= deadline:
                with _explained:
                    raise ObjectStoreFullError(self._full(size))
            SYSTEM.sleep(_LOOK_AGAIN_S)
        with InterruptGuard():
            return self._on_disk(size)

    def _warm(self, size: int) -> Segment | None:
        """Return the smallest unused warm segment of `size` to `2 * size` bytes, or None if none fits."""
        fitting = [kept for kept in self._kept if size <= kept.span.size_bytes <= 2 * size]
        for kept in sorted(fitting, key=lambda kept: kept.span.size_bytes):
            # At any point of this loop, garbage collection may recycle a segment, and so drop a segment of
            # `fitting`. Thus a segment is taken out of the list before its descriptor is used.
            try:
                self._kept.remove(kept)
            except ValueError:
                continue
            if not locks.claim(kept.fd, kept.span):
                self._kept.insert(0, kept)  # a segment that others still use is dropped first
                continue
            # The segment is smaller if another process, which found the store full, has freed the segment's
            # memory.
            if os.fstat(kept.fd).st_size < size:
                self._account.close_segment(kept.fd)
                continue
            locks.share(kept.fd, kept.span)
            if kept.memory is None:
                # If the segment can't be mapped, for example for lack of descriptors, it is written by system
                # calls.
                with contextlib.suppress(OSError):
                    kept.memory = mmap.mmap(kept.fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            return Segment(kept)
        return None

    def _new(self, size: int) -> Segment | None:
        """Return a new segment; None if the store is full."""
        try:
            fd = self._account.make(size)
        except OSError as error:
            if error.errno not in (*_NO_DESCRIPTOR, *_NO_MEMORY):
                raise
            fd = None
        if fd is None:
            while self._kept:
                self._drop(self._kept.pop())
            with _explained:
                fd = self._account.make(size)
                if fd is None:
                    fd = self._account.make_after_counting(size)
        return None if fd is None else Segment(_File(fd, self._account.span(size), self))

    def _spill(self, size: int) -> bool:
        """Move unmapped segments to disk until `size` bytes fit. Return True if any segment was moved.

        For a small value, more segments are moved than needed, so that the next values fit at once.
        """
        account = self._account
        # This code does not wait for the lock `_spilling`. Garbage collection during the move may run a
        # finalizer that writes a value itself, or that waits for a lock of another thread. If another thread
        # has `_spilling`, the caller writes its value to disk directly.
        if not self._spilling.acquire(blocking=False):
            return False
        try:
            found = [segment for segment in (known() for known in list(_held)) if segment is not None]
            in_memory = [segment for segment in found if not segment.span.on_disk]
            ours = [segment for segment in in_memory if segment.span.session == account.session]
            views = [segment.unmap_idle() for segment in ours]
            sizes = locks.sizes_in_use(account.session)
            mapped = usage.mapped_by_readers(os.getpid(), sizes)
            lacking = max(sum(sizes.values()) + size - account.limit_bytes, 1)
            batch = min(account.limit_bytes // _BATCH_SHARE, _BATCH_MOST_BYTES)
            freed = 0
            for segment, seen in zip(ours, views, strict=True):
                size_bytes = segment.span.size_bytes
                if freed >= lacking and freed + size_bytes > batch:
                    break
                try:
                    if segment.spill(account, self._lock, mapped=mapped, views=seen):
                        freed += size_bytes
                except (OSError, ObjectStoreFullError):
                    break  # the value itself may still fit on the disk; otherwise its write raises the error
        finally:
            self._spilling.release()
        if freed:
            self._tell()
        return freed > 0

    def _on_disk(self, size: int) -> Segment:
        """Return a new segment on disk."""
        span = self._account.span(size, on_disk=True)
        with _explained:
            segment = Segment(_File(spilling.make_file(self._account.folder, span), span))
        with self._lock:
            self._account.note_spilled(size, freed=False)
        self._tell()
        return segment

    def _tell(self) -> None:
        """Warn once in a session that values are written to disk."""
        with self._lock:
            is_first = self._account.is_first_to_tell()
        if is_first:
            _logger.warning(
                "the object store is full (%s), so large values go to files in %s from now on; raise "
                "object_store_memory in init() to keep more of them in memory",
                describe_bytes(self._account.limit_bytes),
                self._account.folder,
            )

    def _full(self, size: int) -> str:
        account = self._account
        return (
            f"the object store is full: {describe_bytes(account.in_use_bytes())} of "
            f"{describe_bytes(account.limit_bytes)} used, {describe_bytes(size)} requested; held by: "
            f"{usage.describe_holders(account.session, account.driver)}. Release references, or raise "
            "object_store_memory in init()."
        )

    def recycle(self, kept: _File) -> None:
        """Keep a segment warm (for reuse) that is no longer used in this process."""
        if self._pid != os.getpid():  # this is a forked child, and only the parent reuses the memory
            os.close(kept.fd)
            return
        with self._lock:
            if self._closed:
                os.close(kept.fd)
                return
            if kept.span.size_bytes > self._keep_bytes:
                self._drop(kept)
                return
            locks.release(kept.fd, kept.span)
            self._kept.append(kept)
            while (
                len(self._kept) > _KEEP_MOST or sum(k.span.size_bytes for k in self._kept) > self._keep_bytes
            ):
                self._drop(self._kept.pop(0))

    def _drop(self, kept: _File) -> None:
        """Close a segment. The segment's memory is freed once no other process uses the segment."""
        if kept.memory is not None:
            kept.memory.close()
        if locks.claim(kept.fd, kept.span):
            self._account.close_segment(kept.fd)
        else:
            os.close(kept.fd)

    def close(self) -> None:
        """Free the warm segments. Segments in use are freed when they are released."""
        with self._lock:
            self._closed = True
            for kept in self._kept:
                os.close(kept.fd)
            self._kept.clear()
            self._account.close()


_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_NO_MEMORY = (errno.ENOMEM, errno.ENOSPC)


def _explain(error: OSError) -> None:
    """Raise a readable error if `error` means that no descriptor or memory is left. Otherwise return."""
    if error.errno in _NO_DESCRIPTOR:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise ObjectStoreFullError(
            f"this process has no file descriptor left for one more object in shared memory: its limit is "
            f"{limit}, and each large object that it holds takes one. Release references, put many "
            "values into one object, or raise the limit (ulimit -n)."
        ) from error
    if error.errno in _NO_MEMORY:
        raise ObjectStoreFullError(
            f"the kernel has no memory left for one more object ({error.strerror}): release references, "
            "or lower object_store_memory in init() so that objects leave memory for other uses"
        ) from error


_explained = Explained(_explain)


def opened(packed: Packed) -> Packed:
    """Return a stored value with its parts mapped instead of copied. Return other values unchanged.

    Raises:
        ObjectLostError: this process had no descriptor left for the segment when it arrived.
    """
    if not packed.stored:
        return packed
    segment: Any = present(packed.handles[0])
    rest: Sequence[Handle] = packed.handles[1:]
    writable, ((start, stop), *spans) = pickle.loads(packed.payload)
    view = segment.view(private=writable)
    return Packed(view[start:stop], [view[a:b] for a, b in spans], rest)
