"""Calls and actors of the inline engine. Calls and actors run in the calling process, not in workers."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from trainkit.errors import ActorDiedError, ConfigError, WorkerDiedError
from trainkit.runtime import serialize, specs
from trainkit.runtime.calls.options import has_async_init
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.inline.event_loop import PrivateLoop, running_frames, standing_in
from trainkit.runtime.inline.placement import ResourceShare
from trainkit.runtime.observability.call_recorder import CallRecorder
from trainkit.runtime.refs import Uncopied
from trainkit.runtime.restart_policy import retries_on
from trainkit.runtime.serialize import Packed, pack, unpack
from trainkit.runtime.session import inside

T = TypeVar("T")

_DEAD_KEPT = 1000
"""Maximum number of ended actors in the state listing."""


@dataclass(frozen=True, eq=False)
class CallFrame:
    """Context of one call, or of the steps of a streaming call.

    Attributes:
        name: name of the called code, for error messages.
        loop: event loop for asynchronous code of the call.
        number: number of the call; None if no call is running.
        life: instance of the actor whose method is called; None for a task.
        actor: actor to which the instance belongs; None for a task.
        given: name to show instead of the call's default name, if the call is a constructor or has a name
            from the user.
    """

    name: str
    placement: specs.Placement
    place: ResourceShare
    loop: PrivateLoop
    number: int | None = None
    life: ActorInstance | None = None
    actor: InlineActor | None = None
    given: str | None = None

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run `awaitable` to its end and return its result."""
        return self.loop.run(awaitable, self.name)

    def next_of(self, generator: AsyncGenerator[Any, Any], end: object) -> Any:
        """Return the next item of `generator`, or `end` if the generator has ended."""
        return self.run(anext(generator, end))

    @property
    def shown(self) -> str:
        """Name of the call to show, which is "Class.method" for a method of an actor."""
        if self.given is not None:
            return self.given
        if self.life is None:
            return self.name
        return f"{type(self.life.instance).__name__}.{self.name.rpartition('.')[2]}"

    def leave(self) -> None:
        """Free the resources and the event loop of a task.

        A call of an actor's method frees nothing, as the actor keeps its resources. This method must be
        called only once.
        """
        if self.life is None:
            self.place.give_back()
            self.loop.close()


def current_frame() -> CallFrame | None:
    """Return the frame of the call that runs this code; None outside a call."""
    stack = running_frames()
    return stack[-1] if stack else None


def current_actor() -> InlineActor | None:
    """Return the actor whose method runs this code; None outside an actor."""
    frame = current_frame()
    return None if frame is None else frame.actor


