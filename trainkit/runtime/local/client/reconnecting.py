"""Connections to restartable actors, which reconnect when the actor's process dies.

    connection ends ──▶ on_end(): replaces it by a new socket pair, and sends the other end to the node
    node answers    ──▶ _resume(): sends the calls to be retried, then the calls made meanwhile
                    or ─▶ the actor has ended for good: both ends close, and every call fails

The new connection gets the descriptor number of the old connection, so threads that wait for an answer keep
polling the new connection. Until the node answers, this process also keeps the other end of the socket pair
open. If the other end were closed, the new connection would appear closed.
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
from trainkit.runtime import restart_policy
from trainkit.runtime.failures import raisable, unpack_failure
from trainkit.runtime.local.client.actors import (
    ActorConnection,
    ActorEndpoint,
    ClientParts,
    SentCall,
    shared,
)
from trainkit.runtime.local.client.background import END
from trainkit.runtime.local.client.node_client import death
from trainkit.runtime.local.client.refs import LOST, LocalRef
from trainkit.runtime.local.memory.segments import opened
from trainkit.runtime.local.wire import channel, sessions
from trainkit.runtime.local.wire.messages import ConstructorCall, Reconnect, Reconnected, ReleaseActor
from trainkit.runtime.serialize import Packed, unpack
from trainkit.runtime.specs import ActorSpec

_AGAIN_S = 0.5
"""Delay in seconds before a new connection is sent again to a node that had no descriptor left for it."""


class ReconnectingConnection(ActorConnection):
    """Connection to a restartable actor, which reconnects when the actor's process dies."""

    kind = channel.RECONNECTING_ACTOR

    def __init__(self, sock: socket.socket, name: str = "actor", worker_id: int | None = None) -> None:
        super().__init__(sock, name, worker_id)
        self._calls: dict[int, SentCall] = {}  # sent calls in order, by the id of their last reference
        self._parts: ClientParts | None = None
        self._owner = False
        self._let_go = False
        self._other_end: socket.socket | None = None  # other end of a new connection, until the node answers
        self._gone: Callable[[], Exception] | None = None
        self._life = 0

    @property
    def is_watched(self) -> bool:  # type: ignore[override]
        return self._parts is not None

    @property
    def life(self) -> int:  # type: ignore[override]
        return self._life + (self._other_end is not None)

    def follow(self, parts: ClientParts, *, life: int = 0, owner: bool = False) -> None:
        if self._parts is None:
            self._life, self._owner, self._parts = life, owner, parts
            parts.background.watch(self, END)

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
                except BaseException:  # the call was not sent, and the caller gets the error
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

    def not_again(self, ref: LocalRef) -> None:
        # `_calls` is keyed by a call's last reference, but the user may cancel any of its references.
        for call in [found] if (found := self._calls.get(ref.id)) else list(self._calls.values()):
            if ref.id in call.refs:
                call.retries_left = 0

    def _send(self, call: SentCall, body: Packed) -> None:
        call.sent = True
        call.body = body.owned() if call.retries_left else None
        try:
            self.send(channel.CALL, call.refs[0], body)
        except (BrokenPipeError, ConnectionResetError):
            # The actor's process has ended, so the call is kept unsent until the thread that reads this
            # connection notices.
            call.sent, call.body = False, body.owned()

    def _send_small(self, call: SentCall) -> None:
        if call.small is not None:
            call.sent = True
            try:
                self.post((call.refs[0], *call.small))
            except (BrokenPipeError, ConnectionResetError):  # the connection is closed for good
                call.sent = False

    def _send_posted(self) -> None:
        entries = self._posted
        try:
            super()._send_posted()
        except (BrokenPipeError, ConnectionResetError):
            self._not_sent(entries)

    def _not_sent(self, entries: list[Any]) -> None:
        """Mark the small calls of a batch as not sent."""
        for call_id, _, _ in entries:
            call = self._calls.get(call_id)
            if call is not None:
                call.sent = False

    def on_frame(self, frame: channel.Frame) -> None:
        if frame.kind != channel.ITEM:
            self._calls.pop(frame.call_id, None)
        super().on_frame(frame)

    def on_answers(
        self, ids: list[int], values: list[Any], pickled: list[tuple[int, bytes]], spent_s: float
    ) -> None:
        for call_id in [*ids, *(call_id for call_id, _ in pickled)]:
            self._calls.pop(call_id, None)
        super().on_answers(ids, values, pickled, spent_s)

    def on_end(self) -> None:
        parts = self._parts
        if parts is None or self._gone is not None or parts.node.closing or parts.node.closed:
            super().on_end()
        elif self._let_go and not any(ref() is not None for ref in list(self.pending.values())):
            super().on_end()  # no handle is left and no answer is pending
        else:
            try:
                ours, theirs = socket.socketpair()
                end = channel.Descriptor(os.dup(theirs.fileno()))
            except OSError as error:
                reason = f"the connection to {self.name} closed, and reconnecting failed: {error}"
                self._gone = lambda: ObjectLostError(reason)
                super().on_end()
                return
            self._sever(parts, ours, theirs, end)

    def _sever(
        self, parts: ClientParts, ours: socket.socket, theirs: socket.socket, end: channel.Descriptor
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

    def _reconnect(self, parts: ClientParts, end: channel.Descriptor) -> None:
        message = Reconnect(self.worker_id or 0, self._life)
        if self.home != parts.mark:
            ask = functools.partial(self._ask_abroad, message, end)
            threading.Thread(target=ask, name="trainkit-reconnect", daemon=True).start()
            return
        answer = parts.node.ask(message, [end])
        answer.when_done(functools.partial(self._answered, answer))
        parts.waiter.watch(answer)

    def _ask_abroad(self, message: Reconnect, end: channel.Descriptor) -> None:
        """Send a reconnect request to another session's node, which answers after the actor's restart."""
        try:
            with sessions.connect(Path(self.home or "")) as node:
                reply = node.ask(message, [end], None)
        except ObjectLostError as error:  # this process had no descriptor left, so the actor may be alive
            why = error
            self._end(lambda: why)
            return
        except TrainkitError as error:
            reply = restart_policy.ExitRecord(requested=True, reason=str(error))
        self._heard(reply)

    def _answered(self, answer: LocalRef) -> None:
        if answer.kind == channel.VALUE:
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
            self._reconnect(parts, channel.Descriptor(os.dup(other_end.fileno())))
        except OSError as error:
            reason = f"the connection to {self.name} closed, and reconnecting failed: {error}"
            self._end(lambda: ObjectLostError(reason))

    def _end(self, why: Callable[[], Exception]) -> None:
        """Fail all calls with the error that `why` returns, as the actor has ended for good."""
        self._gone = why
        with self._order:
            other_end, self._other_end = self._other_end, None
        if other_end is not None:
            other_end.close()  # the reading thread then notices that the connection has ended

    def _resume(self, reply: Reconnected) -> None:
        """Resume calls over the connection to the actor's new process."""
        with self._order:
            self._life = reply.life
            kept: set[int] = set()
            for call in list(self._calls.values()):
                left = restart_policy.retries_after_restart(call.sent, call.retries_left)
                if left is None:
                    self._calls.pop(call.refs[-1], None)
                else:
                    call.sent, call.retries_left = False, left
                    kept.update(call.refs)
                    for ref in call.kept:
                        if not ref.done():
                            ref.attach(self)
            failed = [ref_id for ref_id in list(self.pending) if ref_id not in kept]
        self._fail(failed, functools.partial(_interrupted, reply, self.name))
        with self._order:
            if self._other_end is None:
                return
            other_end, self._other_end = self._other_end, None
            # An empty frame wakes the thread that reads this connection, as the call that the thread waits
            # for may have failed. The frame is sent before any call, so that it arrives before any answer.
            waker = channel.Connection(other_end)
            waker.send(channel.VALUE, 0, Packed(b""))
            waker.close()
            try:
                for call in list(self._calls.values()):
                    if call.body is not None:
                        self._send(call, call.body)
                    else:
                        self._send_small(call)
            except (OSError, TrainkitError) as error:  # no descriptor is left for the call's handles
                reason = f"a call could not be sent again after the restart of {self.name}: {error}"
                self._gone = functools.partial(ObjectLostError, reason)
                self.sock.shutdown(socket.SHUT_RDWR)  # the reading thread then notices the end
            if self._let_go:
                super().finish_sending()

    def _fail(self, refs: list[int], why: Callable[[], Exception]) -> None:
        for ref_id in refs:
            self._retriable.pop(ref_id, None)
            self._complete(ref_id, LOST, why)

    def _fail_pending(self) -> None:
        super()._fail_pending()
        self._calls.clear()

    def lost(self) -> Exception:
        return super().lost() if self._gone is None else self._gone()

    def finish_sending(self) -> None:
        """Release the actor after its last handle is gone."""
        # Garbage collection may call this method, so the background thread does the rest.
        if self._pid != os.getpid():
            return
        parts = self._parts
        if parts is None:
            super().finish_sending()
        else:
            parts.background.run(functools.partial(self._release, parts))

    def _release(self, parts: ClientParts) -> None:
        again = [call for call in list(self._calls.values()) if call.retries_left]
        if again:  # the actor and this connection stay until these calls are answered
            actor = ActorEndpoint(self)
            for call in again:
                call.actor = actor
            parts.background.watch(self, ReconnectingConnection)  # possibly no other thread reads the answers
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
        "; this call failed and may have run in part. The actor is being restarted and will answer later "
        "calls. Set max_task_retries= to retry interrupted calls"
    )
    return death(ActorUnavailableError, reply.exit_, name, consequence)


