"""Connections to actors, method calls over these connections, and the endpoints inside actor handles."""

from __future__ import annotations

import functools
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainkit.errors import ActorDiedError, ObjectLostError, TaskCancelledError, TaskError
from trainkit.runtime import serialize
from trainkit.runtime.local.client.background import END, BackgroundThread
from trainkit.runtime.local.client.calls import CallCodec
from trainkit.runtime.local.client.node_client import NodeClient
from trainkit.runtime.local.client.refs import LOST, CallConnection, LocalRef, current_client, decide, fail
from trainkit.runtime.local.client.waiting import Waiter
from trainkit.runtime.local.wire.channel import ACTOR, CALL, FAILURE, HANDLE_KINDS, VALUE, Frame
from trainkit.runtime.local.wire.messages import WorkerEnvironment
from trainkit.runtime.refs import Uncopied
from trainkit.runtime.restart_policy import RetriedKinds, retries_on
from trainkit.runtime.serialize import Packed
from trainkit.runtime.signals import InterruptGuard
from trainkit.runtime.specs import MethodSpec, Placement


@dataclass(frozen=True, slots=True)
class ClientParts:
    """Objects of this process's engine that its tasks, actors and actor connections share.

    Attributes:
        mark: path of the session's folder, which identifies the session.
        placed: function that checks a placement. If this process's placement group captures child tasks, the
            function also moves the placement into the group.
        environment: function that returns the environment that a new worker inherits.
    """

    mark: str
    node: NodeClient
    background: BackgroundThread
    waiter: Waiter
    codec: CallCodec
    placed: Callable[[Placement, str], Placement]
    environment: Callable[[], WorkerEnvironment]


@dataclass(slots=True, eq=False)
class CallAwaitingArguments:
    """Actor method call that waits for its arguments or for earlier calls before it is sent.

    Attributes:
        parts: objects that all client classes of this process share, such as its connection to the node.
        actor: the actor's endpoint, which keeps the actor alive.
        peer: connection over which the call will be sent.
        name: name of the method, for errors.
        ready: True once the call's arguments have arrived.
    """

    parts: ClientParts
    actor: Any
    peer: ActorConnection
    name: str
    body: Packed
    refs: list[LocalRef]
    spec: MethodSpec
    ready: bool

    @property
    def what(self) -> str:
        """Name of the call in error messages, such as `Counter.add`."""
        return f"{self.peer.name}.{self.name}"

    @property
    def lane(self) -> Hashable:
        """Key of the call's queue, whose calls are sent in the order in which they were made."""
        return self.spec.concurrency_group if self.peer.in_order else self


@dataclass(slots=True, eq=False)
class SentCall:
    """Actor method call that has not been answered.

    Attributes:
        refs: ids of the references to the call's results; the first id is also the id of the call.
        retries_left: remaining retries of the call; -1 for no limit.
        sent: True if the call was sent and may have begun.
        actor: the actor's endpoint, which keeps the actor alive for retries.
        body: the packed call, if it may have to be sent again; else None.
        small: method and arguments of a small call; a small call has no `body`.
        kept: references to the call's results, if the call may be retried; else empty.
        kinds: types of exceptions after which the call is retried; True for any exception.
        cancelled: True if the call was cancelled after it raised an exception. A cancelled call must not be
            retried.
    """

    refs: list[int]
    retries_left: int
    sent: bool = False
    actor: Any = None
    body: Packed | None = None
    small: tuple[str | int, Any] | None = None
    kept: list[LocalRef] = field(default_factory=list)
    kinds: RetriedKinds = False
    cancelled: bool = False

    @property
    def may_be_made_again(self) -> bool:
        """True if the call may be retried, as it has retries left and no result yet."""
        return self.retries_left != 0 and not any(ref.done() for ref in self.kept)

    def is_to_be_made_again(self, error: TaskError) -> bool:
        """Return True if this call must be retried after it raised `error`."""
        if isinstance(error, ActorDiedError) or isinstance(error.cause, TaskCancelledError):
            return False
        return retries_on(error.cause, self.kinds)


