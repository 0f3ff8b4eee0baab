"""Object references, the connections that receive their answers, and the decision to retry a call."""

from __future__ import annotations

import contextlib
import functools
import pickle
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.errors import ObjectLostError, TaskError
from trainkit.runtime import serialize, session
from trainkit.runtime.failures import unpack_failure
from trainkit.runtime.local.memory.segments import opened
from trainkit.runtime.local.wire import channel
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.serialize import Packed

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


class Unread(Packed):
    """Packed failure that is reported when it is garbage-collected unread.

    Args:
        packed: the failure.
        dropped: function that receives a copy of the failure if it is garbage-collected unread.
    """

    __slots__ = ("_dropped",)

    def __init__(self, packed: Packed, dropped: Callable[[Packed], None]) -> None:
        super().__init__(packed.payload, packed.buffers, packed.handles, packed.stored, packed.writable)
        self._dropped: Callable[[Packed], None] | None = dropped

    def mark_read(self) -> None:
        """Mark the failure as read, so that it is not reported as unhandled."""
        self._dropped = None

    def __del__(self) -> None:
        if self._dropped is not None:
            self._dropped(Packed(self.payload, self.buffers, self.handles, self.stored))


def mark_read(body: Any) -> None:
    """Mark `body` as read if it is an `Unread` failure."""
    if isinstance(body, Unread):
        body.mark_read()


def is_own(cls: type) -> bool:
    """Return True if a class belongs to trainkit, so that trainkit handles the failures of the class's actors
    itself.
    """
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


PENDING = 0
LOST = -1  # state LOST: the answer will never arrive, and the body is a function that returns the error
ATOM = -2  # state ATOM: the body is the value itself, which is immutable

_MOST_CHUNKS = 64
"""Maximum number of chunks that are read from a connection at the end of the session."""


def current_client() -> Any:
    """Return the local engine of this process.

    Raises:
        ObjectLostError: the engine was shut down, or this process was forked from the engine's process.
    """
    engine = session.current()
    if engine is None or engine.name != "local":
        raise ObjectLostError("an actor or a reference was used after the session was shut down")
    engine.require_usable()
    return engine


