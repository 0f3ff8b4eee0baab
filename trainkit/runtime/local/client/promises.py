"""Promises: pending references that travel, and the results that this process owes for them.

A reference to a result that is there travels with it. One that is still pending travels as a promise: a
connection over which its owner sends the result once it has it. Who hands a promise on asks the owner for a
further connection, and may end before the owner does.

    owner ──────promise──────▶ process ──the reference──▶ another process
      ▲ └──────────────────────────│────────promise───────────▲
      └────────CONNECT─────────────┘
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from trainkit.errors import OwnerDiedError
from trainkit.runtime import serialize
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.local.client.background import BackgroundThread
from trainkit.runtime.local.client.leases import Task
from trainkit.runtime.local.client.refs import ATOM, LOST, CallConnection, LocalRef, current_client, mark_read
from trainkit.runtime.local.client.waiting import Waiter
from trainkit.runtime.local.wire import channel
from trainkit.runtime.serialize import Packed


class OwedResults:
    """The results that other processes wait for.

    The background thread watches the connections of all of them as one, as it looks at each that it watches
    whenever it wakes.

    Args:
        waiter: sees to it that the answers are read.
        background: sends the results.

    Attributes:
        run_soon: runs a function in the background thread.
        on_settled: called when a result was sent, or nobody wants it any more, or all calls have ended that
            `owes` was asked about.
    """

    def __init__(self, waiter: Waiter, background: BackgroundThread) -> None:
        self._waiter = waiter
        self._background = background
        self._owed: dict[int, OwedResult] = {}
        self._poll = select.epoll()
        self._awaits_calls = False
        self.run_soon = background.run
        self.on_settled: Callable[[], None] = lambda: None

    def add(self, owed: OwedResult) -> None:
        """Note a result that somebody waits for."""
        self._owed[owed.fileno()] = owed
        self._poll.register(owed, select.EPOLLIN)

    def settled(self, owed: OwedResult) -> None:
        """Note that a result was sent, or that nobody wants it any more; its connection is open yet."""
        self.stop_reading(owed)
        if self._owed.pop(owed.fileno(), None) is not None:
            self.on_settled()

    def stop_reading(self, owed: OwedResult) -> None:
        """Read no more what is asked for over a connection."""
        with contextlib.suppress(OSError, ValueError):  # it is not read any more, or closed
            self._poll.unregister(owed)

    closed = ended = False

    def fileno(self) -> int:
        return self._poll.fileno()

    def try_read(self) -> bool:
        """Read what those ask for who wait for results, and which of them have gone."""
        for fd, _ in self._poll.poll(0):
            owed = self._owed.get(fd)
            if owed is not None:
                owed.try_read()
        return True

    def close(self) -> None:
        """Read nothing more: the session has ended."""
        self.closed = True
        self._poll.close()

    def promise(self, ref: LocalRef, due: Callable[[], None]) -> None:
        """Call `due` once `ref` is done."""
        self._background.watch(self, "promises")
        ref.when_done(due)
        self._waiter.watch(ref)

    def outstanding(self, unfinished: Sequence[LocalRef]) -> bool:
        """Return whether others wait for a result of this process, or calls of its own are `unfinished`.

        `on_settled` is called when that may have changed.
        """
        if unfinished and not self._awaits_calls:
            self._awaits_calls = True
            self._waiter.when_all(unfinished, self._calls_ended)
        return bool(unfinished or self._owed)

    def _calls_ended(self) -> None:
        self._awaits_calls = False
        self.on_settled()


class OwedResult(CallConnection):
    """A connection that this process owes a result over.

    Args:
        sock: connected; owned from here on.
        ref: stands for the result.
        owed: all such results of this process.
    """

    def __init__(self, sock: socket.socket, ref: LocalRef, owed: OwedResults) -> None:
        super().__init__(sock, "whoever waits for a result")
        self._ref = ref
        self._owed = owed
        self._is_paid = False
        owed.add(self)

    def promise(self) -> None:
        """Send the result as soon as it is there."""
        self._owed.promise(self._ref, self._is_due)

    def _is_due(self) -> None:
        # In the background thread: to say why a result is lost, the node is asked, and whoever finds the
        # answer may be in the middle of reading the node's connection.
        self._owed.run_soon(self.pay)

    def on_frame(self, frame: channel.Frame) -> None:
        """Stop the call, or owe its result to one more process, which was handed the promise on."""
        if frame.kind == channel.CANCEL:
            self._owed.run_soon(lambda: current_client().cancel(self._ref, *frame.body.payload))
        for handle in frame.body.handles:
            if isinstance(handle, channel.Descriptor):
                OwedResult(socket.socket(fileno=handle.take()), self._ref, self._owed).promise()

    def on_end(self) -> None:
        if not self._is_paid:
            super().on_end()

    def pay(self) -> None:
        """Send the result."""
        self._is_paid = True
        try:
            # Who asks for a further connection from here on is refused, and has the result to hand on.
            self._owed.stop_reading(self)
            self.sock.shutdown(socket.SHUT_RD)
            self.read_all()
            channel.send_answer(self, *outcome(self._ref), self._ref.id, "trainkit")
        except OSError:  # whoever wanted it is gone
            self.close()
        else:
            self.close_when_sent()

    def close(self) -> None:
        if self._pid == os.getpid():  # a forked copy shares the poll object with its parent
            self._owed.settled(self)
        super().close()
        self._ref.forget(self._is_due)


class Promise:
    """A pending reference as a handle: opens a connection that its answer will be sent over."""

    kind = channel.PROMISE

    def __init__(self, ref: LocalRef) -> None:
        self._ref = ref

    @property
    def answer(self) -> LocalRef:
        """The reference itself, for the process that made the promise."""
        return self._ref

    def open_fd(self) -> int:
        ours, theirs = socket.socketpair()
        OwedResult(ours, self._ref, current_client().owed).promise()
        return theirs.detach()


def outcome(ref: LocalRef) -> tuple[int, Packed]:
    """The answer of a done reference in a form that can be sent."""
    if ref.kind == LOST:
        return channel.FAILURE, pack_failure(ref.body(), "trainkit")
    if ref.kind == ATOM:
        return channel.VALUE, serialize.pack(ref.body)
    mark_read(ref.body)  # whoever receives it has it now
    return ref.kind, ref.body


class PromiseReceiver(CallConnection):
    """The receiving end of a promise: one answer arrives, and the connection closes.

    Attributes:
        owed_by_task: a task owes the answer, not an actor's call.
    """

    kind = channel.PROMISE
    owed_by_task = False

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, name="a reference")
        # A pending reference holds its peer, so that must not hold it: both would stay, and the descriptor.
        self._pending: Callable[[], LocalRef | None] = lambda: None
        self._done: LocalRef | None = None

    @property
    def answer(self) -> LocalRef:
        """The reference that the answer completes."""
        with self._send_lock:
            ref = self._done or self._pending()
            if ref is None:
                ref = LocalRef(0, self)
                self._pending = weakref.ref(ref)
            return ref

    def on_frame(self, frame: channel.Frame) -> None:
        self._done = self.answer
        self._done.complete(frame.kind, frame.body)

    def _fail_pending(self) -> None:
        if self._done is None:
            self._done = self.answer
            self._done.complete(LOST, self.lost)

    def lost(self) -> Exception:
        return OwnerDiedError(
            "the process that owed this result ended before it had it; hold such references in the "
            "process that made the calls, or return the values"
        )

    def cancel(self, force: bool, recursive: bool) -> None:
        """Have the owner stop the call."""
        with contextlib.suppress(OSError):  # the answer is there, or will never be
            self.send(channel.CANCEL, 0, Packed(bytes((force, recursive))))

    def open_fd(self) -> int:
        further = None if self._done is not None else self.open_further()
        return Promise(self.answer).open_fd() if further is None else further


channel.HANDLE_KINDS[channel.PROMISE] = lambda fd: PromiseReceiver(socket.socket(fileno=fd))


def reduce_ref(pickler: Any, ref: LocalRef) -> Any:
    """Reduce a reference to its answer, or to a promise."""
    if not ref.done():
        peer = ref.peer
        if isinstance(peer, PromiseReceiver):
            return _load_promise, (ref.id, pickler.attach(peer), peer.owed_by_task)
        return _load_promise, (ref.id, pickler.attach(Promise(ref)), isinstance(ref.body, Task))
    kind, body = outcome(ref)
    positions = [pickler.attach(handle) for handle in body.handles]
    buffers = [pickle.PickleBuffer(buffer) for buffer in body.buffers]
    return _load_ref, (ref.id, kind, pickle.PickleBuffer(body.payload), buffers, positions, body.stored)


def _load_ref(
    ref_id: int, kind: int, payload: Any, buffers: list[Any], positions: list[int], stored: bool
) -> LocalRef:
    ref = LocalRef(ref_id, None)
    handles = [serialize.claim(position) for position in positions]
    ref.complete(kind, Packed(bytes(payload), [memoryview(buffer) for buffer in buffers], handles, stored))
    return ref


def _load_promise(ref_id: int, position: int, owed_by_task: bool) -> LocalRef:
    peer: Any = serialize.claim(position)
    peer.owed_by_task = owed_by_task
    ref: LocalRef = peer.answer
    if ref.id == 0:
        ref.id = ref_id
    return ref


serialize.register(LocalRef, reduce_ref)