class ActorInstance:
    """One instance of an actor's class, which corresponds to one process of an actor on other engines.

    Attributes:
        name: name of the actor, for error messages.
        over: reason for which the instance has ended; None while the instance is alive.
        calls: number of running calls of the instance.
        made: event that is set once the constructor has ended, or once it is clear that the constructor will
            never begin.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance: Any = None
        self.failure: Packed | None = None
        self.loop = PrivateLoop()
        self.over: str | None = None
        self.calls = 0
        self.made = threading.Event()


class InlineActorExit(BaseException):
    """Exception that ends a running method whose actor has ended.

    The user's `except Exception` does not catch this exception.
    """

    def __init__(self, life: ActorInstance) -> None:
        super().__init__("the actor of this method has ended")
        self.life = life


@dataclass(frozen=True)
class Outcome:
    """Outcome of a call.

    Attributes:
        value: the returned value.
        failure: packed exception, if the call failed.
        error: the raised exception.
        exited: True if the code raised SystemExit, which would end its process on other engines.
    """

    value: Any = None
    failure: Packed | None = None
    error: BaseException | None = None
    exited: bool = False


class InlineCallRunner:
    """Runner of user code, which runs in a `CallFrame`.

    Args:
        spec: settings of the session, with environment variables for all calls.
        recorder: recorder of calls for the timeline; None turns recording off.
    """

    def __init__(self, spec: specs.SessionSpec, recorder: CallRecorder | None) -> None:
        self._spec = spec
        self._recorder = recorder
        self.running: list[CallFrame] = []

    @contextlib.contextmanager
    def entered(self, frame: CallFrame) -> Iterator[None]:
        """Run the `with` block as code of the call `frame`, with the
        call's environment variables and folder.
        """
        outer: tuple[CallFrame, ...] = running_frames()
        # Inner calls inherit the environment of outer calls, as workers started by a worker
        # inherit its environment.
        variables = dict(frame.placement.env) if outer else {**self._spec.environment, **frame.placement.env}
        folder = frame.placement.cwd or (None if outer else self._spec.working_dir)
        changed = _changed(variables, folder) if variables or folder else contextlib.nullcontext()
        self.running.append(frame)
        is_call = frame.number is not None or frame.given is not None
        recorded: AbstractContextManager[None] = contextlib.nullcontext()
        if self._recorder is not None and is_call:
            actor_id = None if frame.actor is None else frame.actor.actor_id
            task_id = None if frame.number is None else f"{frame.number:016x}"
            recorded = self._recorder.recorded(frame.shown, task_id, actor_id)
        try:
            with standing_in((*outer, frame)), changed, recorded:
                yield
        finally:
            self.running.remove(frame)

    def outcome(self, frame: CallFrame, work: Callable[[], Any]) -> Outcome:
        """Run `work` in `frame`.

        A KeyboardInterrupt passes through, because Ctrl-C is meant for the caller in the same process.
        """
        try:
            with self.entered(frame):
                value = work()
        except KeyboardInterrupt:
            raise
        except InlineActorExit as leaving:
            if leaving.life is not frame.life:
                raise
        except SystemExit as leaving:
            return self._left(frame, leaving)
        except BaseException as error:
            failure = pack_failure(error, frame.name, of_constructor=frame.number is None)
            # The traceback and the event loop's task refer to each other, which would keep an actor alive.
            return Outcome(failure=failure, error=error.with_traceback(None))
        else:
            if frame.life is None or frame.life.over is None:
                return Outcome(value)
        return died(frame)

    def _left(self, frame: CallFrame, leaving: SystemExit) -> Outcome:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        reason = f"{frame.name} raised SystemExit({leaving.code!r})"
        if frame.actor is not None:
            frame.actor.end(reason, frame.life)
            return died(frame, code)
        error = WorkerDiedError(f"{frame.name} was ended: it raised SystemExit({leaving.code!r})")
        error.exit_code = code
        return replace(failed(error, frame.name), exited=True)


def failed(error: Exception, name: str) -> Outcome:
    """Return the outcome of a call that failed with `error`."""
    return Outcome(failure=pack_failure(error, name), error=error)


def died(frame: CallFrame, code: int | None = None) -> Outcome:
    """Return the outcome of a call whose actor has ended."""
    name, reason = (frame.life.name, frame.life.over) if frame.life is not None else (frame.name, None)
    error = ActorDiedError(f"{name} was ended: {reason}")
    error.exit_code = code
    return failed(error, frame.name)


def is_retried(outcome: Outcome, spec: specs.TaskSpec | specs.MethodSpec) -> bool:
    """Return whether a call with this outcome is retried if retries are left."""
    return outcome.exited or retries_on(outcome.error, spec.retry_exceptions)


def packed_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Packed:
    """Return a packed copy of the arguments, so that later changes of the arguments have no effect on the
    call.
    """
    return pack((args, dict(kwargs)), f"the arguments of {name}").owned()


def arguments(packed: Packed, resolve: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments, with each reference replaced by its value."""
    args, kwargs = unpack(packed)
    return tuple(map(resolve, args)), {name: resolve(value) for name, value in kwargs.items()}


