"""Background thread of a process, which sends and reads data that no other thread waits for.

The thread wakes up for three reasons: a send that did not fit into the kernel's buffer, a result that no
waiting thread reads, or a message from the node. A thread that waits for an answer reads the answer itself,
so the background thread is not involved in an ordinary call.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from trainkit.runtime.local.wire.channel import Connection

T = TypeVar("T")

_CONTESTED_S = 0.001
_TICK_S = 0.001
_QUIET_TICKS = 5
"""Number of ticks (periodic flushes) without data after which a connection's ticking stops.

The number is above 1, because it is costly to start the ticking again.
"""

END = "end"
"""Reason for `watch`: notice only the end of the connection, as other threads read its data."""
_END_ALONE: set[Hashable] = {END}


class Watched(Protocol):
    """Connection, or group of connections that are polled through one descriptor."""

    closed: bool
    ended: bool

    def fileno(self) -> int: ...
    def try_read(self) -> bool: ...


class BackgroundThread:
    """Thread that reads and flushes connections. The thread starts at its first use."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the lock is reentrant, as garbage collection may call these methods
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._watched: dict[Watched, set[Hashable]] = {}
        self._flushing: set[Connection] = set()
        self._jobs: list[Callable[[], None]] = []
        self._ticking: dict[Connection, int] = {}
        self._stopping = False

    @property
    def is_current_thread(self) -> bool:
        """True if the caller runs in the background thread."""
        return threading.current_thread() is self._thread

    def watch(self, conn: Watched, why: Hashable) -> None:
        """Read `conn` until it closes, or until `unwatch` has undone each `watch`."""
        with self._lock:
            reasons = self._watched.setdefault(conn, set())
            if not reasons or reasons == _END_ALONE:
                self._wake()
            reasons.add(why)

    def unwatch(self, conn: Watched, why: Hashable) -> None:
        """Undo `watch`. Do nothing if `conn` is not watched for the reason `why`."""
        with self._lock:
            reasons = self._watched.get(conn)
            if reasons is not None:
                reasons.discard(why)
                if not reasons:
                    del self._watched[conn]
                    self._wake()

    def flush(self, conn: Connection) -> None:
        """Write the unsent data of `conn` as soon as the kernel accepts it.

        Until all data is written, also read `conn`.

        `conn` is read because the process at the other end may read data only after its answers were read.
        """
        with self._lock:
            self._flushing.add(conn)
            self._wake()

    def tick(self, conn: Connection) -> None:
        """Flush the posted entries of `conn` periodically, until no more entries are posted.

        Posted entries are small messages that are collected for a batch.
        """
        with self._lock:
            conn.ticking = True
            starts = not self._ticking
            self._ticking[conn] = 0
            if starts:
                self._wake()

    def _tick(self) -> None:
        for conn, quiet in list(self._ticking.items()):
            if _guarded(conn.on_tick) or conn.has_posted:
                self._ticking[conn] = 0
                _guarded(conn.flush_if_open)
            elif quiet < _QUIET_TICKS:
                self._ticking[conn] = quiet + 1
            else:
                with self._lock:
                    del self._ticking[conn]
                    conn.ticking = False
                _guarded(conn.flush_if_open)  # the flush sends entries that were posted since the last flush
                if _guarded(conn.on_tick):  # other threads posted more entries while `ticking` was True
                    self.tick(conn)

    def run(self, job: Callable[[], None]) -> None:
        """Call `job` in the background thread, unless the thread is stopped first."""
        with self._lock:
            if self._stopping:
                return
            # The thread is woken before the job is added, so that a wake-up is pending for each job.
            if not self._jobs:
                self._wake()
                if self.is_current_thread:
                    # Garbage collection may call this method after the loop has taken the jobs of its current
                    # turn. In this case, the loop is woken again, so that it also runs this job.
                    os.eventfd_write(self._wake_fd, 1)
            self._jobs.append(job)

    def _wake(self) -> None:
        if self._stopping:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="trainkit-pump", daemon=True)
            self._thread.start()
        elif not self.is_current_thread:
            os.eventfd_write(self._wake_fd, 1)

    def _loop(self) -> None:
        contested: set[Watched] = set()
        while True:
            with self._lock:
                if self._stopping:
                    return
                jobs, self._jobs = self._jobs, []
                poll, by_fd = self._registered(contested)
            if jobs:
                _run_all(jobs)
                by_fd.clear()  # freeing connections may add jobs, which run in the next turn
                continue
            hurry = _CONTESTED_S if contested else _TICK_S if self._ticking else None
            events = poll.poll(None if hurry is None else hurry * 1000)
            if self._ticking:
                self._tick()
            contested = self._serve(events, by_fd)
            by_fd.clear()
            self._forget_finished()

    # The steps of the loop are separate methods, so that their local variables are released before the thread
    # sleeps. A sleeping thread must not keep a connection alive.

    def _registered(self, contested: set[Watched]) -> tuple[select.poll, dict[int, Watched]]:
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        by_fd: dict[int, Watched] = {}
        for conn in [*self._watched, *self._flushing]:
            fd = conn.fileno()
            if fd < 0:
                continue
            # While a different thread is reading a connection, `poll` keeps reporting the connection as
            # readable. To avoid a busy loop, this thread omits such a connection, and polls it again a moment
            # later.
            silent = conn in contested or conn.ended
            only_end = self._watched.get(conn) == _END_ALONE
            mask = 0 if silent or only_end else select.POLLIN
            if conn in self._flushing:
                mask |= select.POLLIN * (not silent) | select.POLLOUT
            if mask or (only_end and not silent):  # poll reports a closed end even with an empty mask
                poll.register(fd, mask)
                by_fd[fd] = conn
        return poll, by_fd

    def _serve(self, events: list[tuple[int, int]], by_fd: dict[int, Watched]) -> set[Watched]:
        contested: set[Watched] = set()
        for fd, event in events:
            if fd == self._wake_fd:
                os.eventfd_read(fd)
                continue
            conn = by_fd[fd]
            if event & select.POLLOUT and isinstance(conn, Connection):
                conn.flush()
            if event & ~select.POLLOUT and not conn.closed and not _guarded(conn.try_read):
                contested.add(conn)
        return contested

    def _forget_finished(self) -> None:
        with self._lock:
            self._flushing = {conn for conn in self._flushing if conn.has_backlog and not conn.closed}
            for conn in [conn for conn in self._watched if conn.closed]:
                del self._watched[conn]

    def finish(self, timeout_s: float) -> None:
        """Send all unsent data. Wait at most `timeout_s` for a connection that accepts no data."""
        with self._lock:
            unsent = [*self._ticking, *self._flushing]
        for conn in unsent:
            conn.flush_if_open()
            conn.flush_blocking(timeout_s)

    def stop(self) -> None:
        """End the thread; jobs that have not run are dropped."""
        with self._lock:
            self._stopping = True
        if self.is_current_thread:  # the running loop still uses the wake-up descriptor
            return
        if self._thread is not None:
            os.eventfd_write(self._wake_fd, 1)
            self._thread.join(timeout=5)
        os.close(self._wake_fd)


def _run_all(jobs: list[Callable[[], None]]) -> None:
    jobs.reverse()
    while jobs:
        _guarded(jobs.pop())


def _guarded(work: Callable[[], T]) -> T | None:
    """Return `work()`.

    If `work` raises an exception, pass the exception to `sys.excepthook` and return None.
    """
    try:
        return work()
    except Exception:
        sys.excepthook(*sys.exc_info())
        return None