def endpoint_of(parts: ClientParts, spec: ActorSpec) -> tuple[ActorEndpoint, channel.Descriptor]:
    """Return the first endpoint of the actor that `spec` describes, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    connection = ReconnectingConnection if spec.max_restarts else ActorConnection
    peer = connection(ours, spec.name, parts.node.new_id())
    peer.home, peer.max_task_retries = parts.mark, spec.max_task_retries
    peer.in_order = spec.concurrency.in_order and not spec.interface.is_async
    peer.follow(parts, owner=True)
    return shared(ActorEndpoint(peer)), channel.Descriptor(theirs.detach())


def constructor_call(spec: ActorSpec, body: Packed) -> tuple[ConstructorCall | None, Packed]:
    """Return the constructor call and its packed body, which the node keeps for restarts of the actor.

    For an actor that is never restarted, return None and an empty body.
    """
    if not spec.max_restarts:
        return None, Packed(b"")
    actors = [handle.peer.worker_id if isinstance(handle, ActorEndpoint) else None for handle in body.handles]
    return ConstructorCall(spec.max_restarts, body.payload, body.stored, actors), body


channel.HANDLE_KINDS[channel.RECONNECTING_ACTOR] = lambda fd: ActorEndpoint(
    ReconnectingConnection(socket.socket(fileno=fd))
)
