"""Budget of shared memory that all processes of a session draw on.

    used, limit, session, driver, spilled, told, makers, folder   one small memory file that all processes map

A process that makes a segment adds its size to `used`, under a lock that every process takes. A process
that frees one subtracts it, warm ones included. A segment stays counted that others still hold when its
maker lets go, or that a process takes along when it dies. So `used` may be too high, but never too low, and
a new segment costs a microsecond more. Only when it would exceed the limit is the real use read from the
kernel, by the locks on all segments (see `locks`). Warm memory of all processes is taken back then: a process
that has made segments, and so may keep some warm, has put its pid among the makers.

Values in files in `folder`, for which there was no room in memory, are not part of `used`. What was written
there since the session began is counted.
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
_FOLDER_BYTES = 1 << 12  # at the end: as long as the kernel lets a path be
_CELLS = (_FILE_BYTES - _FOLDER_BYTES) // 8
_NAME = "tk-store"


class StoreBudget:
    """The session's budget of shared memory, as one process has it open.

    Its user, the process's pool of segments, takes care that no two threads come here at once.

    Args:
        fd: of the account; the caller keeps and closes it.

    Attributes:
        folder: where values go that find no room in memory; "" if they are to go nowhere.
    """

    def __init__(self, fd: int) -> None:
        # An open file of its own: a lock on one that was inherited or sent would be its giver's too.
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
        """Keep every other process from counting and from making segments."""
        with InterruptGuard():  # Ctrl-C must not leave it locked: all others would wait for ever
            # A collection in the middle may free a segment, which comes here again.
            if self._depth == 0:
                fcntl.flock(self.fd, fcntl.LOCK_EX)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self.fd, fcntl.LOCK_UN)

    @property
    def used_bytes(self) -> int:
        """Return the bytes counted as used; the count may be too high, never too low."""
        return self._cells[_USED]

    @property
    def spilled(self) -> tuple[int, int]:
        """Return bytes and number of the values that were written to disk since the session began."""
        return self._cells[_SPILLED_BYTES], self._cells[_SPILLED_COUNT]

    def note_spilled(self, size_bytes: int, *, freed: bool) -> None:
        """Count a value that was written to disk.

        Args:
            size_bytes: its size.
            freed: its segment in memory was made by this process, and is closed before `locked` ends.
        """
        with self.locked():
            self._cells[_SPILLED_BYTES] += size_bytes
            self._cells[_SPILLED_COUNT] += 1
            if freed:
                self._cells[_USED] -= min(self._cells[_USED], size_bytes)

    def is_first_to_tell(self) -> bool:
        """Return whether no process has said so far that values go to disk; count it as said."""
        with self.locked():
            told, self._cells[_TOLD] = self._cells[_TOLD], 1
            return not told

    def span(self, size_bytes: int, *, on_disk: bool = False) -> Span:
        """Return the range of bytes that a lock on a segment of this size covers."""
        return Span(self.session, size_bytes, on_disk)

    def make(self, size_bytes: int) -> int | None:
        """Return a new segment, in use by this process; None if it would exceed the limit, by the count."""
        with self.locked():
            if self._cells[_USED] + size_bytes > self.limit_bytes:
                return None
            if not self._is_maker:
                self._become_maker()
            # Counted, made and locked in one go: who counts exactly holds the same lock, and misses none.
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
        """Return a new segment, after a count of what is in use, and with all warm memory taken back."""
        with self.locked():
            if self.in_use_bytes() + size_bytes > self.limit_bytes:
                return None
            self._cells[_USED] = self._count()
            return self.make(size_bytes)

    def in_use_bytes(self) -> int:
        """Return the bytes of all segments in use, without warm ones, as known to the kernel."""
        return sum(locks.sizes_in_use(self.session).values())

    def figures(self) -> dict[str, int]:
        """Return the limit in memory, the use of memory and disk now, and all that was ever spilled."""
        spilled_bytes, spilled_objects = self.spilled
        # Others make and free segments meanwhile: what is in two readings was in use between them.
        before, after = locks.sizes_in_use(self.session), locks.sizes_in_use(self.session)
        return {
            "limit_bytes": self.limit_bytes,
            "used_bytes": sum(size for inode, size in before.items() if inode in after),
            "on_disk_bytes": sum(locks.sizes_in_use(self.session, on_disk=True).values()),
            "spilled_bytes": spilled_bytes,
            "spilled_objects": spilled_objects,
        }

    def _become_maker(self) -> None:
        count = self._cells[_MAKERS]
        if _FIRST_MAKER + count == _CELLS:  # forget those that have ended
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
        """Close a segment that this process has alone, and take it off the account."""
        with self.locked():
            self._cells[_USED] -= min(self._cells[_USED], os.fstat(fd).st_size)
            os.close(fd)

    def _count(self) -> int:
        sizes = locks.sizes_in_use(self.session)
        for found in usage.open_segments(self._makers(), self.session):
            if found.inode in sizes:
                continue
            try:
                fd = os.open(found.path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:  # closed meanwhile
                continue
            try:
                size = os.fstat(fd).st_size
                if size == 0:
                    continue
                # Warm memory; or segments that were taken into use, or are being closed, since the locks
                # were read: those are locked, and count. Who kept one looks at its size before writing
                # to it again.
                if locks.claim(fd, self.span(size)):
                    os.ftruncate(fd, 0)
                else:
                    sizes[found.inode] = size
            finally:
                os.close(fd)
        return sum(sizes.values())

    def close(self) -> None:
        """Close this process's end of it."""
        self._cells.release()
        self._memory.close()
        os.close(self.fd)
