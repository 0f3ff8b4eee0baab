"""A connection to an actor, and the calls that wait for their arguments before they go over it.

    call ──arguments there──▶ sent
      └──not yet──▶ held ──they arrive──▶ sent, behind the calls that were made before it

The caller holds such a call, not the actor. So late arguments keep nobody else's calls back and take no
thread of the actor, the call is cancelled at once, and it survives the actor's restart.
"""

from __future__ import annotations

import functools
import socket
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.errors import ObjectLostError, TaskCancelledError, TrainkitError
from trainkit.runtime.local.frames import CALL
from trainkit.runtime.local.interrupt import InterruptGuard
from trainkit.runtime.local.pump import END
from trainkit.runtime.local.refs import LOST, LocalRef, Peer
from trainkit.runtime.serialize import Packed
from trainkit.runtime.specs import MethodSpec

if TYPE_CHECKING:
    from trainkit.runtime.local.client import LocalEngine


@dataclass(slots=True, eq=False)
class HeldCall:
    """A call of an actor's method that has not been sent.

    Attributes:
        engine: of this process.
        actor: the actor's endpoint, which keeps the actor alive.
        peer: the connection that the call will go over.
        name: of the method, for errors.
        ready: its arguments are there.
    """

    engine: LocalEngine
    actor: Any
    peer: ActorPeer
    name: str
    body: Packed
    refs: list[LocalRef]
    spec: MethodSpec
    ready: bool

    @property
    def lane(self) -> Hashable:
        """Calls in one lane are sent in the order made."""
        return self.spec.concurrency_group if self.peer.in_order else self


class ActorPeer(Peer):
    """A connection to an actor; all calls of this process to that actor go over it.

    Attributes:
        in_order: the actor runs the calls of each caller in the order made.
    """

    is_watched = False
    """The pump looks for the connection's end all the time."""

    def __init__(self, sock: socket.socket, name: str = "actor", worker_id: int | None = None) -> None:
        super().__init__(sock, name, worker_id)
        self.in_order = True
        # Held while calls are sent, so that they go out in the order in which they are noted. Never
        # while somebody else's code runs, and never while anything is waited for.
        self._order = threading.RLock()
        self._lanes: dict[Hashable, deque[HeldCall]] = {}

    @property
    def keeps_back(self) -> bool:
        """Whether a call made now has to wait for one made earlier."""
        return self.in_order and bool(self._lanes)

    def call(self, body: Packed, refs: list[LocalRef], spec: MethodSpec) -> None:
        """Send a call, whose answers are `refs`."""
        self.request(CALL, body, refs)

    def hold(self, call: HeldCall, waits_for: Sequence[LocalRef]) -> None:
        """Send `call` as soon as `waits_for` are done and the calls before it are sent."""
        engine = call.engine
        for ref in call.refs:
            ref.body = call
        with InterruptGuard() as guard:  # Ctrl-C must not leave one behind that is never sent
            with self._order:
                if not self._lanes:
                    engine.holding.add(self)
                    if not self.is_watched:
                        engine.pump.watch(self, END)
                self._lanes.setdefault(call.lane, deque()).append(call)
                if self.in_order:
                    self.takes_small_calls = False
            if self.closed:  # it was found out before the call was added
                self.fail_held(self.lost)
            elif call.ready:
                self._advance(call.lane)
            else:
                engine.when_all(waits_for, functools.partial(self._arguments_arrived, call))
        if guard.noted:
            guard.act()

    def _arguments_arrived(self, call: HeldCall) -> None:
        call.ready = True
        # In the pump's thread: whoever found the last of them may be in the middle of anything.
        call.engine.pump.run(functools.partial(self._advance, call.lane))

    def _advance(self, lane: Hashable) -> None:
        """Send the calls of a lane up to the first that is not ready."""
        with self._order:
            calls = self._lanes.get(lane, deque())
            while calls and calls[0].ready:
                self._send_held(calls[0])
                self._drop(lane, calls[0])

    def _drop(self, lane: Hashable, call: HeldCall) -> None:
        calls = self._lanes[lane]
        calls.remove(call)
        if not calls:
            del self._lanes[lane]
        if not self._lanes:
            self._nothing_held(call.engine)

    def _nothing_held(self, engine: LocalEngine) -> None:
        self.takes_small_calls = type(self).takes_small_calls
        engine.holding.discard(self)
        if not self.is_watched:
            engine.pump.unwatch(self, END)

    def _send_held(self, call: HeldCall) -> None:
        for ref in call.refs:
            ref.body = None
            ref.attach(self)
        try:
            self.call(call.body, call.refs, call.spec)
        except (OSError, TrainkitError) as error:  # no descriptor left for what goes with it
            reason = f"the call of {call.name}() could not be sent once its arguments were there: {error}"
            for ref in call.refs:
                ref.complete(LOST, functools.partial(ObjectLostError, reason))
        for ref in call.refs:  # a thread may be waiting for it that has had no connection to read
            if not ref.done():
                call.engine.watch(ref)

    def withdraw(self, call: HeldCall) -> bool:
        """Cancel a held call; False if it has been sent."""
        lane = call.lane
        with self._order:
            if call not in self._lanes.get(lane, ()):
                return False
            self._drop(lane, call)
            self._advance(lane)
        reason = f"{self.name}.{call.name} was cancelled before it began"
        for ref in call.refs:
            ref.complete(LOST, functools.partial(TaskCancelledError, reason))
        return True

    def fail_held(self, why: Callable[[], Exception]) -> None:
        """Fail the held calls: they can't be sent any more."""
        with self._order:
            calls = [call for lane in self._lanes.values() for call in lane]
            self._lanes.clear()
            if calls:
                self._nothing_held(calls[0].engine)
        for call in calls:
            for ref in call.refs:
                ref.complete(LOST, why)

    def on_close(self) -> None:
        super().on_close()
        self.fail_held(self.lost)
