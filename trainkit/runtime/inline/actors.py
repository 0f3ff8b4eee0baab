"""Actors of the inline engine: instances in the calling process."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trainkit.errors import ConfigError
from trainkit.runtime import serialize
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.inline.calls import CallFrame, InlineActorExit, InlineCallRunner, arguments, frames
from trainkit.runtime.inline.event_loop import PrivateLoop
from trainkit.runtime.inline.placement import ResourceShare
from trainkit.runtime.serialize import Packed
from trainkit.runtime.specs import ActorSpec, Registration

_DEAD_KEPT = 1000
"""How many ended actors are still listed."""


class ActorInstance:
    """One instance of an actor's class: what a process would be.

    Attributes:
        name: of the actor, for errors.
        over: why it ended; None while it lives.
        calls: how many run in it now.
        made: the constructor has ended, or will not begin.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance: Any = None
        self.failure: Packed | None = None
        self.loop = PrivateLoop()
        self.over: str | None = None
        self.calls = 0
        self.made = threading.Event()


class InlineActor:
    """Actor of the inline engine, held by its handles; it ends with the last of them.

    Args:
        number: its id.
        spec: as it was asked for, without the arguments.
        packed: its constructor's arguments.
        namespace: that its name is in.
        place: what it holds as long as it lives.
        caller: runs its code.
        resolve: gives the value of an argument that is a reference.
        ended: called once, when it has.
    """

    def __init__(
        self,
        number: int,
        spec: ActorSpec,
        packed: Packed,
        *,
        namespace: str,
        place: ResourceShare,
        caller: InlineCallRunner,
        resolve: Callable[[Any], Any],
        ended: Callable[[InlineActor], None],
    ) -> None:
        self.number = number
        self.name = spec.name
        self.registered = spec.registration.name if spec.registration is not None else None
        self.namespace = namespace
        self.detached = spec.registration is not None and spec.registration.detached
        self.interface = spec.interface
        self.max_task_retries = spec.max_task_retries
        self.placement = spec.placement
        self.place = place
        self.restarts = 0
        self.life = ActorInstance(self.name)
        self.owned: weakref.WeakSet[InlineActor] = weakref.WeakSet()
        self._spec = spec
        self._packed = packed
        self._caller = caller
        self._resolve = resolve
        self._ended = ended
        most = spec.concurrency.max_concurrency or 1
        # Several threads of this process may call. An event loop, though, has room for one call.
        rooms: dict[str | None, int] = {None: most}
        rooms.update(spec.concurrency.groups)
        self._room = {
            group: threading.Semaphore(1 if spec.interface.is_async else count)
            for group, count in rooms.items()
        }

    @property
    def actor_id(self) -> str:
        """The actor's id, in hexadecimal."""
        return f"{self.number:016x}"

    def make(self) -> None:
        """Make the instance, or note why that failed."""
        life = self.life
        frame = self.frame(self.name, None, life)

        def construct() -> None:
            args, kwargs = arguments(self._packed, self._resolve)
            life.instance = self._spec.cls(*args, **kwargs)

        try:
            with self.busy(None, life):
                outcome = self._caller.outcome(frame, construct)
            if outcome.error is not None and life.over is None:
                life.failure = pack_failure(outcome.error, self.name, of_constructor=True)
            else:
                life.failure = outcome.failure
        finally:
            life.made.set()

    def frame(
        self, name: str, number: int | None, life: ActorInstance, given: str | None = None
    ) -> CallFrame:
        """Return the frame in which a call of the actor runs."""
        return CallFrame(name, self.placement, self.place, life.loop, number, life, self, given)

    @contextmanager
    def busy(self, group: str | None, life: ActorInstance | None = None) -> Iterator[ActorInstance]:
        """A call of that group runs in `life`, or the present one, which is let go of only behind it.

        Raises:
            ConfigError: there is no such group.
        """
        if group not in self._room:
            declared = sorted(self._spec.concurrency.groups)
            raise ConfigError(f"concurrency_group={group!r}: {self.name} declares the groups {declared}")
        within = any(frame.actor is self for frame in frames())  # its own, further up, would never end
        if life is None and not within:  # another thread may have found it while it is being made
            self.life.made.wait()
        room = None if within else self._room[group]
        if room is not None:
            room.acquire()
        life = life or self.life
        life.calls += 1
        try:
            yield life
        finally:
            life.calls -= 1
            if room is not None:
                room.release()
            if life.over is not None:
                self._let_go(life)

    def restart(self) -> bool:
        """End its instance and make it anew, if it may be; False if not."""
        if self.life.over is not None or self._spec.max_restarts in (0, self.restarts):
            return False
        before, self.life = self.life, ActorInstance(self.name)
        self.restarts += 1
        before.over = "it was killed by trainkit.kill(), and is being made anew"
        self._let_go(before)
        self.make()
        return True

    def end(self, reason: str, life: ActorInstance | None = None) -> None:
        """End it; without effect if it has, or if `life` is not its present one."""
        if self.life.over is not None or life not in (None, self.life):
            return
        self.life.over = reason
        self.life.made.set()
        self._ended(self)
        self.place.give_back()
        for actor in list(self.owned):
            if not actor.detached:
                actor.end(f"{self.name}, which made it, has ended")
        self._let_go(self.life)

    def _let_go(self, life: ActorInstance) -> None:
        if life.calls == 0:  # else the last of them does it
            with self._caller.entered(
                self.frame(self.name, None, life)
            ):  # for what the user's code does at its end
                life.loop.close()
                life.instance = None

    def row(self) -> dict[str, Any]:
        """It as plain data."""
        over = self.life.over
        return {
            "actor_id": f"{self.number:016x}",
            "class_name": self._spec.cls.__name__,
            "name": self.registered,
            "namespace": self.namespace,
            "state": "ALIVE" if over is None else "DEAD",
            "pid": os.getpid(),
            "resources": dict(self.placement.resources),
            "detached": self.detached,
            "restarts": self.restarts,
            "death_cause": over,
        }

    def __copy__(self) -> InlineActor:
        return self

    def __deepcopy__(self, memo: object) -> InlineActor:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("an actor's handle can only be sent as an argument or a result, not pickled by hand")

    def __del__(self) -> None:
        self.end("its last handle is gone")