class ActorConnection(CallConnection):
    """Connection to an actor, used by all calls of this process to that actor.

    Attributes:
        kind: type code of the actor's handles in frames.
        life: number of the actor's restarts before its current process; None if the actor is never restarted.
        in_order: True if the actor runs the calls of each caller in the order in which they were made.
        max_task_retries: number of retries of a call, unless its method sets a different number.
        endpoints: number of `ActorEndpoint` objects that use this connection. Without endpoints, this process
            stops sending over the connection.
    """

    kind = ACTOR
    life: int | None = None
    tells_failures = True
    is_watched = False
    """True if the background thread always watches for the end of this connection."""

    def __init__(self, sock: socket.socket, name: str = "actor", worker_id: int | None = None) -> None:
        super().__init__(sock, name, worker_id)
        self.in_order = True
        self.endpoints = 0
        # A thread holds this lock while it sends calls, so that calls are sent in the order in which they
        # were registered. No thread holds the lock while it runs user code or waits.
        self._order = threading.RLock()
        self._lanes: dict[Hashable, deque[CallAwaitingArguments]] = {}
        self._retriable: dict[int, SentCall] = {}
        self.max_task_retries = 0

    def follow(self, parts: ClientParts, *, life: int = 0, owner: bool = False) -> None:
        """Reconnect after each restart of the actor from now on. A second call of this method has no effect.

        Args:
            parts: objects that all client classes of this process share, such as its connection to the node.
            life: number of the actor's restarts so far.
            owner: True if this process created the actor.
        """

    @property
    def keeps_back(self) -> bool:
        """True if a new call must wait for an earlier call."""
        return self.in_order and bool(self._lanes)

    def call(self, actor: Any, body: Packed, refs: list[LocalRef], spec: MethodSpec) -> None:
        """Send a call made through the endpoint `actor`. Its answers complete `refs`."""
        asked = spec.max_task_retries
        call = SentCall([ref.id for ref in refs], self.max_task_retries if asked is None else asked)
        if spec.retry_exceptions and call.retries_left:
            call.actor, call.body, call.kept = actor, body.owned(), refs
            call.kinds = spec.retry_exceptions
            parts: ClientParts = current_client().parts
            # The background thread reads the answers, because possibly no other thread reads this connection.
            # The background thread must begin to watch the connection now, because a reference has no
            # connection while a retry is decided.
            for ref in refs:
                parts.waiter.watch(ref)
            try:
                self._send_retriable(call, call.body)
            except BaseException:  # the call was not sent, so there is no answer to watch for
                for ref in refs:
                    parts.background.unwatch(self, ref)
                raise
        else:
            self._send_call(call, refs, body)

    def _send_call(self, call: SentCall, refs: list[LocalRef], body: Packed) -> None:
        self.request(CALL, body, refs)

    def _send_retriable(self, call: SentCall, body: Packed) -> None:
        for ref in call.kept:
            self._retriable[ref.id] = call
        self._send_call(call, call.kept, body)

    def forget(self, refs: Iterable[int]) -> None:
        super().forget(refs)
        for ref_id in refs:
            self._retriable.pop(ref_id, None)

    def on_frame(self, frame: Frame) -> None:
        if self._retriable:
            call = self._retriable.get(frame.call_id)
            if call is not None and frame.kind == FAILURE:
                self._failed(call, frame)
                return
            if call is not None and frame.kind == VALUE:
                del self._retriable[frame.call_id]
        super().on_frame(frame)

    def _failed(self, call: SentCall, frame: Frame) -> None:
        # all results of a call fail together, so only the last result's failure is handled
        *others, last = call.refs
        if frame.call_id != last:
            return
        if call.may_be_made_again:
            for ref in call.kept:  # `cancel` finds the call through `ref.body` while its retry is decided
                ref.body = call
            decide(self, frame.body, call.kept, functools.partial(self._made_again, call))
            return
        for ref_id in [*others, last]:
            # references that have a value already are left out
            if self._retriable.pop(ref_id, None) is not None:
                super().on_frame(Frame(FAILURE, ref_id, frame.body))

    def _made_again(self, call: SentCall, error: TaskError) -> bool:
        """Retry a call that raised `error`, if its options allow it.

        Return True if the call is retried or was cancelled.
        """
        if not call.is_to_be_made_again(error):
            return False
        call.retries_left -= call.retries_left > 0
        for ref in call.kept:
            ref.attach(self)
            ref.body = None
        # the check is made only now, as any later cancellation is sent to the actor's process
        if call.cancelled:
            self.forget(call.refs)
            reason = f"a call of {self.name} raised an exception and was cancelled before its retry"
            fail(call.kept, TaskCancelledError, reason)
            return True
        if call.body is not None:
            self._send_retriable(call, call.body)
        return True

    def unfinished(self) -> list[LocalRef]:
        """Return a reference of each call that waits for its arguments or may be retried."""
        with self._order:
            held = [call for lane in self._lanes.values() for call in lane]
        sent = dict.fromkeys(list(self._retriable.values()))
        return [*(call.refs[-1] for call in held), *(call.kept[-1] for call in sent)]

    def calls_in_flight(self, call_of: Callable[[int], int]) -> int:
        """Return the number of unanswered calls, including calls that wait for their arguments.

        Args:
            call_of: function from the id of a reference to the id of the call that produces it.
        """
        with self._order:
            held = sum(map(len, self._lanes.values()))
        return held + len(set(map(call_of, list(self.pending))))

    def hold(self, call: CallAwaitingArguments, waits_for: Sequence[LocalRef]) -> None:
        """Send `call` when its arguments `waits_for` have arrived and earlier calls of its queue are sent."""
        for ref in call.refs:
            ref.body = call
        with InterruptGuard():  # Ctrl-C must not leave behind a call that is never sent.
            with self._order:
                if not self._lanes and not self.is_watched:
                    call.parts.background.watch(self, END)  # the call must fail if the connection ends
                self._lanes.setdefault(call.lane, deque()).append(call)
                if self.in_order:
                    self.takes_small_calls = False
            if self.closed:  # the connection ended before the call was added
                self.fail_held(self.lost)
            elif call.ready:
                self._advance(call.lane)
            else:
                call.parts.waiter.when_all(waits_for, functools.partial(self._arguments_arrived, call))

    def _arguments_arrived(self, call: CallAwaitingArguments) -> None:
        call.ready = True
        # The background thread sends the call, as the thread that read the last argument may hold locks.
        call.parts.background.run(functools.partial(self._advance, call.lane))

    def _advance(self, lane: Hashable) -> None:
        """Send the waiting calls of a queue up to the first call that is not ready."""
        with self._order:
            calls = self._lanes.get(lane, deque())
            while calls and calls[0].ready:
                call = calls[0]
                try:
                    self._send_held(call)
                finally:  # the call leaves the queue only now, or a newer call could be sent before it
                    self._drop(lane, call)

    def _drop(self, lane: Hashable, call: CallAwaitingArguments) -> None:
        calls = self._lanes[lane]
        calls.remove(call)
        if not calls:
            del self._lanes[lane]
        if not self._lanes:
            self._nothing_held(call.parts)

    def _nothing_held(self, parts: ClientParts) -> None:
        self.takes_small_calls = type(self).takes_small_calls
        if not self.is_watched:
            parts.background.unwatch(self, END)

    def _send_held(self, call: CallAwaitingArguments) -> None:
        for ref in call.refs:
            ref.body = call.name
            ref.attach(self)
        try:
            self.call(call.actor, call.body, call.refs, call.spec)
        except Exception as error:  # no descriptor is left for the call's handles, or memory is full
            reason = f"the call of {call.name}() could not be sent after its arguments arrived: {error!r}"
            fail(call.refs, ObjectLostError, reason)
        for ref in call.refs:  # a thread may wait for the reference without reading the connection
            if not ref.done():
                call.parts.waiter.watch(ref)

    def withdraw(self, call: CallAwaitingArguments) -> bool:
        """Cancel a call that waits to be sent; return False if the call was sent already."""
        lane = call.lane
        with self._order:
            if call not in self._lanes.get(lane, ()):
                return False
            self._drop(lane, call)
            self._advance(lane)
        fail(call.refs, TaskCancelledError, f"{call.what} was cancelled before it began")
        return True

    def fail_held(self, why: Callable[[], Exception]) -> None:
        """Fail the calls that wait to be sent, as the connection can't send them any more."""
        with self._order:
            calls = [call for lane in self._lanes.values() for call in lane]
            self._lanes.clear()
            if calls:
                self._nothing_held(calls[0].parts)
        for call in calls:
            for ref in call.refs:
                ref.complete(LOST, why)

    def _fail_pending(self) -> None:
        super()._fail_pending()
        self._retriable.clear()

    def on_close(self) -> None:
        super().on_close()
        self.fail_held(self.lost)


