"""Calls and actors of the inline engine, which are in the calling process."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from trainkit.errors import ActorDiedError, WorkerDiedError
from trainkit.runtime import serialize, specs
from trainkit.runtime.calls.options import has_async_init
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.inline.event_loop import PrivateLoop, running_frames, standing_in
from trainkit.runtime.observability.call_recorder import CallRecorder
from trainkit.runtime.refs import Uncopied
from trainkit.runtime.serialize import Packed, pack, unpack
from trainkit.runtime.session import inside

T = TypeVar("T")

_DEAD_KEPT = 1000
"""Maximum number of ended actors in the listing."""


@dataclass(frozen=True, eq=False)
class CallFrame:
    """Context of one call, or of the steps of a stream.

    Attributes:
        name: name of the called code, for errors.
        shown: name of the call for users, such as "Class.method" in an actor; "" for the cleanup of an actor.
        loop: event loop for async code.
        number: number of the call; None for constructors and cleanup.
        actor: actor whose method is called; None for a task.
    """

    name: str
    shown: str
    placement: specs.Placement
    loop: PrivateLoop
    number: int | None = None
    actor: InlineActor | None = None

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run `awaitable` to its end and return its result."""
        return self.loop.run(awaitable, self.name)

    def leave(self) -> None:
        """Close the event loop of a task. An actor's loop stays open."""
        if self.actor is None:
            self.loop.close()

    @property
    def task_id(self) -> str | None:
        """Id of the call; None for constructors and cleanup."""
        return None if self.number is None else f"{self.number:016x}"


def current_frame() -> CallFrame | None:
    """Return the frame of the call that runs this code; None outside a call."""
    stack = running_frames()
    return stack[-1] if stack else None


def current_actor() -> InlineActor | None:
    """Return the actor whose method runs this code; None outside an actor."""
    frame = current_frame()
    return None if frame is None else frame.actor


class InlineActorExit(BaseException):
    """Signal that ends a method of an ended actor. The user's `except Exception` does not catch it."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a call.

    Attributes:
        value: the returned value.
        failure: packed failure, if the call failed.
        error: the raised exception.
        exited: True if a task raised SystemExit, which would end its process on other engines.
    """

    value: Any = None
    failure: Packed | None = None
    error: BaseException | None = None
    exited: bool = False


class InlineCallRunner:
    """Runner of user code in call frames.

    Args:
        spec: settings of the session, whose environment applies to every call.
        recorder: recorder of calls for the timeline; None turns recording off.
    """

    def __init__(self, spec: specs.SessionSpec, recorder: CallRecorder | None) -> None:
        self._spec = spec
        self._recorder = recorder
        self.running: list[CallFrame] = []

    @contextlib.contextmanager
    def entered(self, frame: CallFrame) -> Iterator[None]:
        """Run the code of the `with` block in `frame`, with the frame's environment and folder."""
        outer: tuple[CallFrame, ...] = running_frames()
        # Inner calls inherit the environment of outer calls, as the workers that a worker starts do.
        variables = dict(frame.placement.env) if outer else {**self._spec.environment, **frame.placement.env}
        folder = frame.placement.cwd or (None if outer else self._spec.working_dir)
        changed = _changed(variables, folder) if variables or folder else nullcontext()
        recorded: AbstractContextManager[None] = nullcontext()
        if self._recorder is not None and frame.shown:
            actor_id = None if frame.actor is None else frame.actor.actor_id
            recorded = self._recorder.recorded(frame.shown, frame.task_id, actor_id)
        self.running.append(frame)
        try:
            with standing_in((*outer, frame)), changed, recorded:
                yield
        finally:
            self.running.remove(frame)

    def outcome(self, frame: CallFrame, work: Callable[[], Any]) -> Outcome:
        """Run `work` in `frame`.

        A KeyboardInterrupt is raised unchanged, because Ctrl-C is meant for the caller in the same process.
        """
        actor = frame.actor
        try:
            with self.entered(frame):
                value = work()
        except KeyboardInterrupt:
            raise
        except InlineActorExit:
            return died(frame)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            reason = f"raised SystemExit({leaving.code!r})"
            if actor is not None:
                actor.end(f"{frame.name} {reason}")
                return died(frame, code)
            error = WorkerDiedError(f"{frame.name} was ended: it {reason}")
            error.exit_code = code
            return failed(error, frame.name, exited=True)
        except BaseException as error:
            return failed(error, frame.name)
        return Outcome(value) if actor is None or actor.over is None else died(frame)


def failed(error: BaseException, name: str, *, exited: bool = False) -> Outcome:
    """Return the outcome of a call that failed with `error`."""
    return Outcome(failure=pack_failure(error, name), error=error, exited=exited)


def died(frame: CallFrame, code: int | None = None) -> Outcome:
    """Return the outcome of a call whose actor has ended."""
    actor = frame.actor
    reason = None if actor is None else actor.over
    error = ActorDiedError(f"{frame.name if actor is None else actor.name} was ended: {reason}")
    error.exit_code = code
    return failed(error, frame.name)


def packed_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Packed:
    """Return a packed copy of the arguments in their current state."""
    return pack((args, dict(kwargs)), f"the arguments of {name}").owned()


