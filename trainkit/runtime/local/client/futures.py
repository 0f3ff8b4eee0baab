"""Futures, streams and cancellation of unfinished calls.

    worker ──ITEM──ITEM──VALUE──▶ StreamRef ──▶ items: done, done, pending ──▶ LocalStream ──▶ user

The reference of a streaming call represents the end of the stream. Each value of the stream has its own
reference. The last reference in the stream is always pending, and a reader that is faster than the generator
waits for it. A slow reader does not slow the generator down, as arrived values are kept in this process.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError, ObjectLostError
from trainkit.runtime import serialize
from trainkit.runtime.calls.futures import Callbacks, ref_future
from trainkit.runtime.local.client.actors import CallAwaitingArguments, SentCall
from trainkit.runtime.local.client.background import BackgroundThread
from trainkit.runtime.local.client.leases import Task
from trainkit.runtime.local.client.node_client import Ids, NodeClient
from trainkit.runtime.local.client.promises import PromiseReceiver, reduce_ref
from trainkit.runtime.local.client.refs import PENDING, CallConnection, LocalRef
from trainkit.runtime.local.client.waiting import Waiter, asked_for, value_of
from trainkit.runtime.local.wire.channel import VALUE
from trainkit.runtime.local.wire.messages import Cancel
from trainkit.runtime.refs import ObjectRef, ObjectRefGenerator
from trainkit.runtime.serialize import Packed
from trainkit.runtime.signals import InterruptGuard
from trainkit.runtime.specs import DYNAMIC, STREAMING

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


@dataclass(slots=True, eq=False)
class _Owed:
    """Callback that completes a future when the future's result arrives.

    The class has slots because the garbage collector may have to visit thousands of these objects.
    """

    future: Future[Any]
    ref: LocalRef
    result: Callable[[LocalRef], Any]
    arrive: Callable[[_Owed], None]

    def __call__(self) -> None:
        self.arrive(self)


class Futures:
    """Factory of futures for results. The background thread completes the futures.

    Args:
        background: background thread, which completes the futures.
        waiter: object that makes the background thread read the answers.
    """

    def __init__(self, background: BackgroundThread, waiter: Waiter) -> None:
        self._background = background
        self._waiter = waiter
        self._unsettled: set[Future[Any]] = set()
        self._callbacks = Callbacks()
        self._arrived: deque[_Owed] = deque()
        self._is_asked = False

    def future(self, ref: LocalRef, into: Future[Any] | None = None) -> Future[Any]:
        """Return a future of the value. The future can't be cancelled, as others may wait for the same value.

        Args:
            ref: the reference to the value.
            into: future, already marked as running, to complete instead of a new future; its callbacks must
                not block.
        """
        return self._when_done(ref, value_of, into or _running(ref_future(self._background, self._callbacks)))

    def awaited(self, ref: LocalRef, result: Callable[[LocalRef], Any] = value_of) -> asyncio.Future[Any]:
        """Return an asyncio future of the value of `ref`, or of `result(ref)` once `ref` is done."""
        import asyncio

        return asyncio.wrap_future(self._when_done(ref, result))

    def _when_done(
        self, ref: LocalRef, result: Callable[[LocalRef], Any], future: Future[Any] | None = None
    ) -> Future[Any]:
        """Return a future of `result(ref)`, which is called in the background thread once `ref` is done.

        `result` may need locks, to unpack the answer or to ask the node why the answer is lost. The thread
        that reads the answer may hold these locks, so a different thread calls `result`.
        """
        if future is None:
            from concurrent.futures import Future

            future = _running(Future())
        self._unsettled.add(future)
        ref.when_done(_Owed(future, ref, result, self._arrive))
        self._waiter.watch(ref)
        return future

    def _arrive(self, owed: _Owed) -> None:
        self._arrived.append(owed)
        if not self._is_asked:
            self._is_asked = True
            self._background.run(self._settle_arrived)

    def _settle_arrived(self) -> None:
        """Complete all futures whose results have arrived."""
        self._is_asked = False  # the flag is reset first, so that later results start another job
        try:
            for _ in range(len(self._arrived)):
                owed = self._arrived.popleft()
                try:
                    value = owed.result(owed.ref)
                except BaseException as error:
                    self._settle(owed.future, owed.future.set_exception, error)
                else:
                    self._settle(owed.future, owed.future.set_result, value)
        finally:
            if self._arrived and not self._is_asked:
                self._is_asked = True
                self._background.run(self._settle_arrived)

    def _settle(self, future: Future[Any], by: Callable[[Any], None], what: Any) -> None:
        if future in self._unsettled:
            self._unsettled.discard(future)
            by(what)

    def fail(self, error: Exception) -> None:
        """Fail all incomplete futures, at the end of the session."""
        for future in list(self._unsettled):
            self._settle(future, future.set_exception, error)


def _running(future: Future[Any]) -> Future[Any]:
    future.set_running_or_notify_cancel()
    return future


ENDED = -3
"""Value of `kind` for the last reference of a stream that has ended.