class ActorEndpoint(Uncopied):
    """Object inside an actor's handle that keeps the actor alive.

    An actor lives while any process has at least one endpoint. Each process with an endpoint has a connection
    to the actor. An endpoint that is on its way to another process also contains a connection. So the actor's
    process notices when the last connection closes, even after a crash. All endpoints of a process for the
    same actor share one connection; see `shared`.
    """

    __slots__ = ("__weakref__", "peer")

    def __init__(self, peer: ActorConnection) -> None:
        self.peer = peer
        with sharing:
            peer.endpoints += 1

    @property
    def kind(self) -> int:
        return self.peer.kind

    @property
    def actor_id(self) -> str:
        """The actor's id, in hexadecimal."""
        return f"{self.peer.worker_id or 0:016x}"

    def __eq__(self, other: object) -> bool:
        """Return True if both endpoints belong to the same actor."""
        if self is other or not isinstance(other, ActorEndpoint):
            return self is other
        ours, theirs = self.peer, other.peer
        return ours.worker_id is not None and (ours.worker_id, ours.home) == (theirs.worker_id, theirs.home)

    def __hash__(self) -> int:
        return hash(self.peer.worker_id)

    def __reduce__(self) -> Any:
        raise TypeError("an actor's handle cannot be pickled: pass it as an argument or a result")

    def open_fd(self) -> int:
        return self.peer.open_fd()

    def __del__(self) -> None:
        with sharing:
            self.peer.endpoints -= 1
            is_last = not self.peer.endpoints
        if is_last:  # the connection is closed only for sending, as answers to earlier calls may still arrive
            self.peer.finish_sending()