class InlineActor(Uncopied):
    """Actor of the inline engine. The actor ends when its last handle is gone.

    Args:
        number: id of the actor.
        spec: requested settings of the actor, without the constructor's arguments.
        packed: packed arguments of the constructor.
        namespace: namespace of the actor's name.
        place: resources that the actor holds until it ends.
        caller: runner of the actor's code.
        resolve: function that returns the value of a reference, and any other argument unchanged.
        ended: function that is called once, when the actor has ended.
    """

    def __init__(
        self,
        number: int,
        spec: specs.ActorSpec,
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
        # Several threads of this process may call the actor, but the event loop of an asynchronous actor can
        # run only one call at a time.
        most: dict[str | None, int] = {None: spec.concurrency.max_concurrency or 1}
        most.update(spec.concurrency.groups)
        self._room = {
            group: threading.Semaphore(1 if spec.interface.is_async else count)
            for group, count in most.items()
        }

    @property
    def actor_id(self) -> str:
        """Id of the actor in hexadecimal digits."""
        return f"{self.number:016x}"

    def make(self) -> None:
        """Make the actor's instance, or record the failure of the constructor."""
        life = self.life
        frame = self.frame(self.name, None, life, f"{self._spec.cls.__name__}.__init__")

        def construct() -> None:
            args, kwargs = arguments(self._packed, self._resolve)
            cls: Any = self._spec.cls
            if not has_async_init(cls):
                life.instance = cls(*args, **kwargs)
                return
            instance: Any = cls.__new__(cls, *args, **kwargs)
            frame.run(instance.__init__(*args, **kwargs))
            life.instance = instance

        try:
            with self.busy(None, life):
                life.failure = self._caller.outcome(frame, construct).failure
        finally:
            life.made.set()

    def frame(
        self, name: str, number: int | None, life: ActorInstance, given: str | None = None
    ) -> CallFrame:
        """Return the frame in which a call of the actor runs."""
        return CallFrame(name, self.placement, self.place, life.loop, number, life, self, given)

    @contextlib.contextmanager
    def busy(self, group: str | None, life: ActorInstance | None = None) -> Iterator[ActorInstance]:
        """Run the `with` block as a call in the concurrency group `group` of an actor instance, which is
        kept until the call ends.

        The instance is `life`, or the current instance if `life` is None.

        Raises:
            ConfigError: the group does not exist.
        """
        if group not in self._room:
            declared = sorted(self._spec.concurrency.groups)
            raise ConfigError(f"{self.name} has no concurrency group {group!r}; it declares {declared}")
        # A call of this actor that is further up the same stack can't end first, so a wait for this call
        # would never end.
        within = any(frame.actor is self for frame in running_frames())
        if life is None and not within:  # the actor may be under construction in another thread
            present = self.life
            present.made.wait()
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
        """End the instance and make a new instance. Return False if no restart is allowed."""
        if self.life.over is not None or self._spec.max_restarts in (0, self.restarts):
            return False
        before, self.life = self.life, ActorInstance(self.name)
        self.restarts += 1
        before.over = "it was killed by trainkit.kill(), and restarts"
        self._let_go(before)
        self.make()
        return True

    def end(self, reason: str, life: ActorInstance | None = None) -> None:
        """End the actor.

        Do nothing if the actor has ended, or if `life` is an earlier instance from before a restart.
        """
        present = self.life
        if present.over is not None or life not in (None, present):
            return
        present.over = reason
        present.made.set()
        self._ended(self)
        self.place.give_back()
        for actor in list(self.owned):
            if not actor.detached:
                actor.end(f"its creator {self.name} has ended")
        self._let_go(present)

    def _let_go(self, life: ActorInstance) -> None:
        # if calls of the instance are running, the last one releases the instance when it ends
        if life.calls == 0:
            # The next call runs cleanup code of the user, which needs the actor's frame.
            with self._caller.entered(self.frame(self.name, None, life)):
                life.loop.close()
                life.instance = None

    def row(self) -> dict[str, Any]:
        """Return the actor's row for the state listing."""
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

    def __reduce__(self) -> Any:
        raise TypeError("an actor's handle cannot be pickled: pass it as an argument or a result")

    def __del__(self) -> None:
        self.end("its last handle is gone")


class Actors:
    """Actors of the session, by id and by name.

    Args:
        namespace: default namespace of the session.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._alive: weakref.WeakValueDictionary[int, InlineActor] = weakref.WeakValueDictionary()
        self._detached: set[InlineActor] = set()
        self._dead: deque[dict[str, Any]] = deque(maxlen=_DEAD_KEPT)

    def namespace_of(self, registration: specs.Registration | None) -> str:
        """Return the namespace that `registration` gives, or the default namespace."""
        return (registration.namespace if registration is not None else None) or self._namespace

    def named(self, name: str, namespace: str | None) -> InlineActor | None:
        """Return the living actor named `name`, or None."""
        where = namespace or self._namespace
        for actor in self:
            if (actor.registered, actor.namespace) == (name, where):
                return actor
        return None

    def existing(self, registration: specs.Registration | None) -> InlineActor | None:
        """Return the actor that already has the requested name; None if no actor has the name.

        Raises:
            ConfigError: the name is taken, and the user has not asked for an existing actor.
        """
        if registration is None:
            return None
        found = self.named(registration.name, registration.namespace)
        if found is not None and not registration.get_if_exists:
            raise ConfigError(
                f"an actor named {registration.name!r} exists already in the namespace "
                f"{found.namespace!r}: get it with get_actor() or get_if_exists=True"
            )
        return found

    def find(self, name: str, namespace: str | None) -> InlineActor:
        """Return the living actor named `name`; raise ConfigError if it does not exist."""
        found = self.named(name, namespace)
        if found is None:
            where = namespace or self._namespace
            raise ConfigError(
                f"there is no actor named {name!r} in the namespace {where!r}. It may have ended: an actor "
                "ends when its last handle is gone, unless lifetime='detached'"
            )
        return found

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


def leave_if_over() -> None:
    """End the calling method if its actor has ended."""
    frame = current_frame()
    # If no call is running, this code runs in the `__del__` of the instance, which must not be ended.
    if frame is not None and frame.life is not None and frame.life.over is not None and frame.life.calls:
        raise InlineActorExit(frame.life)


serialize.register(InlineActor, serialize.attached)
