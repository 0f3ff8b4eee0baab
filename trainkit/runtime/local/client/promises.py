"""Promises: pending references that were sent to other processes, and the results owed to these processes.

A completed reference is sent together with its result. A pending reference is sent as a promise, which is a
connection over which the reference's owner sends the result later. A process that passes a promise on to a
third process asks the owner for a further connection. Once the third process has its own connection, the
process in between may end before the owner sends the result.

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
    """Results of this process that other processes wait for.

    All these connections share one epoll descriptor, because the background thread's work at each wake-up
    grows with the number of descriptors that it watches.

    Args:
        waiter: object that makes the background thread read the answers.
        background: background thread, which sends the results.

    Attributes:
        run_soon: function that runs its argument in the background thread.
        on_settled: function called when a result was sent or is not wanted any more, and when all calls
            passed to `outstanding` have ended.
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
        """Register a result that another process waits for."""
        self._owed[owed.fileno()] = owed
        self._poll.register(owed, select.EPOLLIN)

    def settled(self, owed: OwedResult) -> None:
        """Unregister a result that was sent or is not wanted any more.

        The result's connection is still open.
        """
        self.stop_reading(owed)
        if self._owed.pop(owed.fileno(), None) is not None:
            self.on_settled()

    def stop_reading(self, owed: OwedResult) -> None:
        """Stop reading requests from the connection `owed`."""
        with contextlib.suppress(OSError, ValueError):  # the connection is unregistered or closed already
            self._poll.unregister(owed)

    closed = ended = False

    def fileno(self) -> int:
        return self._poll.fileno()

    def try_read(self) -> bool:
        """Read the requests of the processes that wait for results, and notice processes that have ended."""
        for fd, _ in self._poll.poll(0):
            owed = self._owed.get(fd)
            if owed is not None:
                owed.try_read()
        return True

    def close(self) -> None:
        """Stop reading requests at the end of the session."""
        self.closed = True
        self._poll.close()

    def promise(self, ref: LocalRef, due: Callable[[], None]) -> None:
        """Call the function `due` once the answer for `ref` has arrived."""
        self._background.watch(self, "promises")
        ref.when_done(due)
        self._waiter.watch(ref)

    def outstanding(self, unfinished: Sequence[LocalRef]) -> bool:
        """Return True if other processes wait for a result of this process or `unfinished` is not empty.

        `on_settled` is called when the returned value may have changed.
        """
        if unfinished and not self._awaits_calls:
            self._awaits_calls = True
            self._waiter.when_all(unfinished, self._calls_ended)
        return bool(unfinished or self._owed)

    def _calls_ended(self) -> None:
        self._awaits_calls = False
        self.on_settled()


class OwedResult(CallConnection):
    """Connection over which this process will send a result.

    Args:
        sock: a connected socket, which this connection owns from now on.
        ref: reference to the result.
        owed: register of all results that this process still has to send.
    """

    def __init__(self, sock: socket.socket, ref: LocalRef, owed: OwedResults) -> None:
        super().__init__(sock, "whoever waits for a result")
        self._ref = ref
        self._owed = owed
        self._is_paid = False
        owed.add(self)

    def promise(self) -> None:
        """Send the result as soon as it arrives."""
        self._owed.promise(self._ref, self._is_due)

    def _is_due(self) -> None:
        # The background thread sends the result. For a lost result, `pay` asks the node for the reason and
        # waits for the answer. A thread that reads the node's connection can't wait for this answer.
        self._owed.run_soon(self.pay)

    def on_frame(self, frame: channel.Frame) -> None:
        """Cancel the call or add another process as a receiver of its result, as the frame requests."""
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
            # Further connections that the same process requests later are refused, because the process now
            # has the result.
            self._owed.stop_reading(self)
            self.sock.shutdown(socket.SHUT_RD)
            self.read_all()
            channel.send_answer(self, *outcome(self._ref), self._ref.id, "trainkit")
        except OSError:  # the process that wanted the result has ended
            self.close()
        else:
            self.close_when_sent()

    def close(self) -> None:
        if self._pid == os.getpid():  # a forked child must not change the poll object of its parent
            self._owed.settled(self)
        super().close()
        self._ref.forget(self._is_due)


class Promise:
    """Handle that represents a pending reference, and opens a connection for the reference's answer."""

    kind = channel.PROMISE

    def __init__(self, ref: LocalRef) -> None:
        self._ref = ref

    @property
    def answer(self) -> LocalRef:
        """Pending reference that the promise stands for."""
        return self._ref

    def open_fd(self) -> int:
        ours, theirs = socket.socketpair()
        OwedResult(ours, self._ref, current_client().owed).promise()
        return theirs.detach()


def outcome(ref: LocalRef) -> tuple[int, Packed]:
    """Return the kind and body of the frame with the answer of `ref`, which must be done."""
    if ref.kind == LOST:
        return channel.FAILURE, pack_failure(ref.body(), "trainkit")
    if ref.kind == ATOM:
        return channel.VALUE, serialize.pack(ref.body)
    mark_read(ref.body)  # the receiver reports the failure if it stays unread
    return ref.kind, ref.body


class PromiseReceiver(CallConnection):
    """Receiving end of a promise: receives one answer, then closes.

    Attributes:
        owed_by_task: True if the answer comes from a task; False if it comes from an actor's call.
    """

    kind = channel.PROMISE
    owed_by_task = False

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, name="a reference")
        # A weak reference avoids a reference cycle, which would keep the descriptor open.
        self._pending: Callable[[], LocalRef | None] = lambda: None
        self._done: LocalRef | None = None

    @property
    def answer(self) -> LocalRef:
        """Reference that the promise's answer completes."""
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
            "the process that made this call ended before the result arrived: keep such references in the "
            "process that made the calls, or return the values"
        )

    def cancel(self, force: bool, recursive: bool) -> None:
        """Ask the process that owns the result to stop the call."""
        with contextlib.suppress(OSError):  # the answer has arrived, or will never arrive
            self.send(channel.CANCEL, 0, Packed(bytes((force, recursive))))

    def open_fd(self) -> int:
        further = None if self._done is not None else self.open_further()
        return Promise(self.answer).open_fd() if further is None else further


channel.HANDLE_KINDS[channel.PROMISE] = lambda fd: PromiseReceiver(socket.socket(fileno=fd))


def reduce_ref(pickler: Any, ref: LocalRef) -> Any:
    """Return the content of a reference's pickle: the answer of a completed reference, or else a promise."""
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