def arguments(packed: Packed, resolve: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments, with each reference replaced by its value."""
    args, kwargs = unpack(packed)
    return tuple(map(resolve, args)), {name: resolve(value) for name, value in kwargs.items()}


class InlineActor(Uncopied):
    """Actor of the inline engine, which ends when its last handle is gone.

    Args:
        number: id of the actor.
        spec: requested settings, without the arguments.
        namespace: namespace of the actor's name.
        caller: runner of the actor's code.
        ended: function that is called once, when the actor has ended.

    Attributes:
        over: reason for the actor's end; None while the actor is alive.
        failure: failure of the constructor, which every call reports.
        made: True once the constructor has ended.
        calls: number of running calls of the actor.
        lock: lock that calls of other threads wait for, since an actor runs one call at a time.
    """

    def __init__(
        self,
        number: int,
        spec: specs.ActorSpec,
        *,
        namespace: str,
        caller: InlineCallRunner,
        ended: Callable[[InlineActor], None],
    ) -> None:
        self.number = number
        self.spec = spec
        self.name = spec.name
        self.registered = spec.registration.name if spec.registration is not None else None
        self.namespace = namespace
        self.detached = spec.registration is not None and spec.registration.detached
        self.instance: Any = None
        self.over: str | None = None
        self.failure: Packed | None = None
        self.made = False
        self.calls = 0
        self.lock = threading.Lock()
        self.owned: weakref.WeakSet[InlineActor] = weakref.WeakSet()
        self._loop = PrivateLoop()
        self._caller = caller
        self._ended = ended

    @property
    def actor_id(self) -> str:
        """Id of the actor in hexadecimal digits."""
        return f"{self.number:016x}"

    def make(self, packed: Packed, resolve: Callable[[Any], Any]) -> None:
        """Make the instance from packed arguments, or record the failure of its constructor."""
        cls: Any = self.spec.cls
        frame = self.frame(self.name, f"{cls.__name__}.__init__")

        def construct() -> None:
            args, kwargs = arguments(packed, resolve)
            if not has_async_init(cls):
                self.instance = cls(*args, **kwargs)
                return
            instance: Any = cls.__new__(cls, *args, **kwargs)
            frame.run(instance.__init__(*args, **kwargs))
            self.instance = instance

        with self._counted():
            outcome = self._caller.outcome(frame, construct)
        self.made = True
        if outcome.error is not None and self.over is None:
            self.failure = pack_failure(outcome.error, self.name, of_constructor=True)

    def frame(self, name: str, shown: str, number: int | None = None) -> CallFrame:
        """Return the frame in which a call of the actor runs."""
        return CallFrame(name, shown, self.spec.placement, self._loop, number, self)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Run an actor's call in the `with` block, after the running calls of other threads."""
        # A call of this actor further up the same stack can't end first, so waiting for that call would never
        # end.
        within = any(frame.actor is self for frame in running_frames())
        with nullcontext() if within else self.lock, self._counted():
            yield

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            self._let_go()

    def end(self, reason: str) -> None:
        """End the actor, unless it has ended already."""
        if self.over is not None:
            return
        self.over = reason
        self._ended(self)
        for actor in list(self.owned):
            if not actor.detached:
                actor.end(f"{self.name}, which made it, has ended")
        self._let_go()

    def _let_go(self) -> None:
        """Drop the instance of an ended actor, after its last call."""
        if self.over is not None and self.calls == 0:
            # The user's cleanup code, such as `__del__`, runs in a call frame too, so a frame is entered for
            # it.
            with self._caller.entered(self.frame(self.name, "")):
                self._loop.close()
                self.instance = None

    def row(self) -> dict[str, Any]:
        """Return the listing row of the actor."""
        return {
            "actor_id": self.actor_id,
            "class_name": self.spec.cls.__name__,
            "name": self.registered,
            "namespace": self.namespace,
            "state": "ALIVE" if self.over is None else "DEAD",
            "pid": os.getpid(),
            "resources": dict(self.spec.placement.resources),
            "detached": self.detached,
            "restarts": 0,
            "death_cause": self.over,
        }

    def __reduce__(self) -> Any:
        raise TypeError("an actor's handle can only be sent as an argument or a result, not pickled by hand")

    def __del__(self) -> None:
        self.end("its last handle is gone")


class Actors:
    """Actors of the session."""

    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[int, InlineActor] = weakref.WeakValueDictionary()
        self._detached: set[InlineActor] = set()
        self._dead: deque[dict[str, Any]] = deque(maxlen=_DEAD_KEPT)

    def named(self, name: str, namespace: str) -> InlineActor | None:
        """Return the living actor with that name, or None."""
        return next(
            (actor for actor in self if (actor.registered, actor.namespace) == (name, namespace)), None
        )

    def add(self, actor: InlineActor) -> None:
        """Add a new actor, owned by the actor that runs this code."""
        self._alive[actor.number] = actor
        if actor.detached:
            self._detached.add(actor)
        owner = current_actor()
        if owner is not None:
            owner.owned.add(actor)

    def ended(self, actor: InlineActor) -> None:
        """Record the end of an actor."""
        self._alive.pop(actor.number, None)
        self._detached.discard(actor)
        self._dead.append(actor.row())

    def __iter__(self) -> Iterator[InlineActor]:
        return iter(list(self._alive.values()))

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of living and ended actors."""
        return [*(actor.row() for actor in self), *self._dead]


@contextlib.contextmanager
def _changed(variables: Mapping[str, str], folder: str | None) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        with inside(folder):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


serialize.register(InlineActor, serialize.attached)