No value will arrive for this reference.
"""


class StreamRef(LocalRef):
    """Reference of a streaming call: receives the values, and is done when the remote generator has ended.

    A retried call yields earlier values again; these repeated values are ignored.

    Attributes:
        items: references to the values not yet taken by the reader, then the reference to the next value.
    """

    __slots__ = ("_arrived", "_new_id", "_repeated", "items")

    def __init__(self, ref_id: int, new_id: Callable[[], int]) -> None:
        self._new_id = new_id
        self._arrived = self._repeated = 0
        self.items: deque[LocalRef] = deque([LocalRef(new_id(), None)])
        super().__init__(ref_id, None)

    def attach(self, peer: CallConnection | None) -> None:
        super().attach(peer)
        self.items[-1].peer = peer
        self._repeated = self._arrived

    def item(self, body: Packed) -> None:
        if self._repeated:
            self._repeated -= 1
            return
        self._arrived += 1
        arrived = self.items[-1]
        self.items.append(LocalRef(self._new_id(), self.peer))
        arrived.complete(VALUE, body)

    def take_first(self) -> None:
        """Remove the first item, which a reader has taken."""
        self.items.popleft()

    def complete(self, kind: int, body: Any) -> None:
        # A failure takes the place of the stream's next value. A normal end marks the last item as `ENDED`.
        self.items[-1].complete(ENDED if kind == VALUE else kind, body)
        super().complete(kind, body)


class LocalStream(ObjectRefGenerator[Any]):
    """Stream of the results of one call.

    When the stream is garbage-collected, the remote generator is stopped.

    Args:
        call: reference of the streaming call itself.
        waiter: object that waits for the next value in `__next__`.
        futures: factory of the awaitables that `__anext__` waits for.
        abandon: function that stops the call.
    """

    def __init__(
        self, call: StreamRef, waiter: Waiter, futures: Futures, abandon: Callable[[LocalRef], None]
    ) -> None:
        self.call = call
        self._waiter = waiter
        self._futures = futures
        self._abandon = abandon
        self._taking = threading.Lock()
        self._runs_to_its_end = False

    def __reduce__(self) -> Any:
        raise TypeError("a generator of references can't be sent to other processes: send its references")

    def __next__(self) -> ObjectRef[Any]:
        while True:
            front = self._front()
            if front is None:
                raise StopIteration
            if front.kind == PENDING:
                self._waiter.wait([front], 1, None)
            elif self._take(front):
                return front

    async def __anext__(self) -> ObjectRef[Any]:
        while True:
            front = self._front()
            if front is None:
                raise StopAsyncIteration
            if front.kind == PENDING:
                await self._futures.awaited(front, LocalRef.done)
            elif self._take(front):
                return front

    def _front(self) -> LocalRef | None:
        """Return the next value's reference; None after the last value."""
        try:
            front = self.call.items[0]
        except IndexError:  # the failure that ended the stream was already taken
            return None
        return None if front.kind == ENDED else front

    def _take(self, front: LocalRef) -> bool:
        """Remove the first item `front`; return False if another thread has removed the item."""
        with self._taking:
            if not self.call.items or self.call.items[0] is not front:
                return False
            self.call.take_first()
            return True

    def upcoming(self) -> ObjectRef[Any]:
        return self._front() or self.call

    def completed(self) -> ObjectRef[None]:
        """Return a reference to the end of the stream, and let the remote generator run to its end."""
        self._runs_to_its_end = True
        return self.call

    def hex(self) -> str:
        return self.call.hex()

    def __del__(self) -> None:
        if not self._runs_to_its_end and not self.call.done():
            self._abandon(self.call)


