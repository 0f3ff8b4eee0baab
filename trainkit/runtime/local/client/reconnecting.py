"""Connections to actors that are restarted: made again when the process dies.

    reads the end ──▶ on_end(): a new socket pair in place of the old one, its other end to the node
    node answers  ──▶ _resume(): calls that may be sent again go first, then those made meanwhile
                  or ─▶ the actor has ended for good: both ends close, and every call fails

The descriptor stays the same throughout, so whoever waits for an answer goes on waiting on it. Until
the node has answered, this process keeps the other end too, so that the new connection has no end yet.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainkit.errors import ActorDiedError, ActorUnavailableError, ObjectLostError, TrainkitError
from trainkit.runtime import restart_policy, serialize
from trainkit.runtime.failures import raisable, unpack_failure
from trainkit.runtime.local.client import refs as references
from trainkit.runtime.local.client.actors import (
    ActorConnection,
    ActorEndpoint,
    ConnectionParts,
    SentCall,
    living_peer,
    shared,
    sharing,
)
from trainkit.runtime.local.client.background import END
from trainkit.runtime.local.client.node_client import death
from trainkit.runtime.local.client.refs import LOST, LocalRef
from trainkit.runtime.local.memory.segments import opened
from trainkit.runtime.local.wire import sessions
from trainkit.runtime.local.wire.channel import (
    CALL,
    HANDLE_KINDS,
    RECONNECTING_ACTOR,
    VALUE,
    Connection,
    Descriptor,
    Frame,
)
from trainkit.runtime.local.wire.messages import ConstructorCall, Reconnect, Reconnected, ReleaseActor
from trainkit.runtime.serialize import Packed, unpack
from trainkit.runtime.specs import ActorSpec

_AGAIN_S = 0.5
"""So long after the node had no descriptor left for a new connection it is sent another."""


class ReconnectingConnection(ActorConnection):
    """A connection to an actor that is made anew when its process dies."""

    def __init__(self, sock: socket.socket, name: str = "actor", worker_id: int | None = None) -> None:
        super().__init__(sock, name, worker_id)
        self._calls: dict[int, SentCall] = {}  # in the order made, by the last of their references
        self._parts: ConnectionParts | None = None
        self._owner = False
        self._let_go = False
        self._other_end: socket.socket | None = None  # of a connection that the node has yet to hand on
        self._gone: Callable[[], Exception] | None = None
        self._life = 0

    @property
    def is_watched(self) -> bool:  # type: ignore[override]
        return self._parts is not None

    @property
    def life(self) -> int:
        """How often the actor had been made anew when its process at the other end started."""
        return self._life + (self._other_end is not None)

    def follow(
        self, parts: ConnectionParts, home: str, max_task_retries: int, life: int = 0, *, owner: bool = False
    ) -> None:
        """Stay connected from here on, whichever process the actor lives in; without effect twice.

        Args:
            parts: of this process's engine.
            home: the mark of the session that the actor is in.
            max_task_retries: see `Options`.
            life: how often the actor has been made anew.
            owner: this process asked for the actor.
        """
        if self._parts is None:
            self._life, self._owner, self.home = life, owner, home
            self.max_task_retries = max_task_retries
            self._parts = parts
            parts.background.watch(self, END)

    # calls

    def unfinished(self) -> list[LocalRef]:
        with self._order:
            sent = [call for call in self._calls.values() if call.retries_left]
        return [*super().unfinished(), *(call.kept[-1] for call in sent)]

    def _send_call(self, call: SentCall, refs: list[LocalRef], body: Packed) -> None:
        if call.retries_left:
            call.kept = refs
        with self._order:
            self._calls[call.refs[-1]] = call
            for ref in refs:
                self.pending[ref.id] = weakref.ref(ref)
            if self._other_end is not None:
                call.sent, call.body = False, body.owned()
            else:
                try:
                    self._send(call, body)
                except BaseException:  # it could not even be sent, and the caller is told
                    self.forget(call.refs)
                    raise
        if self.closed:
            self._fail_pending()

    def forget(self, refs: Iterable[int]) -> None:
        super().forget(refs)
        for ref_id in refs:
            self._calls.pop(ref_id, None)

    def request_soon(self, ref: LocalRef, target: str | int, arguments: Any) -> None:
        call = SentCall([ref.id], self.max_task_retries)
        if call.retries_left:
            call.kept = [ref]
        call.small = target, arguments
        with self._order:
            self._calls[ref.id] = call
            self.pending[ref.id] = weakref.ref(ref)
            if self._other_end is None:
                self._send_small(call)
        if self.closed:
            self._fail_pending()

    def _send(self, call: SentCall, body: Packed) -> None:
        call.sent = True
        call.body = body.owned() if call.retries_left else None
        try:
            self.send(CALL, call.refs[0], body)
        except (BrokenPipeError, ConnectionResetError):
            # The process is gone, which is found out where this connection is read.
            call.sent, call.body = False, body.owned()

    def _send_small(self, call: SentCall) -> None:
        if call.small is not None:
            call.sent = True
            try:
                self.post((call.refs[0], *call.small))
            except (BrokenPipeError, ConnectionResetError):  # it is closed for good
                call.sent = False

    def _send_posted(self) -> None:
        entries = self._posted
        try:
            super()._send_posted()
        except (BrokenPipeError, ConnectionResetError):
            self._not_sent(entries)

    def _not_sent(self, entries: list[Any]) -> None:
        """Note that these small calls have not begun."""
        for call_id, _, _ in entries:
            call = self._calls.get(call_id)
            if call is not None:
                call.sent = False

    def on_frame(self, frame: Frame) -> None:
        self._calls.pop(frame.call_id, None)
        super().on_frame(frame)

    def on_answers(
        self, ids: list[int], values: list[Any], pickled: list[tuple[int, bytes]], spent_s: float
    ) -> None:
        for call_id in ids:
            self._calls.pop(call_id, None)
        for call_id, _ in pickled:
            self._calls.pop(call_id, None)
        super().on_answers(ids, values, pickled, spent_s)

    # ends

    def on_end(self) -> None:
        parts = self._parts
        if parts is None or self._gone is not None or parts.node.closing or parts.node.closed:
            super().on_end()
        elif self._let_go and not any(ref() is not None for ref in list(self.pending.values())):
            super().on_end()  # what was asked of it is done
        else:
            try:
                ours, theirs = socket.socketpair()
                end = Descriptor(os.dup(theirs.fileno()))
            except OSError as error:
                reason = f"the connection to {self.name} closed, and no other can be made: {error}"
                self._gone = lambda: ObjectLostError(reason)
                super().on_end()
                return
            self._sever(parts, ours, theirs, end)

    def _sever(
        self, parts: ConnectionParts, ours: socket.socket, theirs: socket.socket, end: Descriptor
    ) -> None:
        with self._order, self._send_lock:
            self._other_end = theirs
            self._drop_backlog()
            posted, self._posted = self._posted, []
            self._not_sent(posted)
            os.dup2(ours.fileno(), self.fileno(), inheritable=False)
            ours.close()
            self._half_closed = self.ended = False
            self.forget_received()
        self._reconnect(parts, end)

    def _reconnect(self, parts: ConnectionParts, end: Descriptor) -> None:
        message = Reconnect(self.worker_id or 0, self._life)
        if self.home != parts.mark:
            ask = functools.partial(self._ask_abroad, message, end)
            threading.Thread(target=ask, name="trainkit-reconnect", daemon=True).start()
            return
        answer = parts.node.ask(message, [end])
        answer.when_done(functools.partial(self._answered, answer))
        parts.waiter.watch(answer)

    def _ask_abroad(self, message: Reconnect, end: Descriptor) -> None:
        """Ask the node of another session, which answers when it has made the actor anew."""
        try:
            with sessions.connect(Path(self.home or "")) as node:
                reply = node.ask(message, [end], None)
        except ObjectLostError as error:  # no descriptor was left here or there: the actor may well live
            why = error
            self._end(lambda: why)
            return
        except TrainkitError as error:
            reply = restart_policy.ExitRecord(requested=True, reason=str(error))
        self._heard(reply)

    def _answered(self, answer: LocalRef) -> None:
        if answer.kind == VALUE:
            self._heard(unpack(opened(answer.body)))
        elif answer.kind == LOST:
            self._end(answer.body)
        else:
            self._end(lambda: raisable(unpack_failure(opened(answer.body))))

    def _heard(self, reply: Reconnected | restart_policy.ExitRecord | None) -> None:
        if reply is None:
            again = threading.Timer(_AGAIN_S, self._reconnect_again)
            again.daemon = True
            again.start()
        elif isinstance(reply, Reconnected):
            self._resume(reply)
        else:
            self._end(functools.partial(death, ActorDiedError, reply, self.name))

    def _reconnect_again(self) -> None:
        parts, other_end = self._parts, self._other_end
        if parts is None or other_end is None:
            return
        try:
            self._reconnect(parts, Descriptor(os.dup(other_end.fileno())))
        except OSError as error:
            reason = f"the connection to {self.name} closed, and no other can be made: {error}"
            self._end(lambda: ObjectLostError(reason))

    def _end(self, why: Callable[[], Exception]) -> None:
        """The actor has ended for good."""
        self._gone = why
        with self._order:
            other_end, self._other_end = self._other_end, None
        if other_end is not None:
            other_end.close()  # who reads this connection finds its end now

    def _resume(self, reply: Reconnected) -> None:
        """Go on with the actor's new process."""
        with self._order:
            self._life = reply.life
            by_id = {call.refs[0]: call for call in self._calls.values()}
            again, lost = restart_policy.after_restart(
                [restart_policy.Unanswered(key, call.sent, call.retries_left) for key, call in by_id.items()]
            )
            for item in again:
                call = by_id[item.call_id]
                call.sent, call.retries_left = item.sent, item.retries_left
            for key in lost:
                self._calls.pop(by_id[key].refs[-1], None)
            kept = {ref_id for item in again for ref_id in by_id[item.call_id].refs}
            failed = [ref_id for ref_id in list(self.pending) if ref_id not in kept]
        self._fail(failed, functools.partial(_interrupted, reply, self.name))
        with self._order:
            if self._other_end is None:
                return
            other_end, self._other_end = self._other_end, None
            # Whoever reads this connection may be waiting for what has failed, so something has to
            # arrive; and before anything is sent that the process could answer.
            waker = Connection(other_end)
            waker.send(VALUE, 0, Packed(b""))
            waker.close()
            try:
                for call in list(self._calls.values()):
                    if call.body is not None:
                        self._send(call, call.body)
                    else:
                        self._send_small(call)
            except (OSError, TrainkitError) as error:  # no descriptor left for what goes with a call
                reason = f"a call could not be sent again after {self.name} had been made anew: {error}"
                self._gone = functools.partial(ObjectLostError, reason)
                self.sock.shutdown(socket.SHUT_RDWR)  # who reads this connection finds its end now
            if self._let_go:
                super().finish_sending()

    def _fail(self, refs: list[int], why: Callable[[], Exception]) -> None:
        for ref_id in refs:
            waiting = self.pending.pop(ref_id, None)
            self._retriable.pop(ref_id, None)
            ref = None if waiting is None else waiting()
            if ref is not None:
                ref.complete(LOST, why)

    def _fail_pending(self) -> None:
        super()._fail_pending()
        self._calls.clear()

    def lost(self) -> Exception:
        if self._gone is not None:
            return self._gone()
        return super().lost()

    def finish_sending(self) -> None:
        """Let go of the actor: the last handle is gone."""
        # The collector may have come here, so all else is for the background thread.
        if self._pid != os.getpid():
            return
        parts = self._parts
        if parts is None:
            super().finish_sending()
        else:
            parts.background.run(self._release)

    def _release(self) -> None:
        parts = self._parts
        if parts is None:
            return
        again = [call for call in list(self._calls.values()) if call.retries_left]
        if again:  # the actor stays for these, and so does this connection
            actor = ReconnectingEndpoint(self)
            for call in again:
                call.actor = actor
            parts.background.watch(self, ReconnectingConnection)  # maybe nobody else reads the answers
            return
        parts.background.unwatch(self, ReconnectingConnection)
        parts.background.unwatch(self, END)
        with self._order:
            self._let_go = True
            if self._other_end is None:
                super().finish_sending()

    def __del__(self) -> None:
        parts = self._parts
        if self._owner and parts is not None and self._pid == os.getpid():
            parts.background.run(functools.partial(parts.node.tell, ReleaseActor(self.worker_id or 0)))
        super().__del__()


