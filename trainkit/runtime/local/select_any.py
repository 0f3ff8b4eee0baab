"""Waiting on many references at once, whoever it is that reads their answers."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence

from trainkit.runtime.local.channel import Connection, explain
from trainkit.runtime.local.interrupt import InterruptGuard
from trainkit.runtime.local.pump import Pump
from trainkit.runtime.local.refs import PENDING, LocalRef

_MANY = 1_000
_PEERS = 64


class _Waker:
    """An event that other threads set, in a form that `poll` takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        try:
            self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            explain(error)
            raise

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


def are_many(refs: Sequence[LocalRef]) -> bool:
    """Return whether there are so many references that to look at all of them for each answer takes too long.

    They have to come over few connections, as the pump's thread looks at each of those.
    """
    return len(refs) >= _MANY and len({ref.peer for ref in refs}) <= _PEERS


def await_many(
    refs: Sequence[LocalRef], count: int, timeout_s: float | None, guard: InterruptGuard, pump: Pump
) -> None:
    """Return when `count` of `refs` are done, `timeout_s` has passed, or Ctrl-C came; each is looked at once.

    The pump's thread reads meanwhile, also what is given to further processes.
    """
    waker = _Waker()
    left = itertools.count(
        count - 1, -1
    )  # next() is atomic, so exactly one answer is the last that is needed

    def arrived() -> None:
        if next(left) == 0:
            waker.set()

    peers = {ref.peer for ref in refs if ref.peer is not None}
    try:
        for peer in peers:
            peer.flush_if_open()
            pump.watch(peer, waker)
        for ref in refs:
            ref.when_done(arrived)
        guard.poll([waker.fd], timeout_s)
    finally:
        for ref in refs:
            if ref.kind == PENDING:
                ref.forget(arrived)
        for peer in peers:
            pump.unwatch(peer, waker)
        waker.close()
