"""Implementation of `get` and `wait`, which wait for one reference or many."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import GetTimeoutError, ObjectLostError
from trainkit.runtime.failures import raisable, unpack_failure
from trainkit.runtime.local.client.background import BackgroundThread
from trainkit.runtime.local.client.leases import Task
from trainkit.runtime.local.client.node_client import NodeClient
from trainkit.runtime.local.client.refs import ATOM, PENDING, CallConnection, LocalRef, mark_read
from trainkit.runtime.local.memory.segments import opened
from trainkit.runtime.local.system.context import calling
from trainkit.runtime.local.wire.channel import FAILURE, VALUE, Connection, descriptors_explained
from trainkit.runtime.local.wire.messages import Blocked
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.serialize import unpack
from trainkit.runtime.signals import InterruptGuard

_MANY = 1_000
_PEERS = 64


class _Waker:
    """Event that other threads set and that `poll` can wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        with descriptors_explained:
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
    """Wait until an answer to one of `refs` may have arrived, `timeout_s` has passed, or Ctrl-C is pressed.

    The calling thread reads the connections that no other thread is reading. Threads that read the other
    connections wake the calling thread when they find an answer.
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
                    peer.release_reading()  # the connection was closed during this loop
            waker = waker or _Waker()
            watched.append(ref)
            ref.when_done(waker.set)
        if any(ref.kind != PENDING for ref in refs):  # an answer arrived before the locks were taken
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
    """Return True if `refs` are too many to check all of them after each answer.

    The answer is also False if the results arrive over many connections, because the background thread would
    have to poll each connection.
    """
    return len(refs) >= _MANY and len({ref.peer for ref in refs}) <= _PEERS


def await_many(
    refs: Sequence[LocalRef],
    count: int,
    timeout_s: float | None,
    guard: InterruptGuard,
    background: BackgroundThread,
) -> None:
    """Wait until `count` of `refs` are completed, `timeout_s` has passed, or Ctrl-C is pressed.

    Each reference is checked only once.

    The background thread reads the answers, even if a reference gets its connection only later.
    """
    waker = _Waker()
    # `next` is atomic, so only one callback gets 0 and wakes the thread
    left = itertools.count(count - 1, -1)

    def arrived() -> None:
        if next(left) == 0:
            waker.set()

    peers = {ref.peer for ref in refs if ref.peer is not None}
    try:
        for peer in peers:
            peer.flush_if_open()
            background.watch(peer, waker)
        for ref in refs:
            ref.when_done(arrived)
        guard.poll([waker.fd], timeout_s)
    finally:
        for ref in refs:
            if ref.kind == PENDING:
                ref.forget(arrived)
        for peer in peers:
            background.unwatch(peer, waker)
        waker.close()


_BRIEF_S = 0.01
_BRIEF_WAITS = 4
"""Number of waits in a call during which this process keeps its CPUs for a moment.