class LocalRef(ObjectRef[Any]):
    """Reference that receives one answer.

    Attributes:
        peer: connection over which the answer will arrive; None while the task waits for a worker, and after
            the answer has arrived.
        kind: state of the reference: PENDING, VALUE, ATOM, FAILURE or LOST.
        body: the answer, whose form depends on `kind`; while pending, the task or the name of the method.
    """

    __slots__ = ("_callbacks", "body", "kind", "peer")

    def __init__(self, ref_id: int, peer: CallConnection | None) -> None:
        self.id = ref_id
        self.peer = peer
        self.kind = PENDING
        self.body: Any = None
        self._callbacks: list[Callable[[], None]] | None = None

    def __reduce__(self) -> Any:
        # Pickles that trainkit does not make itself contain the value instead of the reference.
        return session.put_again, (current_client().get([self], None)[0],)

    def attach(self, peer: CallConnection | None) -> None:
        """Set the connection over which the answer will arrive, before the call is sent or retried."""
        self.peer = peer

    def done(self) -> bool:
        """Return True if the answer has arrived or is known to be lost."""
        return self.kind != PENDING

    def complete(self, kind: int, body: Any) -> None:
        """Store the answer and run the callbacks that wait for it."""
        self.body = body
        self.kind = kind
        self.peer = None
        if self._callbacks is not None:
            self._run_callbacks()

    def item(self, body: Packed) -> None:
        """Receive one value of a streaming call."""
        raise TypeError(f"{self!r} takes one value, but several were sent")

    def future(self, into: Future[Any] | None = None) -> Future[Any]:
        future: Future[Any] = current_client().future(self, into)
        return future

    def as_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = current_client().awaited(self)
        return future

    def when_done(self, callback: Callable[[], None]) -> None:
        """Run `callback` once in the thread that reads the answer, or at once if the answer has arrived."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        # If the answer arrived meanwhile, two threads may run this code. The callback is called only by the
        # thread that has popped it.
        if self.kind != PENDING:
            self._run_callbacks()

    def forget(self, callback: Callable[[], None]) -> None:
        """Undo `when_done`; do nothing if the callback has run or is running."""
        if self._callbacks:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

    def _run_callbacks(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:  # another thread took the last callback
                return
            callback()


def fail(refs: Iterable[LocalRef], error: Callable[..., Exception], *args: Any) -> None:
    """Complete references whose answers will never arrive. Reading them raises `error(*args)`."""
    for ref in refs:
        ref.complete(LOST, functools.partial(error, *args) if args else error)


class CallConnection(channel.Connection):
    """Connection that sends calls and receives their answers.

    Args:
        sock: a connected socket, which this connection owns from now on.
        name: name of the process at the other end, for errors.
        worker_id: the node's id of the process at the other end; None if that process is not a worker.

    Attributes:
        takes_small_calls: True if small calls may be sent in batches.
        tells_failures: True if unhandled failures that arrive over this connection are reported.
    """

    takes_small_calls = True
    tells_failures = False

    def __init__(self, sock: socket.socket, name: str = "actor", worker_id: int | None = None) -> None:
        super().__init__(sock)
        self.name = name
        self.worker_id = worker_id
        self.home: str | None = None
        """Folder of the other process's session; None for this process's own session."""
        # Weak references let unused references be collected. A pending reference keeps its connection alive.
        self.pending: dict[int, weakref.ref[LocalRef]] = {}
        self._asked_for: set[int] = set()

    def request(self, kind: int, body: Packed, refs: list[LocalRef]) -> None:
        """Send a frame whose answers complete `refs`; the id of the first reference is the call's id."""
        pending = self.pending
        for ref in refs:
            pending[ref.id] = weakref.ref(ref)
        try:
            self.send(kind, refs[0].id, body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the other end has closed, which a thread that waits for the answer notices
        except BaseException:  # the call was not sent, and the caller gets the error
            self.forget([ref.id for ref in refs])
            raise
        if self.closed:  # the connection closed before these references were added
            self._fail_pending()

    def request_soon(self, ref: LocalRef, target: str | int, arguments: Any) -> None:
        """Send a small call, possibly in a batch with others.

        Args:
            ref: reference that receives the answer.
            target: name of the method, or id of the function's definition.
            arguments: packed arguments, see `serialize.lasting`.
        """
        self.pending[ref.id] = weakref.ref(ref)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.post((ref.id, target, arguments))
        if self.closed:
            self._fail_pending()

    def forget(self, refs: Iterable[int]) -> None:
        """Stop waiting for the answers with these ids."""
        for ref_id in refs:
            self.pending.pop(ref_id, None)

    def make_batch(self, entries: list[Any]) -> tuple[int, bytes]:
        return channel.CALLS, pickle.dumps(entries, serialize.PROTOCOL)

    def tick(self) -> None:
        current_client().background.tick(self)

    def on_frame(self, frame: channel.Frame) -> None:
        if frame.kind == channel.ANSWERS:
            self.on_answers(*pickle.loads(frame.body.payload))
            return
        if frame.kind == channel.ITEM:
            stream = self.pending.get(frame.call_id)
            target = None if stream is None else stream()
            if target is not None:
                target.item(frame.body)
            return
        call_id, body = frame.call_id, frame.body
        if frame.kind == channel.FAILURE and call_id in self.pending and call_id not in self._asked_for:
            # A failure without a reference is garbage-collected unread, and is thereby reported.
            body = self.failure(frame)
        self._asked_for.discard(call_id)
        self._complete(call_id, frame.kind, body)

    def _complete(self, call_id: int, kind: int, body: Any) -> None:
        """Complete the reference that waits for an answer, if the reference still exists."""
        waiting = self.pending.pop(call_id, None)
        ref = None if waiting is None else waiting()
        if ref is not None and ref.kind == PENDING:  # some results of a retried call are complete already
            ref.complete(kind, body)

    def failure(self, frame: channel.Frame) -> Packed:
        """Return the failure in `frame`, wrapped so that it is reported if it stays unread."""
        if not self.tells_failures or session.current() is None:
            return frame.body
        return Unread(frame.body, current_client().unread.dropped)

    def asked_for(self, ref: LocalRef) -> None:
        """Suppress the report of an unhandled failure of `ref`, which is pending."""
        # The id is added even if `pending` lacks it, as another thread may be completing the reference.
        self._asked_for.add(ref.id)

    def not_again(self, ref: LocalRef) -> None:
        """Do not retry a cancelled call when the process at the other end dies."""

    def read_out(self) -> None:
        """Process the data that has arrived, if any answer is pending, before the session ends."""
        if not self.pending or not self.reading.acquire(blocking=False):
            return
        try:
            for _ in range(_MOST_CHUNKS):
                if not self.read_available():
                    return
        finally:
            self.release_reading()

    def on_answers(
        self, ids: list[int], values: list[Any], pickled: list[tuple[int, bytes]], _: float
    ) -> None:
        """Complete the references of several small answers: `values` are immutable, `pickled` are pickles."""
        take = self.pending.pop
        if self._asked_for:
            self._asked_for.difference_update(ids, (call_id for call_id, _ in pickled))
        # `_complete` is inlined for speed, as immutable answers are the most frequent answers.
        for call_id, value in zip(ids, values, strict=True):
            waiting = take(call_id, None)
            ref = None if waiting is None else waiting()
            if ref is not None:
                ref.complete(ATOM, value)
        for call_id, payload in pickled:
            self._complete(call_id, channel.VALUE, Packed(payload))

    def on_close(self) -> None:
        self.close()
        self._fail_pending()

    def on_backlog(self) -> None:
        current_client().background.flush(self)

    def _fail_pending(self) -> None:
        while self.pending:
            try:
                ref = self.pending.popitem()[1]()
            except KeyError:
                return
            if ref is not None:
                ref.complete(LOST, self.lost)

    def lost(self) -> Exception:
        """Return the error for an answer that will never arrive."""
        error: Exception = current_client().death_of(self)
        return error

    def __del__(self) -> None:
        # When this method is called, no answer is pending, because a pending reference would keep this
        # connection alive.
        self.close_when_sent()


Verdict = Callable[[TaskError], bool]


def decide(peer: CallConnection, failure: Packed, refs: Sequence[LocalRef], made_again: Verdict) -> None:
    """Complete `refs` with their call's failure, unless the function `made_again` retries the call.

    A separate thread makes the decision. Unpickling the error runs user code, which may wait for other calls,
    so the thread that reads `peer` must not run the code. Until the decision, `refs` have no connection.
    """
    waiting = {ref.id: peer.pending.pop(ref.id) for ref in refs if ref.id in peer.pending}
    for ref in refs:
        ref.attach(None)

    def work() -> None:
        try:
            if made_again(unpack_failure(opened(failure))):
                return
        except BaseException as error:  # the user's code may raise any error, even SystemExit
            _fail(peer, refs, error)
            return
        peer.forget([ref.id for ref in refs])
        peer.pending.update(waiting)
        for ref_id in waiting:
            CallConnection.on_frame(peer, channel.Frame(channel.FAILURE, ref_id, failure))

    try:
        threading.Thread(target=work, name="trainkit-retry", daemon=True).start()
    except RuntimeError as error:  # the machine can start no further thread
        _fail(peer, refs, error)


def _fail(peer: CallConnection, refs: Sequence[LocalRef], error: BaseException) -> None:
    peer.forget([ref.id for ref in refs])
    reason = f"a call raised an exception, and its retry by retry_exceptions failed: {error!r}"
    fail([ref for ref in refs if not ref.done()], ObjectLostError, reason)
