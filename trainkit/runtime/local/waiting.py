"""`get` and `wait`: until what is owed is there, whoever reads it."""

from __future__ import annotations

import functools
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import GetTimeoutError, ObjectLostError
from trainkit.runtime.failures import raisable, unpack_failure
from trainkit.runtime.local.frames import FAILURE, VALUE
from trainkit.runtime.local.interrupt import InterruptGuard
from trainkit.runtime.local.leases import Task
from trainkit.runtime.local.messages import AwaitGroup, Blocked
from trainkit.runtime.local.nodelink import NodeLink
from trainkit.runtime.local.objects import opened
from trainkit.runtime.local.place import calling
from trainkit.runtime.local.pump import Pump
from trainkit.runtime.local.refs import ATOM, PENDING, LocalRef, Peer
from trainkit.runtime.local.select_any import are_many, await_any, await_many
from trainkit.runtime.local.unread import mark_read
from trainkit.runtime.serialize import unpack
from trainkit.runtime.specs import ObjectRef

_BRIEF_S = 0.01
_BRIEF_WAITS = 4
"""Of one call; what it waits for after so many may be what others can't begin before it lends."""


class Waiting:
    """Part of `client.LocalEngine`; see `trainkit.runtime.engine.Engine`.

    Args:
        lends: this process holds CPUs, which others may have while it waits.

    Attributes:
        on_blocked: called with True before the main thread of a worker waits for what is not there, and
            with False afterwards.
    """

    link: NodeLink
    pump: Pump

    def __init__(self, *, lends: bool) -> None:
        self._lends = lends
        self.on_blocked: Callable[[bool], None] = lambda _: None
        self._brief_call: tuple[Any, ...] = ()
        self._brief_left = _BRIEF_WAITS
        self._lent_for: dict[int, Sequence[LocalRef]] = {}
        """The references that the lender waits for, by `id`: only that wait takes the CPUs back."""

    @abstractmethod
    def asks_for_processes(self) -> bool:
        """Return whether tasks of this process wait for one that it has asked for."""

    @property
    @abstractmethod
    def is_worker(self) -> bool:
        """See `Engine`."""

    def get(self, refs: Sequence[ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else SYSTEM.monotonic() + timeout_s
        values = []
        for ref in refs:
            if not isinstance(ref, LocalRef):
                raise ObjectLostError(f"{ref!r} belongs to another engine or session")
            if ref.kind == PENDING and not self._await([ref], 1, deadline):
                raise GetTimeoutError(f"get(timeout={timeout_s}): the result is not there yet")
            try:
                values.append(self._value(ref))
            except BaseException:
                if len(refs) > 1:
                    _asked_for(refs)
                raise
        return values

    def _value(self, ref: LocalRef) -> Any:
        if ref.kind == ATOM:
            return ref.body
        if ref.kind == VALUE:
            return unpack(opened(ref.body))
        if ref.kind == FAILURE:
            mark_read(ref.body)
            raise raisable(unpack_failure(opened(ref.body)))
        raise ref.body()

    def get_without_lending(self, ref: LocalRef) -> Any:
        """Return the value of `ref`, and lend no CPU meanwhile, as no call has to run for it."""
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
        self._await(local, num_returns, None if timeout_s is None else SYSTEM.monotonic() + timeout_s)
        ready: list[ObjectRef[Any]] = []
        rest: list[ObjectRef[Any]] = []
        for ref in local:
            (ready if ref.kind != PENDING and len(ready) < num_returns else rest).append(ref)
        return ready, rest

    def _await(self, refs: Sequence[LocalRef], count: int, deadline: float | None) -> bool:
        """Wait until `count` of `refs` are done; False if the deadline came first."""
        tells = self.is_worker and threading.current_thread() is threading.main_thread()
        blocked = False
        try:
            while True:
                with InterruptGuard() as guard:
                    done = tells and self._await_briefly(refs, count, deadline, guard)
                    if tells and not done and not guard.noted and not _is_over(deadline):
                        tells, blocked = False, True
                        self.on_blocked(True)
                        self._lend(refs)
                    done = done or self._await_guarded(refs, count, deadline, guard)
                if not guard.noted:
                    return done
                guard.act()
        finally:
            if blocked:
                self.on_blocked(False)
            self._take_back_cpus(refs)

    def _await_briefly(
        self, refs: Sequence[LocalRef], count: int, deadline: float | None, guard: InterruptGuard
    ) -> bool:
        """Wait for what is there, or about to come: a wait so short is not worth telling others.

        The CPUs are lent at once if it is this process that lacks them to go on.
        """
        now, call = SYSTEM.monotonic(), calling.get()
        if call != self._brief_call:
            self._brief_call, self._brief_left = call, _BRIEF_WAITS
        is_brief = deadline is None and self._brief_left > 0  # a loop of short waits must lend, too
        self._brief_left -= 1
        if not is_brief or self.asks_for_processes():
            if self._await_guarded(refs, count, now, guard):
                return True
            if not is_brief:
                return False
            self._lend(refs)
        return self._await_guarded(refs, count, now + _BRIEF_S, guard)

    def _lend(self, refs: Sequence[LocalRef]) -> None:
        if self._lends and not self._lent_for:
            self._lent_for[id(refs)] = refs
            self.link.tell(Blocked(True))

    def lend_no_longer(self) -> None:
        """Take the CPUs back that are lent, if what the main thread waits for is there.

        Who returns a lease does so first: else what the lease held goes to somebody who would begin
        something new, though this process is about to go on.
        """
        for refs in list(self._lent_for.values()):
            if len(refs) == 1 and refs[0].kind != PENDING:
                self._take_back_cpus(refs)

    def _take_back_cpus(self, refs: Sequence[LocalRef]) -> None:
        if self._lent_for.pop(id(refs), None) is not None:
            self.link.tell(Blocked(False))

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
                peer.wait_until(functools.partial(_settled, pending[0], peer), left, SYSTEM.monotonic, guard)
            elif are_many(pending):
                await_many(pending, count - len(refs) + len(pending), left, guard, self.pump)
            else:
                await_any(pending, left, guard)
            if deadline is not None and SYSTEM.monotonic() >= deadline:
                break
        return sum(ref.kind != PENDING for ref in refs) >= count

    def group_ref(self, group: int) -> ObjectRef[Any]:
        return self.link.ask(AwaitGroup(group))

    def await_group(self, group: int, timeout_s: float | None) -> bool:
        try:
            self.get([self.group_ref(group)], timeout_s)
        except GetTimeoutError:
            return False
        return True


def _asked_for(refs: Sequence[ObjectRef[Any]]) -> None:
    """Note that failures of `refs` are no news: who asked for all of them was told of the first one."""
    for ref in refs:
        if isinstance(ref, LocalRef):
            peer, owed = ref.peer, ref.body
            mark_read(owed)
            if peer is not None:
                peer.asked_for(ref)
            if isinstance(owed, Task):
                owed.asked_for = True


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and SYSTEM.monotonic() >= deadline


def _settled(ref: LocalRef, peer: Peer) -> bool:
    """Whether it is pointless to read `peer` for `ref`: it is done, or is owed by another one now."""
    return ref.kind != PENDING or ref.peer is not peer
