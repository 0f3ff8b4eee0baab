"""Waiting on many references at once, whoever it is that reads their answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from trainkit.runtime.local.channel import Connection
from trainkit.runtime.local.interrupt import InterruptGuard
from trainkit.runtime.local.refs import PENDING, LocalRef


class _Waker:
    """An event that other threads set, in a form that `poll` takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        with self._lock:
            os.close(self.fd)
            self.fd = -1


def await_any(refs: Sequence[LocalRef], timeout_s: float | None, guard: InterruptGuard) -> None:
    """Return when something may have changed for one of `refs`, `timeout_s` has passed, or Ctrl-C came.

    The connections that no other thread reads are read here; for the answers of the others this
    thread is woken by who finds them.
    """
    leading: dict[int, Connection] = {}
    waker: _Waker | None = None
    watched: list[LocalRef] = []
    try:
        for ref in refs:
            peer = ref.peer
            if peer is not None and not peer.closed:
                fd = peer.fileno()
                if fd in leading:
                    continue
                if peer.has_posted:
                    peer.flush_if_open()
                if peer.reading.acquire(blocking=False):
                    if peer.fileno() == fd:
                        leading[fd] = peer
                        continue
                    peer.release_reading()  # it closed in between
            waker = waker or _Waker()
            watched.append(ref)
            ref.when_done(waker.set)
        if any(ref.kind != PENDING for ref in refs):  # it came in before the locks were taken
            return
        for fd in guard.poll([*leading, *([] if waker is None else [waker.fd])], timeout_s):
            if fd in leading:
                leading[fd].read_available()
    finally:
        for conn in leading.values():
            conn.release_reading()
        if waker is not None:
            for ref in watched:
                ref.forget(waker.set)
            waker.close()
