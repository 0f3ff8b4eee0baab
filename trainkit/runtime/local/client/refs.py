"""References, the connections their answers come over, and failures that nobody asks for."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from trainkit import settings
from trainkit.clock import SYSTEM
from trainkit.errors import ActorDiedError, ObjectLostError, TaskCancelledError
from trainkit.runtime import serialize, session
from trainkit.runtime.failures import unpack_failure
from trainkit.runtime.local.memory.segments import opened
from trainkit.runtime.local.wire import channel
from trainkit.runtime.local.wire.batching import BatchingConnection
from trainkit.runtime.serialize import Packed
from trainkit.runtime.specs import ObjectRef

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


logger = logging.getLogger("trainkit")

_WINDOW_S = 5.0
_MOST = 3
"""So many failures are shown within a window; the rest are counted."""
_MOST_KEPT = 1_000


class Unread(Packed):
    """A packed failure that is told of when it is dropped, unless somebody has read it before.

    Args:
        packed: the failure.
        dropped: takes it when it is dropped unread.
    """

    __slots__ = ("_dropped",)

    def __init__(self, packed: Packed, dropped: Callable[[Packed], None]) -> None:
        super().__init__(packed.payload, packed.buffers, packed.handles, packed.stored, packed.writable)
        self._dropped: Callable[[Packed], None] | None = dropped

    def mark_read(self) -> None:
        """Note that somebody has asked for it, or was sent it."""
        self._dropped = None

    def __del__(self) -> None:
        if self._dropped is not None:
            self._dropped(Packed(self.payload, self.buffers, self.handles, self.stored))


def mark_read(body: Any) -> None:
    """Note that the failure of a call has been asked for; others' bodies are left alone."""
    if isinstance(body, Unread):
        body.mark_read()


class UnreadFailures:
    """Shows the failures of a process's calls that nobody asked for.

    Args:
        run_soon: calls a function in a moment, in a thread in which user code may run.
    """

    def __init__(self, run_soon: Callable[[Callable[[], None]], None]) -> None:
        self._run_soon = run_soon
        self._lock = threading.RLock()  # a collection under it may drop one more
        self._dropped: list[Packed] = []
        self._since = SYSTEM.monotonic()
        self._shown: set[str] = set()
        self._not_shown = 0
        self._is_asked_for = False
        self._is_over = False
        self._pid = os.getpid()

    def dropped(self, failure: Packed) -> None:
        """Take a failure that was dropped unread; called in any `__del__`, so it is shown elsewhere."""
        is_copy = self._pid != os.getpid()  # forked: the failure is its parent's to show
        if self._is_over or is_copy or sys.is_finalizing() or not settings.tells_unhandled_errors():
            return
        with self._lock:
            if len(self._dropped) < _MOST_KEPT:
                self._dropped.append(failure)
            is_asked_for, self._is_asked_for = self._is_asked_for, True
        if not is_asked_for:
            self._run_soon(self.show)

    def show(self) -> None:
        """Show what was dropped, or count it if enough was shown within the last seconds."""
        now = SYSTEM.monotonic()
        if now - self._since >= _WINDOW_S:
            self._show_count()
            self._since, self._shown = now, set()
        with self._lock:
            dropped, self._dropped = self._dropped, []
            self._is_asked_for = False
        for failure in dropped:
            text = _text_of(failure)
            if text is None:
                continue
            if text in self._shown or len(self._shown) >= _MOST:
                self._not_shown += 1
                continue
            self._shown.add(text)
            logger.error("Unhandled error (suppress with %s=1): %s", settings.IGNORE_UNHANDLED_ERRORS, text)

    def finish(self) -> None:
        """Show what is left; nothing is taken any more."""
        self.show()
        self._show_count()
        self._is_over = True

    def _show_count(self) -> None:
        count, self._not_shown = self._not_shown, 0
        if count:
            logger.error(
                "Unhandled errors: at least %d more calls failed, and nobody asked for their results", count
            )


