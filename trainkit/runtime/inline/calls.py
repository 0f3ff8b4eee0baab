"""Calls and actors of the inline engine. Both run in the calling process, not in workers."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from trainkit.errors import ActorDiedError, ConfigError, WorkerDiedError
from trainkit.runtime import serialize, specs
from trainkit.runtime.calls.methods import method_of
from trainkit.runtime.calls.options import has_async_init
from trainkit.runtime.engine import Row
from trainkit.runtime.failures import ActorExit, pack_failure
from trainkit.runtime.inline.event_loop import PrivateLoop, running_frames, standing_in
from trainkit.runtime.inline.placement import GpuShare
from trainkit.runtime.refs import Uncopied
from trainkit.runtime.serialize import Packed
from trainkit.runtime.session import inside

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class CallFrame:
    """Context of one call, of the steps of a streaming call, or of the program itself.

    Attributes:
        name: name of the called code, for error messages.
        gpus: GPUs given to the call.
        loop: event loop for asynchronous code of the call.
        task_id: id of the call; None for the program, and for an actor's constructor and cleanup.
        shown: name that the call itself sees, which is "Class.method" for a method of an actor.
        actor: actor whose code runs; None for a task.
    """

    name: str
    placement: specs.Placement
    gpus: GpuShare
    loop: PrivateLoop
    task_id: str | None = None
    shown: str | None = None
    actor: InlineActor | None = None

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run `awaitable` to its end and return its result."""
        return self.loop.run(awaitable, self.name)

    def leave(self) -> None:
        """Free the GPUs and the event loop of a task; an actor keeps them. Call this only once."""
        if self.actor is None:
            self.gpus.give_back()
            self.loop.close()


@dataclass(frozen=True)
class Outcome:
    """Outcome of a call.

    Attributes:
        value: the returned value.
        failure: packed exception, if the call failed.
        error: the raised exception.
    """

    value: Any = None
    failure: Packed | None = None
    error: BaseException | None = None


def failed(error: BaseException, name: str, *, of_constructor: bool = False) -> Outcome:
    """Return the outcome of a call that failed with `error`."""
    failure = pack_failure(error, name, of_constructor=of_constructor)
    # The traceback and the task of the event loop refer to each other, which would keep an actor alive.
    return Outcome(failure=failure, error=error.with_traceback(None))


def run(frame: CallFrame, work: Callable[[], Any]) -> Outcome:
    """Run `work` in `frame`.

    A KeyboardInterrupt passes through, because Ctrl-C is meant for the caller in the same process.
    """
    actor = frame.actor
    value = code = None
    try:
        with entered(frame):
            if actor is None or (actor.over is None and actor.failure is None):
                value = work()
    except KeyboardInterrupt:
        raise
    except ActorExit:
        pass  # the actor has ended
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        reason = f"raised SystemExit({leaving.code!r})"
        if actor is None:
            return _died(WorkerDiedError(f"{frame.name} was ended: it {reason}"), frame, code)
        actor.end(f"{frame.name} {reason}")
    except BaseException as error:
        return failed(error, frame.name, of_constructor=frame.task_id is None)
    if actor is not None and actor.over is not None:
        return _died(ActorDiedError(f"{actor.name} was ended: {actor.over}"), frame, code)
    return Outcome(value, failure=None if actor is None else actor.failure)


def _died(error: WorkerDiedError, frame: CallFrame, code: int | None) -> Outcome:
    error.exit_code = code
    return failed(error, frame.name)


@contextlib.contextmanager
def entered(frame: CallFrame) -> Iterator[None]:
    """Run the `with` block as code of the call `frame`, with the call's environment variables and folder."""
    variables = frame.placement.env
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        turn = contextlib.nullcontext() if frame.actor is None else frame.actor.turn()
        with turn, standing_in((*running_frames(), frame)), inside(frame.placement.cwd):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class InlineActor(Uncopied):
    """Actor of the inline engine. The actor ends when its last handle is gone.

    Args:
        actor_id: id of the actor in hexadecimal digits.
        spec: requested settings of the actor.
        namespace: namespace of the actor's name.
        gpus: GPUs that the actor holds until it ends.
        ended: function that is called once, when the actor has ended.

    Attributes:
        failure: packed exception of the constructor.
        over: reason for which the actor has ended; None while the actor is alive.
        owned: actors that this actor has made, which end with it.
    """

    def __init__(
        self,
        actor_id: str,
        spec: specs.ActorSpec,
        namespace: str,
        gpus: GpuShare,
        ended: Callable[[InlineActor], None],
    ) -> None:
        self.actor_id = actor_id
        self.spec = replace(spec, args=(), kwargs={})
        self.name = spec.name
        self.registered = spec.registration.name if spec.registration is not None else None
        self.namespace = namespace
        self.detached = spec.registration is not None and spec.registration.detached
        self.failure: Packed | None = None
        self.over: str | None = None
        self.owned: weakref.WeakSet[InlineActor] = weakref.WeakSet()
        self._instance: Any = None
        self._gpus = gpus
        self._ended = ended
        self._loop = PrivateLoop()
        self._turn = threading.RLock()

    def frame(self, name: str, task_id: str | None = None, shown: str | None = None) -> CallFrame:
        """Return the frame in which a call of the actor runs."""
        return CallFrame(name, self.spec.placement, self._gpus, self._loop, task_id, shown, self)

    def make(self, arguments: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
        """Make the actor's instance, or record the failure of the constructor."""
        frame = self.frame(self.name)
        cls: Any = self.spec.cls

        def construct() -> None:
            args, kwargs = arguments()
            if has_async_init(cls):
                instance: Any = cls.__new__(cls, *args, **kwargs)
                frame.run(instance.__init__(*args, **kwargs))
            else:
                instance = cls(*args, **kwargs)
            self._instance = instance

        self.failure = run(frame, construct).failure

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method of the instance; raise ConfigError before the end of the constructor."""
        if self._instance is None:
            where = f"{self.name}.{name}"
            raise ConfigError(f"{where}() was called in its actor's constructor, which must end first")
        return method_of(self._instance, name)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Run the `with` block as a call of the actor, while no other thread runs a call of the actor."""
        # A call of this actor further up the same stack can't end first, so waiting for it would never end.
        with contextlib.nullcontext() if self._is_running() else self._turn:
            try:
                yield
            finally:
                self._release()

    def end(self, reason: str) -> None:
        """End the actor. Do nothing if the actor has ended."""
        if self.over is not None:
            return
        self.over = reason
        self._ended(self)
        self._gpus.give_back()
        for actor in list(self.owned):
            if not actor.detached:
                actor.end(f"its creator {self.name} has ended")
        self._release()

    def _is_running(self) -> bool:
        return any(frame.actor is self for frame in running_frames())

    def _release(self) -> None:
        """Release the instance of an ended actor, unless a call of the actor still runs."""
        # If another thread runs a call, that thread releases the instance when the call ends.
        if self.over is None or self._is_running() or not self._turn.acquire(blocking=False):
            return
        try:
            # The user's cleanup code runs here, so it needs the actor's frame.
            with standing_in((*running_frames(), self.frame(self.name))):
                self._loop.close()
                self._instance = None
        finally:
            self._turn.release()

    def row(self) -> Row:
        """Return the actor's row for the state listing."""
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
        raise TypeError("an actor's handle cannot be pickled: pass it as an argument or a result")

    def __del__(self) -> None:
        self.end("its last handle is gone")


serialize.register(InlineActor, serialize.attached)