_known: weakref.WeakValueDictionary[tuple[str | None, int | None], ActorConnection] = (
    weakref.WeakValueDictionary()
)
sharing = threading.RLock()
"""Lock held while endpoints are counted, because a thread may look up an endpoint while another thread drops
the last endpoint.
"""


def living_peer(home: str | None, worker_id: int | None) -> ActorConnection | None:
    """Return this process's open connection to an actor, or None if no such connection has endpoints.

    The caller must hold the lock `sharing`.

    Args:
        home: path of the folder of the actor's session.
        worker_id: id of the actor.
    """
    peer = _known.get((home, worker_id))
    return None if peer is None or peer.closed or not peer.endpoints else peer


def known_endpoint(home: str, worker_id: int) -> ActorEndpoint | None:
    """Return a new endpoint of an actor; None if this process has no open connection to the actor.

    Args:
        home: path of the folder of the actor's session.
        worker_id: id of the actor.
    """
    with sharing:
        peer = living_peer(home, worker_id)
        return None if peer is None else ActorEndpoint(peer)


def shared(endpoint: ActorEndpoint) -> ActorEndpoint:
    """Return `endpoint`, switched to the connection that this process already has to the actor, if any.

    All calls of a process thus reach the actor in the order in which they were made, through any handle.
    """
    peer = endpoint.peer
    with sharing:
        known = living_peer(peer.home, peer.worker_id)
        if known is None or known is peer:
            _known[peer.home, peer.worker_id] = peer
            return endpoint
        endpoint.peer = known
        known.endpoints += 1
        peer.endpoints -= 1
    peer.finish_sending()
    return endpoint


def actor_peers() -> list[ActorConnection]:
    """Return the connections of this process to actors."""
    with sharing:
        return list(_known.values())


HANDLE_KINDS[ACTOR] = lambda fd: ActorEndpoint(ActorConnection(socket.socket(fileno=fd)))


def _reduce_endpoint(pickler: Any, endpoint: ActorEndpoint) -> Any:
    peer = endpoint.peer
    home = peer.home or current_client().mark
    details = (peer.name, peer.worker_id, home, peer.in_order, peer.max_task_retries, peer.life)
    return _load_endpoint, (pickler.attach(endpoint), *details)


def _load_endpoint(position: int, *details: Any) -> ActorEndpoint:
    endpoint: Any = serialize.claim(position)
    peer: ActorConnection = endpoint.peer
    peer.name, peer.worker_id, peer.home, peer.in_order, peer.max_task_retries, life = details
    if shared(endpoint).peer is peer and life is not None:
        peer.follow(current_client().parts, life=life)
    return endpoint  # type: ignore[no-any-return]


serialize.register(ActorEndpoint, _reduce_endpoint)
