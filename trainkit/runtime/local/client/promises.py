"""Promises: pending references that travel, and the results that this process owes for them.

A reference to a result that is there travels with it. One that is still pending travels as a promise: a
connection over which its owner sends the result once it has it.
"""

from __future__ import annotations

import pickle
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trainkit.errors import OwnerDiedError
from trainkit.runtime import serialize
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.local.client.background import END, BackgroundThread
from trainkit.runtime.local.client.leases import Task
from trainkit.runtime.local.client.node_client import NodeClient
from trainkit.runtime.local.client.refs import (
    ATOM,
    LOST,
    CallConnection,
    LocalRef,
    current_client,
    mark_read,
)
from trainkit.runtime.local.client.waiting import Waiter
from trainkit.runtime.local.wire.channel import (
    FAILURE,
    HANDLE_KINDS,
    PROMISE,
    VALUE,
    Frame,
    ended,
    send_answer,
)
from trainkit.runtime.serialize import Packed

_FEW_DEBTS = 64


class OwedResults:
    """The results that other processes wait for.

    Args:
        node: over which others ask to stop a call.
        waiter: sees to it that the answers are read.
        background: sends the results.

    Attributes:
        on_settled: called when a result was sent, or nobody wants it any more, or all calls have ended that
            `owes` was asked about.
    """

    def __init__(self, node: NodeClient, waiter: Waiter, background: BackgroundThread) -> None:
        self._node = node
        self._waiter = waiter
        self._background = background
        self._owed: set[OwedResult] = set()
        self._most = _FEW_DEBTS
        self._promised: weakref.WeakValueDictionary[int, LocalRef] = weakref.WeakValueDictionary()
        self._awaits_calls = False
        self.on_settled: Callable[[], None] = lambda: None

    def add(self, owed: OwedResult) -> None:
        """Note a result that somebody waits for, and drop those that nobody waits for any more."""
        self._owed.add(owed)
        if len(self._owed) > self._most:  # seldom, as all of them are looked at
            for given_up in ended(list(self._owed)):
                given_up.try_read()
            self._most = max(_FEW_DEBTS, 2 * len(self._owed))

    def settled(self, owed: OwedResult) -> None:
        """Note that a result was sent, or that nobody wants it any more."""
        self._owed.discard(owed)
        self.on_settled()

    def promise(self, ref: LocalRef, due: Callable[[], None]) -> None:
        """Call `due` in the background thread once `ref` is done; let others cancel its call until then."""
        self._promised[ref.id] = ref
        self._background.watch(self._node, "promises")
        ref.when_done(due)
        self._waiter.watch(ref)

    def run_soon(self, job: Callable[[], None]) -> None:
        """Run `job` in the background thread."""
        self._background.run(job)

    def promised(self, ref_id: int) -> LocalRef | None:
        """Return the reference with this number, if another process was promised its result."""
        return self._promised.get(ref_id)

    def outstanding(self, unfinished: Sequence[LocalRef]) -> bool:
        """Return whether others wait for a result of this process, or calls of its own are `unfinished`.

        `on_settled` is called when that may have changed.
        """
        if unfinished and not self._awaits_calls:
            self._awaits_calls = True
            self._waiter.when_all(unfinished, self._calls_ended)
        for owed in list(self._owed):
            self._background.watch(owed, END)
        return bool(unfinished or self._owed)

    def _calls_ended(self) -> None:
        self._awaits_calls = False
        self.on_settled()


class PromisingClient(Protocol):
    """The parts of this process's engine that promises find by themselves."""

    mark: str
    owed: OwedResults


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
        owed.add(self)

    def promise(self) -> None:
        """Send the result as soon as it is there."""
        self._owed.promise(self._ref, self._is_due)

    def _is_due(self) -> None:
        # In the background thread: to say why a result is lost, the node is asked, and whoever finds the
        # answer may be in the middle of reading the node's connection.
        self._owed.run_soon(self.pay)

    def pay(self) -> None:
        """Send the result."""
        try:
            send_answer(self, *outcome(self._ref), self._ref.id, "trainkit")
        except OSError:  # whoever wanted it is gone
            self.close()
        else:
            self.close_when_sent()

    def close(self) -> None:
        super().close()
        self._ref.forget(self._is_due)
        self._owed.settled(self)


class Promise:
    """A pending reference as a handle: opens a connection that its answer will be sent over."""

    kind = PROMISE

    def __init__(self, ref: LocalRef) -> None:
        self._ref = ref

    @property
    def answer(self) -> LocalRef:
        """The reference itself, for the process that made the promise."""
        return self._ref

    def open_fd(self) -> int:
        ours, theirs = socket.socketpair()
        client: PromisingClient = current_client()
        owed = OwedResult(ours, self._ref, client.owed)
        if self._ref.done() and self._ref.kind != LOST:
            owed.pay()
        else:
            owed.promise()
        return theirs.detach()


def outcome(ref: LocalRef) -> tuple[int, Packed]:
    """The answer of a done reference in a form that can be sent."""
    if ref.kind == LOST:
        return FAILURE, pack_failure(ref.body(), "trainkit")
    if ref.kind == ATOM:
        return VALUE, serialize.pack(ref.body)
    mark_read(ref.body)  # whoever receives it has it now
    return ref.kind, ref.body


class PromiseReceiver(CallConnection):
    """The receiving end of a promise: one answer arrives, and the connection closes.

    Attributes:
        owed_by_task: a task owes the answer, not an actor's call.
    """

    kind = PROMISE
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

    def on_frame(self, frame: Frame) -> None:
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

    def open_fd(self) -> int:
        return Promise(self.answer).open_fd()


HANDLE_KINDS[PROMISE] = lambda fd: PromiseReceiver(socket.socket(fileno=fd))


def reduce_ref(pickler: Any, ref: LocalRef) -> Any:
    """Reduce a reference to its answer, or to a promise."""
    if not ref.done():
        peer = ref.peer
        if isinstance(peer, PromiseReceiver):
            home, by_task = peer.home, peer.owed_by_task
        else:
            client: PromisingClient = current_client()
            home, by_task = client.mark, isinstance(ref.body, Task)
        return _load_promise, (ref.id, pickler.attach(Promise(ref)), home, by_task)
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


def _load_promise(ref_id: int, position: int, home: str | None, owed_by_task: bool) -> LocalRef:
    peer: Any = serialize.claim(position)
    peer.home, peer.owed_by_task = home, owed_by_task
    ref: LocalRef = peer.answer
    if ref.id == 0:
        ref.id = ref_id
    return ref


serialize.register(LocalRef, reduce_ref)