class CallControl:
    """Cancellation of unfinished calls.

    Args:
        node: client of the node, which forwards cancellations to the processes that run the calls.
        background: background thread, which stops calls whose streams were garbage-collected.
        ids: generator of the ids of this process's references and calls.
    """

    def __init__(self, node: NodeClient, background: BackgroundThread, ids: Ids) -> None:
        self._node = node
        self._background = background
        self._ids = ids

    def cancel(self, ref: Any, force: bool, recursive: bool) -> None:
        call = ref.call if isinstance(ref, LocalStream) else ref
        if not isinstance(call, LocalRef):
            raise ObjectLostError(f"{ref!r} belongs to another engine or session")
        self._stop(call, force, recursive)
        asked_for([call])  # the failure counts as read, so that it is not reported as unhandled

    def _stop(self, call: LocalRef, force: bool, recursive: bool) -> None:
        held = call.body
        if isinstance(held, CallAwaitingArguments):
            self._refuse_force(force)
            with InterruptGuard():
                withdrawn = held.peer.withdraw(held)
            if withdrawn:
                return
        peer, owed_by = call.peer, call.body
        if isinstance(owed_by, SentCall):  # the call has raised an exception, and its retry is being decided
            self._refuse_force(force)
            owed_by.cancelled = True
        peer = peer or call.peer  # the call may have been retried just now, and then has a connection again
        if call.done():
            return
        if isinstance(owed_by, Task):
            with InterruptGuard():  # Ctrl-C must not leave a task that is neither queued nor completed.
                owed_by.pool.cancel(owed_by, force, recursive)
        elif isinstance(peer, PromiseReceiver):
            self._refuse_force(force and not peer.owed_by_task)
            peer.cancel(force, recursive)
        elif peer is not None and peer.worker_id is not None:
            self._refuse_force(force)
            peer.not_again(call)
            self._node.tell(Cancel(peer.worker_id, self._ids.call_of(call.id), recursive))
        elif not call.done() and not isinstance(owed_by, SentCall):
            raise ConfigError(f"{call!r} is not the result of a call, so there is nothing to cancel")

    def _refuse_force(self, force: bool) -> None:
        if force:
            raise ConfigError("cancel(force=True) is only for tasks: kill() ends an actor with all its calls")

    def abandon(self, call: LocalRef) -> None:
        """Stop a call whose results are unreachable; safe to call in any `__del__`."""
        if not self._node.closing and not self._node.closed:
            self._background.run(lambda: self._stop(call, False, True))


class Results:
    """Factory of references to the results of this process's calls.

    Args:
        ids: generator of the ids of this process's references and calls.
        waiter: object that waits for results.
        futures: factory of futures for results.
        control: object that cancels calls.

    Attributes:
        new_id: function that returns an id that is unique in the session.
        started: references to the calls that the running task has made; None if this process runs no tasks.
    """

    def __init__(self, ids: Ids, waiter: Waiter, futures: Futures, control: CallControl) -> None:
        self._ids = ids
        self._waiter = waiter
        self._futures = futures
        self._control = control
        self.new_id = ids.next
        self.started: weakref.WeakSet[LocalRef] | None = None

    def cancel_started(self) -> None:
        """Cancel the unfinished calls that the running task has made."""
        for ref in list(self.started or ()):
            self._control.cancel(ref, False, True)

    def new(self, count: int, conn: CallConnection | None) -> list[LocalRef]:
        """Return new references for the results of a call with `num_returns=count`.

        `conn` is the connection for the call, or None if no connection is known yet.
        """
        if count == 1 or count in (0, DYNAMIC):
            return [LocalRef(self.new_id(), conn)]
        if count == STREAMING:
            stream: LocalRef = StreamRef(self.new_id(), self.new_id)
            stream.attach(conn)
            return [stream]
        return [LocalRef(number, conn) for number in self._ids.block(count)]

    def handed_out(self, refs: list[LocalRef], num_returns: int) -> list[Any]:
        """Return the list that the caller receives for `refs`: the references themselves, or a stream."""
        if self.started is not None:
            self.started.add(refs[0])
        if isinstance(refs[0], StreamRef):
            return [LocalStream(refs[0], self._waiter, self._futures, self._control.abandon)]
        return list(refs) if num_returns else []


serialize.register(StreamRef, reduce_ref)