def _interrupted(reply: Reconnected, name: str) -> TrainkitError:
    consequence = (
        "; this call died with it, and may have run in part. The actor is being made anew: it answers later "
        "calls, and max_task_retries= makes interrupted ones again"
    )
    return death(ActorUnavailableError, reply.exit_, name, consequence)


class ReconnectingEndpoint(ActorEndpoint):
    """Content of a handle to an actor that is restarted when its process dies."""

    kind = RECONNECTING_ACTOR
    __slots__ = ()

    peer: ReconnectingConnection


def known_endpoint(home: str, worker_id: int) -> ActorEndpoint | None:
    """Return one more endpoint for an actor that handles of this process lead to already; else None.

    Args:
        home: the mark of the actor's session.
        worker_id: of the actor.
    """
    with sharing:
        peer = living_peer(home, worker_id)
        if peer is None:
            return None
        return ReconnectingEndpoint(peer) if isinstance(peer, ReconnectingConnection) else ActorEndpoint(peer)


def endpoint_of(parts: ConnectionParts, spec: ActorSpec) -> tuple[ActorEndpoint, Descriptor]:
    """Return the content of the first handle of the actor of `spec`, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    worker_id = parts.node.new_id()
    if spec.max_restarts:
        line = ReconnectingConnection(ours, spec.name, worker_id)
        line.follow(parts, parts.mark, spec.max_task_retries, owner=True)
        endpoint: ActorEndpoint = ReconnectingEndpoint(line)
    else:
        endpoint = ActorEndpoint(ActorConnection(ours, spec.name, worker_id))
        endpoint.peer.home, endpoint.peer.max_task_retries = parts.mark, spec.max_task_retries
    endpoint.peer.in_order = spec.concurrency.in_order and not spec.interface.is_async
    return shared(endpoint), Descriptor(theirs.detach())


def memo_of(spec: ActorSpec, body: Packed) -> tuple[ConstructorCall | None, Packed]:
    """Return the part of the actor's first frame that the node keeps, and its buffers and handles."""
    if not spec.max_restarts:
        return None, Packed(b"")
    actors = [handle.peer.worker_id if isinstance(handle, ActorEndpoint) else None for handle in body.handles]
    return ConstructorCall(spec.max_restarts, body.payload, body.stored, actors), body


HANDLE_KINDS[RECONNECTING_ACTOR] = lambda fd: ReconnectingEndpoint(
    ReconnectingConnection(socket.socket(fileno=fd))
)


def _reduce_enduring(pickler: Any, endpoint: ReconnectingEndpoint) -> Any:
    line = endpoint.peer
    home = line.home or references.current_client().mark
    details = (line.name, line.worker_id, home, line.in_order, line.max_task_retries, line.life)
    return _load_enduring, (pickler.attach(endpoint), *details)


def _load_enduring(
    position: int,
    name: str,
    worker_id: int | None,
    home: str,
    in_order: bool,
    max_task_retries: int,
    life: int,
) -> ActorEndpoint:
    endpoint: Any = serialize.claim(position)
    line: ReconnectingConnection = endpoint.peer
    line.name, line.worker_id, line.home, line.in_order = name, worker_id, home, in_order
    if shared(endpoint).peer is line:
        line.follow(references.current_client().parts, home, max_task_retries, life)
    return endpoint  # type: ignore[no-any-return]


serialize.register(ReconnectingEndpoint, _reduce_enduring)