class Actors:
    """Which actors there are, and by what names.

    Args:
        namespace: the session's own.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._alive: weakref.WeakValueDictionary[int, InlineActor] = weakref.WeakValueDictionary()
        self._detached: set[InlineActor] = set()
        self._dead: deque[dict[str, Any]] = deque(maxlen=_DEAD_KEPT)

    def namespace_of(self, registration: Registration | None) -> str:
        """The namespace that a registration means."""
        return (registration.namespace if registration is not None else None) or self._namespace

    def named(self, name: str, namespace: str | None) -> InlineActor | None:
        """The living actor of that name."""
        where = namespace or self._namespace
        for actor in self:
            if (actor.registered, actor.namespace) == (name, where):
                return actor
        return None

    def existing(self, registration: Registration | None) -> InlineActor | None:
        """The one to use instead of a new one, if that is asked for.

        Raises:
            ConfigError: the name is taken.
        """
        if registration is None or registration.name is None:
            return None
        found = self.named(registration.name, registration.namespace)
        if found is not None and not registration.get_if_exists:
            raise ConfigError(
                f"name={registration.name!r}: there is an actor of that name in the namespace "
                f"{found.namespace!r}; get_actor() finds it, and get_if_exists=True uses it"
            )
        return found

    def find(self, name: str, namespace: str | None) -> InlineActor:
        """The living actor of that name; raises ConfigError if there is none."""
        found = self.named(name, namespace)
        if found is None:
            where = namespace or self._namespace
            raise ConfigError(
                f"there is no actor of the name {name!r} in the namespace {where!r}; it may have ended, "
                "as an actor does when its last handle is gone, unless lifetime='detached'"
            )
        return found

    def add(self, actor: InlineActor) -> None:
        """List a new one, as owned by the actor that this runs in."""
        self._alive[actor.number] = actor
        if actor.detached:
            self._detached.add(actor)
        owner = frames()[-1].actor if frames() else None
        if owner is not None:
            owner.owned.add(actor)

    def ended(self, actor: InlineActor) -> None:
        """Note the end of one."""
        self._alive.pop(actor.number, None)
        self._detached.discard(actor)
        self._dead.append(actor.row())

    def __iter__(self) -> Iterator[InlineActor]:
        return iter(list(self._alive.values()))

    def rows(self) -> list[dict[str, Any]]:
        """Living and ended ones as plain data."""
        return [*(actor.row() for actor in self), *self._dead]


def leave_if_over() -> None:
    """Unwind the method that calls this, if its actor has ended."""
    frame = frames()[-1] if frames() else None
    # Not without a call: what runs then is the instance's `__del__`.
    if frame is not None and frame.life is not None and frame.life.over is not None and frame.life.calls:
        raise InlineActorExit(frame.life)


def _reduce_actor(pickler: Any, actor: InlineActor) -> Any:
    return _load_actor, (pickler.attach(actor),)


def _load_actor(position: int) -> Any:
    return serialize.claim(position)


serialize.register(InlineActor, _reduce_actor)