Later waits of the call lend the CPUs at once.
"""


class Waiter:
    """Object by which the threads of this process wait for results.

    Args:
        node: client of the node, which is notified when this process lends its CPUs or takes them back.
        background: background thread, which reads the connections that no waiting thread reads.
        is_worker: True if this process is a worker, which may keep other calls from running while it waits.
        lends: True if other processes may use this process's CPUs while it waits.

    Attributes:
        asks_for_processes: function that returns True if tasks of this process wait for a requested worker.
        on_blocked: function called with True before the main thread of a worker waits for long, and with
            False afterwards.
    """

    def __init__(
        self, node: NodeClient, background: BackgroundThread, *, is_worker: bool, lends: bool
    ) -> None:
        self._node = node
        self._background = background
        self._is_worker = is_worker
        self._lends = lends
        self.asks_for_processes: Callable[[], bool] = lambda: False
        self.on_blocked: Callable[[bool], None] = lambda _: None
        self._brief_call: tuple[Any, ...] = ()
        self._brief_left = _BRIEF_WAITS
        self._lent_for: dict[int, Sequence[LocalRef]] = {}
        """Lists of references for which the main thread waits while its CPUs are lent, by the `id` of each
        list.
        """

    def get(self, refs: Sequence[ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else SYSTEM.monotonic() + timeout_s
        values = []
        for ref in refs:
            if not isinstance(ref, LocalRef):
                raise ObjectLostError(f"{ref!r} belongs to another engine or session")
            if ref.kind == PENDING and not self._await([ref], 1, deadline):
                raise GetTimeoutError(f"get(timeout={timeout_s}): {_lateness(ref)}")
            try:
                values.append(value_of(ref))
            except BaseException:
                if len(refs) > 1:
                    asked_for(refs)
                raise
        return values

    def get_without_lending(self, ref: LocalRef) -> Any:
        """Wait for the value of `ref` without lending CPUs, because no call has to run for this value."""
        lends, self._lends = self._lends, False
        try:
            return self.get([ref], None)[0]
        finally:
            self._lends = lends

    def wait(
        self, refs: Sequence[ObjectRef[Any]], num_returns: int, timeout_s: float | None
    ) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
        local = [ref for ref in refs if isinstance(ref, LocalRef)]
        if len(local) < len(refs):
            raise ObjectLostError("wait() was given a reference of another engine or session")
        if timeout_s == 0:
            _look(local)
        else:
            self._await(local, num_returns, None if timeout_s is None else SYSTEM.monotonic() + timeout_s)
        ready: list[ObjectRef[Any]] = []
        rest: list[ObjectRef[Any]] = []
        for ref in local:
            (ready if ref.kind != PENDING and len(ready) < num_returns else rest).append(ref)
        return ready, rest

    def _await(self, refs: Sequence[LocalRef], count: int, deadline: float | None) -> bool:
        """Wait until `count` of `refs` are completed. Return False if the deadline passed first."""
        tells = self._is_worker and threading.current_thread() is threading.main_thread()
        blocked = False
        try:
            while True:
                with InterruptGuard() as guard:
                    done = tells and self._await_briefly(refs, count, deadline, guard)
                    is_over = deadline is not None and SYSTEM.monotonic() >= deadline
                    if tells and not done and not guard.noted and not is_over:
                        tells, blocked = False, True
                        self.on_blocked(True)
                        self._lend(refs)
                    done = done or self._await_guarded(refs, count, deadline, guard)
                if not guard.noted:
                    return done
        finally:
            if blocked:
                self.on_blocked(False)
            self._take_back_cpus(refs)

    def _await_briefly(
        self, refs: Sequence[LocalRef], count: int, deadline: float | None, guard: InterruptGuard
    ) -> bool:
        """Wait briefly without lending CPUs, because most answers arrive soon.

        Return True if `count` references are done.

        The CPUs are lent at once if tasks of this process wait for a requested worker, which may need the
        CPUs.
        """
        now, call = SYSTEM.monotonic(), calling.get()
        if call != self._brief_call:
            self._brief_call, self._brief_left = call, _BRIEF_WAITS
        # Many short waits in a row must lend the CPUs too, so brief waits are counted.
        is_brief = deadline is None and self._brief_left > 0
        self._brief_left -= 1
        if not is_brief or self.asks_for_processes():
            if self._await_guarded(refs, count, now, guard):
                return True
            if not is_brief:
                return False
            self._lend(refs)
        return self._await_guarded(refs, count, now + _BRIEF_S, guard)

    @contextlib.contextmanager
    def lending(self) -> Iterator[None]:
        """Lend the CPUs of this process while its main thread waits for the background thread."""
        if not self._is_worker or threading.current_thread() is not threading.main_thread():
            yield
            return
        nothing: list[LocalRef] = []
        self.on_blocked(True)
        try:
            self._lend(nothing)
            yield
        finally:
            self.on_blocked(False)
            self._take_back_cpus(nothing)

    def _lend(self, refs: Sequence[LocalRef]) -> None:
        if self._lends and not self._lent_for:
            self._lent_for[id(refs)] = refs
            self._node.tell(Blocked(True))

    def lend_no_longer(self) -> None:
        """Take the lent CPUs back if the main thread's answer has arrived.

        This method is called before a lease is returned. Without this call, the node would grant the lease's
        CPUs to a different process, although this process is about to resume and needs CPUs itself.
        """
        for refs in list(self._lent_for.values()):
            if len(refs) == 1 and refs[0].kind != PENDING:
                self._take_back_cpus(refs)

    def _take_back_cpus(self, refs: Sequence[LocalRef]) -> None:
        if self._lent_for.pop(id(refs), None) is not None:
            self._node.tell(Blocked(False))

    def _await_guarded(
        self, refs: Sequence[LocalRef], count: int, deadline: float | None, guard: InterruptGuard
    ) -> bool:
        while not guard.noted:
            pending = [ref for ref in refs if ref.kind == PENDING]
            if len(refs) - len(pending) >= count:
                return True
            left = None if deadline is None else max(0.0, deadline - SYSTEM.monotonic())
            peer = pending[0].peer
            if peer is not None and peer.has_posted:
                peer.flush_if_open()
            if len(pending) == 1 and peer is not None and not peer.closed:
                peer.wait_until(functools.partial(_settled, pending[0], peer), left, guard)
            elif are_many(pending):
                await_many(pending, count - len(refs) + len(pending), left, guard, self._background)
            else:
                await_any(pending, left, guard)
            if deadline is not None and SYSTEM.monotonic() >= deadline:
                break
        return sum(ref.kind != PENDING for ref in refs) >= count

    def watch(self, ref: LocalRef) -> None:
        """Have the background thread read the answer of `ref`, as perhaps no other thread waits for it."""
        peer = ref.peer
        if peer is not None:
            self._background.watch(peer, ref)  # watching also keeps `ref` alive
            ref.when_done(functools.partial(self._background.unwatch, peer, ref))

    def when_all(self, refs: Sequence[LocalRef], then: Callable[[], None]) -> None:
        """Run the function `then` in the thread that reads the last missing answer.

        The list `refs` must not be empty.
        """
        left = itertools.count(len(refs) - 1, -1)  # next() is atomic, so one callback gets 0 and calls `then`
        for ref in refs:
            ref.when_done(lambda: then() if next(left) == 0 else None)
            self.watch(ref)


def pending(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[LocalRef]:
    """Return the arguments of a call that are pending references.

    References inside containers are ignored.
    """
    return [each for each in (*args, *kwargs.values()) if isinstance(each, LocalRef) and not each.done()]


def value_of(ref: LocalRef) -> Any:
    """Return the value of a completed reference, or raise its failure."""
    if ref.kind == ATOM:
        return ref.body
    if ref.kind == VALUE:
        return unpack(opened(ref.body))
    if ref.kind == FAILURE:
        mark_read(ref.body)
        raise raisable(unpack_failure(opened(ref.body)))
    raise ref.body()


def _look(refs: Sequence[LocalRef]) -> None:
    """Read the answers to `refs` that have arrived, without waiting."""
    with InterruptGuard():  # Ctrl-C between two frames would lose the second frame
        # `peer` is read once per reference, as another thread may complete the reference and set `peer` to
        # None.
        owing = {peer for ref in refs if (peer := ref.peer) is not None}
        poll, peers = select.poll(), {peer.fileno(): peer for peer in owing}
        peers.pop(-1, None)  # closed connections have the descriptor -1
        for fd, peer in peers.items():
            peer.flush_if_open()
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):  # one system call checks all connections
            peers[fd].try_read()


def _lateness(ref: LocalRef) -> str:
    """Return an error text that says which call has not ended, if the call's name is known."""
    body, peer = ref.body, ref.peer
    what = getattr(body, "what", None)  # only a `CallAwaitingArguments` has the attribute `what`
    if isinstance(body, Task):
        what = body.name
    elif peer is not None and peer.worker_id is not None:
        what = f"{peer.name}.{body}" if isinstance(body, str) else f"a call of {peer.name}"
    return "the result has not arrived yet" if what is None else f"{what} has not ended yet"


def asked_for(refs: Sequence[ObjectRef[Any]]) -> None:
    """Suppress reports of unread failures of `refs`.

    The user does not need these reports, because the caller has received a different failure or has cancelled
    the calls.
    """
    for ref in refs:
        if isinstance(ref, LocalRef):
            mark_read(owed := ref.body)
            if (peer := ref.peer) is not None:
                peer.asked_for(ref)
            if isinstance(owed, Task):
                owed.asked_for = True


def _settled(ref: LocalRef, peer: CallConnection) -> bool:
    """Return True if `ref` is completed, or if its answer will not arrive over `peer` any more."""
    return ref.kind != PENDING or ref.peer is not peer