def _text_of(failure: Packed) -> str | None:
    """The traceback of a failure; None if somebody has ended the call, or its actor, on purpose."""
    try:
        error = unpack_failure(opened(failure))
    except Exception as problem:  # what the user's exceptions are rebuilt by may do anything
        return f"a call raised, and its exception cannot be rebuilt here: {problem}"
    if isinstance(error, ActorDiedError) or isinstance(error.cause, (ActorDiedError, TaskCancelledError)):
        return None
    return error.remote_traceback


def is_own(cls: type) -> bool:
    """Return whether a class is one of trainkit's own, whose makers deal with its failures."""
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


PENDING = 0
LOST = -1  # the other end is gone; the body is a function that makes the error
ATOM = -2  # the body is the value itself, which can't be changed

_MOST_CHUNKS = 64
"""The most chunks that are read from a connection at the end of the session."""


def current_client() -> Any:
    """Return the local engine that the handles which arrive in this process belong to.

    Raises:
        ObjectLostError: it was shut down, or this process was forked from its own.
    """
    engine = session.current()
    if engine is None or engine.name != "local":
        raise ObjectLostError("an actor or a reference was used after the session was shut down")
    engine.require_usable()
    return engine


class LocalRef(ObjectRef[Any]):
    """Where one answer arrives.

    Attributes:
        peer: over which it will arrive; None while its task waits for a worker, or once it is there.
        kind: PENDING, VALUE, ATOM, FAILURE or LOST.
        body: the answer, see `kind`; while a task or an actor owes it, that task or the method's name.
    """

    __slots__ = ("_callbacks", "body", "kind", "peer")

    def __init__(self, ref_id: int, peer: CallConnection | None) -> None:
        self.id = ref_id
        self.peer = peer
        self.kind = PENDING
        self.body: Any = None
        self._callbacks: list[Callable[[], None]] | None = None

    def __reduce__(self) -> Any:
        return session.put_again, (current_client().get([self], None)[0],)  # by hand, so with its value

    def attach(self, peer: CallConnection | None) -> None:
        """Say over which connection the answer will come: a call is about to be made, or made again."""
        self.peer = peer

    def done(self) -> bool:
        """Return True if the answer, or the reason why there is none, is there."""
        return self.kind != PENDING

    def complete(self, kind: int, body: Any) -> None:
        """Put the answer in place and run what waits for it."""
        self.body = body
        self.kind = kind
        self.peer = None
        if self._callbacks is not None:
            self._run_callbacks()

    def item(self, body: Packed) -> None:
        """Take one of the values of a streaming call."""
        raise TypeError(f"{self!r} stands for one value, but several were sent")

    def future(self, into: Future[Any] | None = None) -> Future[Any]:
        future: Future[Any] = current_client().future(self, into)
        return future

    def as_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = current_client().awaited(self)
        return future

    def when_done(self, callback: Callable[[], None]) -> None:
        """Run `callback` once, when the answer is there, in the thread that finds it; at once if it is."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        # If the answer came in between, whoever pops the callback first runs it, once.
        if self.kind != PENDING:
            self._run_callbacks()

    def forget(self, callback: Callable[[], None]) -> None:
        """Undo `when_done`; without effect if the callback has run, or is running."""
        if self._callbacks:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

    def _run_callbacks(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:  # another thread took the last one
                return
            callback()


def fail(refs: Iterable[LocalRef], kind: type[Exception], reason: str) -> None:
    """Complete references whose answers will never come."""
    for ref in refs:
        ref.complete(LOST, functools.partial(kind, reason))


class CallConnection(BatchingConnection):
    """A connection over which calls go out and answers come back.

    Args:
        sock: connected; owned from here on.
        name: of what is at the other end, for errors.
        worker_id: by which the node knows it; None if it is no worker.

    Attributes:
        takes_small_calls: a call that goes with others need not be known by itself.
        tells_failures: a failure that arrives here and that nobody asks for is shown.
    """

    takes_small_calls = True
    tells_failures = False

    def __init__(self, sock: socket.socket, name: str = "actor", worker_id: int | None = None) -> None:
        super().__init__(sock)
        self.name = name
        self.worker_id = worker_id
        self.home: str | None = None
        """The mark of the session that it is in; None for this process's own."""
        # Weak, as a pending reference holds its peer: what nobody waits for any more may go.
        self.pending: dict[int, weakref.ref[LocalRef]] = {}
        self._asked_for: set[int] = set()

    def request(self, kind: int, body: Packed, refs: list[LocalRef]) -> None:
        """Send a frame whose answers are `refs`; the first one's id is the call's."""
        pending = self.pending
        for ref in refs:
            pending[ref.id] = weakref.ref(ref)
        try:
            self.send(kind, refs[0].id, body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the other end is gone: who waits for the answer reads up to the end, and finds out there
        except BaseException:  # the caller is told
            self.forget([ref.id for ref in refs])
            raise
        if self.closed:  # it was found out before these were added
            self._fail_pending()

    def request_soon(self, ref: LocalRef, target: str | int, arguments: Any) -> None:
        """Send a small call, perhaps together with others.

        Args:
            ref: its answer.
            target: the method, or the number of the function's definition.
            arguments: see `batch.lasting`.
        """
        self.pending[ref.id] = weakref.ref(ref)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.post((ref.id, target, arguments))
        if self.closed:
            self._fail_pending()

    def forget(self, refs: Iterable[int]) -> None:
        """Wait no more for the answers with these numbers."""
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
        waiting = self.pending.pop(frame.call_id, None)
        ref = None if waiting is None else waiting()
        body = frame.body
        if frame.kind == channel.FAILURE and waiting is not None and frame.call_id not in self._asked_for:
            body = self.failure(frame)  # nobody may be left to read it, and then it is dropped here
        self._asked_for.discard(frame.call_id)
        if ref is not None and ref.kind == PENDING:  # of a call that is run again, some may have come before
            ref.complete(frame.kind, body)

    def failure(self, frame: channel.Frame) -> Packed:
        """Return the failure in `frame`, so that it is told of if nobody asks for it."""
        if not self.tells_failures or session.current() is None:
            return frame.body
        return Unread(frame.body, current_client().unread.dropped)

    def asked_for(self, ref: LocalRef) -> None:
        """Note that a failure of `ref`, which is pending, is no news to anybody."""
        self._asked_for.add(ref.id)  # not in `pending`, where another thread may just have taken its answer

    def not_again(self, ref: LocalRef) -> None:
        """Note that a call is cancelled: it is not made again if the process at the other end dies."""

    def read_out(self) -> None:
        """Hand on what has arrived, if anything is waited for: nothing is read any more after that."""
        if not self.pending or not self.reading.acquire(blocking=False):
            return
        try:
            for _ in range(_MOST_CHUNKS):
                if not self._receive():
                    return
        finally:
            self.release_reading()

    def on_answers(
        self, ids: list[int], values: list[Any], pickled: list[tuple[int, bytes]], _: float
    ) -> None:
        """Several answers have arrived: atoms, and pickles of other small values."""
        take = self.pending.pop
        if self._asked_for:
            self._asked_for.difference_update(ids, (call_id for call_id, _ in pickled))
        for call_id, value in zip(ids, values, strict=True):
            waiting = take(call_id, None)
            ref = None if waiting is None else waiting()
            if ref is not None:
                ref.complete(ATOM, value)
        for call_id, payload in pickled:
            waiting = take(call_id, None)
            ref = None if waiting is None else waiting()
            if ref is not None:
                ref.complete(channel.VALUE, Packed(payload))

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
        """Return the error for an answer that will never come."""
        error: Exception = current_client().death_of(self)
        return error

    def open_fd(self) -> int:
        """A further connection to the same process, for somebody else."""
        ours, theirs = socket.socketpair()
        with contextlib.suppress(OSError):  # it is dead: the receiver finds a closed connection, and asks why
            self.send(channel.CONNECT, 0, Packed(b"", (), [channel.Descriptor(ours.detach())]))
        return theirs.detach()

    def __del__(self) -> None:
        # Nobody is left to call, or to read an answer: a pending reference would have kept this alive.
        self.close_when_sent()
