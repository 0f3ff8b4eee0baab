"""Control of calls on their way: cancellation, and futures of their results."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainkit.errors import ConfigError, NodeDiedError, ObjectLostError
from trainkit.runtime.context import address_info
from trainkit.runtime.local.client.actors import ActorConnection, HeldCall, SentCall
from trainkit.runtime.local.client.background import BackgroundThread
from trainkit.runtime.local.client.context import ActorExit, ProcessContext
from trainkit.runtime.local.client.leases import Task
from trainkit.runtime.local.client.node_client import Ids, NodeClient
from trainkit.runtime.local.client.refs import LocalRef, PromiseReceiver
from trainkit.runtime.local.client.streams import LocalStream, StreamRef
from trainkit.runtime.local.wire import sessions
from trainkit.runtime.local.wire.messages import Cancel, CancelOwed
from trainkit.runtime.signals import InterruptGuard
from trainkit.runtime.specs import Interface, ObjectRef, WhereAmI
from trainkit.runtime.streams import Callbacks, ref_future

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


class CallControl:
    """A part of `LocalEngine`.

    Attributes:
        place: this process's in the session.
        started: calls that the running task has made, if this process runs tasks; see `cancel_started`.
        holding: connections to actors that hold calls back, which wait for their arguments.
        own_handle: makes what a handle of this process's actor holds; None in other processes.
    """

    link: NodeClient
    pump: BackgroundThread
    place: ProcessContext
    mark: str
    started: weakref.WeakSet[LocalRef] | None = None
    own_handle: Callable[[], tuple[Any, Interface]] | None = None
    _ids: Ids
    _serial: int

    def __init__(self) -> None:
        self._unsettled: set[Future[Any]] = set()
        self._callbacks = Callbacks()
        self.holding: set[ActorConnection] = set()
        self._promised: weakref.WeakValueDictionary[int, LocalRef] = weakref.WeakValueDictionary()

    if TYPE_CHECKING:

        def wait(
            self, refs: Sequence[ObjectRef[Any]], num_returns: int, timeout_s: float | None
        ) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]: ...
        def _value(self, ref: LocalRef) -> Any: ...

    def _started(self, refs: list[LocalRef], num_returns: int) -> list[Any]:
        """What the maker of a call is given for its results."""
        if self.started is not None:
            self.started.add(refs[0])
        if isinstance(refs[0], StreamRef):
            return [LocalStream(self, refs[0])]
        return list(refs) if num_returns else []

    # stopping calls

    def cancel(self, ref: Any, force: bool, recursive: bool) -> None:
        call = ref.call if isinstance(ref, LocalStream) else ref
        if not isinstance(call, LocalRef):
            raise ObjectLostError(f"{ref!r} belongs to another engine or session")
        held = call.body
        if isinstance(held, HeldCall):
            self._refuse_force(force)
            with InterruptGuard() as guard:
                withdrawn = held.peer.withdraw(held)
            if guard.noted:
                guard.act()
            if withdrawn:
                return
        peer, owed_by = call.peer, call.body
        if isinstance(owed_by, SentCall):  # it raised
            self._refuse_force(force)
            owed_by.cancelled = True
        peer = peer or call.peer  # it may have been made again just now
        if call.done():
            return
        if isinstance(owed_by, Task):
            with InterruptGuard() as guard:  # a task that is out of the queue has to be completed
                owed_by.pool.cancel(owed_by, force, recursive)
            if guard.noted:
                guard.act()
        elif isinstance(peer, PromiseReceiver):
            self._refuse_force(force and not peer.owed_by_task)
            self._cancel_abroad(peer.home, CancelOwed(self._ids.maker_of(call.id), call.id, force, recursive))
        elif peer is not None and peer.worker_id is not None:
            self._refuse_force(force)
            self.link.tell(Cancel(peer.worker_id, self._ids.call_of(call.id), recursive))
        elif not call.done() and not isinstance(owed_by, SentCall):
            raise ConfigError(f"{ref!r} is not the result of a call, so there is nothing to cancel")

    def _refuse_force(self, force: bool) -> None:
        if force:
            raise ConfigError(
                "cancel(force=True) is for tasks: an actor's process has other calls too; use "
                "trainkit.kill() to end it with all of them"
            )

    def _cancel_abroad(self, home: str | None, message: CancelOwed) -> None:
        """Have the process stop a call that made it, in this session or in the one with the mark `home`."""
        if home in (None, self.mark):
            self.link.tell(message)
        else:
            with (
                contextlib.suppress(NodeDiedError),
                sessions.connect(Path(home)) as node,
            ):  # else it has ended
                node.tell(message)

    def is_task(self, ref: LocalRef) -> bool:
        """Return whether a task of this process owes `ref`."""
        return isinstance(ref.body, Task)

    def promise(self, ref: LocalRef) -> None:
        """Let another process cancel the call that owes `ref`."""
        self._promised[ref.id] = ref
        self.pump.watch(self.link, "promises")

    def cancel_owed(self, message: CancelOwed) -> None:
        """Stop a call as another process asks, if its result is not there yet."""
        ref = self._promised.get(message.ref_id)
        if ref is not None:
            self.cancel(ref, message.force, message.recursive)

    def cancel_started(self) -> None:
        """Cancel what the running task has started and not yet got."""
        for ref in list(self.started or ()):
            self.cancel(ref, False, True)

    def abandon(self, call: LocalRef) -> None:
        """Stop a call whose results nobody can ask for any more; may be called in any `__del__`."""
        if not self.link.closing and not self.link.closed:
            self.pump.run(lambda: self.cancel(call, False, True))

    def exit_actor(self) -> NoReturn:
        if self.place.actor_id is None:
            raise ConfigError("exit_actor() was called outside an actor; a task ends by returning")
        raise ActorExit

    def where_am_i(self) -> WhereAmI:
        return self.place.seen_by(self._serial, self.mark)

    def current_actor(self) -> tuple[Any, Interface] | None:
        return None if self.own_handle is None else self.own_handle()

    def address_info(self) -> dict[str, Any]:
        return address_info(self.where_am_i().node_id, self.mark)

    # being told of their end

    def future(self, ref: LocalRef) -> Future[Any]:
        """A future of the value, which can't be cancelled: others may wait for the same reference."""
        return self._when_done(ref, self._value, ref_future(self.pump, self._callbacks))

    def awaited(self, ref: LocalRef) -> asyncio.Future[Any]:
        """Awaitable of the value."""
        import asyncio

        return asyncio.wrap_future(self._when_done(ref, self._value))

    def arrival(self, ref: LocalRef) -> asyncio.Future[None]:
        """Awaitable until `ref` is done."""
        import asyncio

        return asyncio.wrap_future(self._when_done(ref, lambda _: None))

    def _when_done(
        self, ref: LocalRef, result: Callable[[LocalRef], Any], future: Future[Any] | None = None
    ) -> Future[Any]:
        """A future of `result(ref)`, called in the pump's thread once `ref` is done: whoever finds an
        answer may hold what rebuilding it needs, and to say why one is lost the node is asked.
        """
        from concurrent.futures import Future

        future = future or Future()
        future.set_running_or_notify_cancel()
        self._unsettled.add(future)

        def settle() -> None:
            try:
                value = result(ref)
            except BaseException as error:
                self._settle(future, functools.partial(future.set_exception, error))
            else:
                self._settle(future, functools.partial(future.set_result, value))

        ref.when_done(lambda: self.pump.run(settle))
        self.watch(ref)
        return future

    def watch(self, ref: LocalRef) -> None:
        """See to it that `ref`'s answer is read although no thread may be waiting for it."""
        peer = ref.peer
        if peer is not None:
            self.pump.watch(peer, ref)  # which also keeps it, if nobody else does
            ref.when_done(functools.partial(self.pump.unwatch, peer, ref))

    def when_all(self, refs: Sequence[LocalRef], then: Callable[[], None]) -> None:
        """Run `then` when all of `refs`, at least one, are done, in the thread that finds the last."""
        left = itertools.count(len(refs) - 1, -1)  # next() is atomic, so exactly one callback sees 0
        for ref in refs:
            ref.when_done(lambda: then() if next(left) == 0 else None)
            self.watch(ref)

    def _settle(self, future: Future[Any], by: Callable[[], None]) -> None:
        if future in self._unsettled:
            self._unsettled.discard(future)
            by()

    def _fail_futures(self) -> None:
        """The session is over: what has not come will not."""
        for future in list(self._unsettled):
            self._settle(future, functools.partial(future.set_exception, self.link.gone()))
