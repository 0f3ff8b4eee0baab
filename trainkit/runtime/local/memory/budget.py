"""Budget of a session's shared memory, which all processes of the session share.

    used, limit, session, driver, spilled, told, makers, folder   one small memory file that all processes map

A process that makes a segment adds the segment's size to `used`, under a lock that all processes share. A
process that frees a segment subtracts the segment's size from `used`. Segments that a process keeps allocated
for reuse (warm segments) stay counted. A segment also stays counted if its maker releases it or dies while
other processes use it. So `used` may be too high. `used` can be too low only if the program itself forks
children, which share the open files of segments. Counting takes only a microsecond for each new segment. If
`used` would exceed the limit, the real use is read from the kernel's list of locks on segments (see `locks`).
All processes' warm segments are then freed. To find the warm segments, `makers` lists each process that has
made segments and may keep some of them warm.

Values that did not fit into memory are in files in `folder`, and do not count in `used`. `spilled` counts all
values that were written to disk since the start of the session.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
from collections.abc import Iterator

from trainkit.runtime.local.memory import locks, usage
from trainkit.runtime.local.memory.locks import PREFIX, Span
from trainkit.runtime.signals import InterruptGuard

_USED, _LIMIT, _SESSION, _DRIVER, _SPILLED_BYTES, _SPILLED_COUNT, _TOLD, _MAKERS, _FIRST_MAKER = range(9)
_FILE_BYTES = 1 << 16
_FOLDER_BYTES = 1 << 12  # the last bytes of the file contain the folder, so this is a path's maximum length
_CELLS = (_FILE_BYTES - _FOLDER_BYTES) // 8
_NAME = "tk-store"


class StoreBudget:
    """Budget of a session's shared memory, as opened by one process.

    The class is not thread-safe. In each process, the pool of segments calls the budget from one thread at a
    time.

    Args:
        fd: descriptor of the budget's memory file, which the caller keeps and closes.

    Attributes:
        folder: folder for values that do not fit into memory; "" if spilling is off.
    """

    def __init__(self, fd: int) -> None:
        # The file is opened again, because a lock on an inherited or received open file would also belong to
        # the process that the file came from.
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._memory = mmap.mmap(self.fd, _FILE_BYTES)
        self._cells = memoryview(self._memory).cast("Q")
        self.limit_bytes = self._cells[_LIMIT]
        self.session = self._cells[_SESSION]
        self.driver = self._cells[_DRIVER]
        self.folder = os.fsdecode(self._memory[-_FOLDER_BYTES:].rstrip(b"\0"))
        self._depth = 0
        self._is_maker = False

    @classmethod
    def create(cls, limit_bytes: int, folder: str = "") -> StoreBudget:
        """Return the budget of a new session, opened by its driver."""
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, _FILE_BYTES)
            os.pwrite(fd, os.fsencode(folder), _FILE_BYTES - _FOLDER_BYTES)
            with mmap.mmap(fd, _FILE_BYTES) as memory, memoryview(memory) as view, view.cast("Q") as cells:
                cells[_LIMIT] = limit_bytes
                cells[_SESSION] = secrets.randbelow(locks.SESSIONS)
                cells[_DRIVER] = os.getpid()
            return cls(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all other processes from counting, making and freeing segments while the block runs."""
        with InterruptGuard():  # Ctrl-C must not leave the file locked, as all processes would wait forever
            # Nested calls are counted, as garbage collection in the block may free a segment and lock again.
            self._depth += 1
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX)
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self.fd, fcntl.LOCK_UN)

    @property
    def used_bytes(self) -> int:
        """Number of bytes counted as used, which may be too high but never too low."""
        return self._cells[_USED]

    def note_spilled(self, size_bytes: int, *, freed: bool) -> None:
        """Count a value that was written to disk.

        Args:
            size_bytes: size of the value.
            freed: True if this process made the value's segment in memory and closes the segment in the same
                `locked` block.
        """
        with self.locked():
            self._cells[_SPILLED_BYTES] += size_bytes
            self._cells[_SPILLED_COUNT] += 1
            if freed:
                self._cells[_USED] -= min(self._cells[_USED], size_bytes)

    def is_first_to_tell(self) -> bool:
        """Return True only in the session's first call, so that a single warning about the disk appears."""
        with self.locked():
            told, self._cells[_TOLD] = self._cells[_TOLD], 1
            return not told

    def span(self, size_bytes: int, *, on_disk: bool = False) -> Span:
        """Return the range of bytes that a lock on a segment of `size_bytes` covers."""
        return Span(self.session, size_bytes, on_disk)

    def make(self, size_bytes: int) -> int | None:
        """Return the descriptor of a new locked segment; None if `used` would exceed the limit."""
        with self.locked():
            if self._cells[_USED] + size_bytes > self.limit_bytes:
                return None
            if not self._is_maker:
                self._become_maker()
            # The segment is counted, made and locked under one lock of the budget, so that an exact count
            # can't miss the segment.
            fd = os.memfd_create(f"{PREFIX}{self.session:06x}", os.MFD_CLOEXEC)
            try:
                os.ftruncate(fd, size_bytes)
                locks.share(fd, self.span(size_bytes))
            except BaseException:
                os.close(fd)
                raise
            self._cells[_USED] += size_bytes
            return fd

    def make_after_counting(self, size_bytes: int) -> int | None:
        """Return a new segment's descriptor after freeing all warm memory.

        Return None if the segment does not fit into the limit.
        """
        with self.locked():
            if self.in_use_bytes() + size_bytes > self.limit_bytes:
                return None
            self._cells[_USED] = self._count()
            return self.make(size_bytes)

    def in_use_bytes(self) -> int:
        """Return the total size of all segments in use according to the kernel, without warm segments."""
        return sum(locks.sizes_in_use(self.session).values())

    def figures(self) -> dict[str, int]:
        """Return the memory limit, the current use of memory and disk, and the total of spilled values."""
        # Other processes make and free segments during these readings. A segment that is in both readings was
        # certainly in use during the time between them.
        before, after = locks.sizes_in_use(self.session), locks.sizes_in_use(self.session)
        return {
            "limit_bytes": self.limit_bytes,
            "used_bytes": sum(size for inode, size in before.items() if inode in after),
            "on_disk_bytes": sum(locks.sizes_in_use(self.session, on_disk=True).values()),
            "spilled_bytes": self._cells[_SPILLED_BYTES],
            "spilled_objects": self._cells[_SPILLED_COUNT],
        }

    def _become_maker(self) -> None:
        count = self._cells[_MAKERS]
        # the table of makers is full, so processes that have ended are removed
        if _FIRST_MAKER + count == _CELLS:
            living = [pid for pid in self._makers() if os.path.exists(f"/proc/{pid}")]
            for index, pid in enumerate(living):
                self._cells[_FIRST_MAKER + index] = pid
            count = len(living)
        self._cells[_FIRST_MAKER + count] = os.getpid()
        self._cells[_MAKERS] = count + 1
        self._is_maker = True

    def _makers(self) -> list[int]:
        return list(self._cells[_FIRST_MAKER : _FIRST_MAKER + self._cells[_MAKERS]])

    def close_segment(self, fd: int) -> None:
        """Close a segment that only this process uses, and subtract its size from `used`."""
        with self.locked():
            self._cells[_USED] -= min(self._cells[_USED], os.fstat(fd).st_size)
            os.close(fd)

    def _count(self) -> int:
        sizes = locks.sizes_in_use(self.session)
        for found in usage.open_segments(self._makers(), self.session):
            if found.inode in sizes:
                continue
            with contextlib.suppress(*usage.GONE), usage.opened(found, self.session) as fd:
                size = os.fstat(fd).st_size
                if size == 0:
                    continue
                # A warm segment has no lock and is emptied. The process that keeps the segment checks the
                # segment's size before it writes to the segment again. A segment that was locked after the
                # locks were read is in use or is being closed, and counts.
                if locks.claim(fd, self.span(size)):
                    os.ftruncate(fd, 0)
                else:
                    sizes[os.fstat(fd).st_ino] = size
        return sum(sizes.values())

    def close(self) -> None:
        """Close this process's descriptor and mapping of the budget's memory file."""
        self._cells.release()
        self._memory.close()
        os.close(self.fd)
        self.fd = -1
