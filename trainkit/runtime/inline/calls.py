"""Calls of the inline engine: the stack of running calls, their arguments and outcomes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainkit.errors import ActorDiedError, WorkerDiedError
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.inline.placement import ResourceShare
from trainkit.runtime.serialize import Packed, pack, unpack
from trainkit.runtime.session import inside
from trainkit.runtime.specs import MethodSpec, Placement, SessionSpec, TaskSpec

if TYPE_CHECKING:
    from trainkit.runtime.inline.actors import ActorInstance, InlineActor
    from trainkit.runtime.inline.event_loop import PrivateLoop


@dataclass(frozen=True, eq=False)
class CallFrame:
    """One call, or the place that the steps of one run in.

    Attributes:
        name: what runs, for errors.
        loop: for what is `async`.
        number: of the call; None where none is running.
        life: the instance whose method it is; None for a task.
        actor: whose instance that is, or was.
        given: the name that the call was given; None for its own.
    """

    name: str
    placement: Placement
    place: ResourceShare
    loop: PrivateLoop
    number: int | None = None
    life: ActorInstance | None = None
    actor: InlineActor | None = None
    given: str | None = None

    def leave(self) -> None:
        """Free what a task holds; an actor keeps it. To be called once."""
        if self.life is None:
            self.place.give_back()
            self.loop.close()


class _Stack(threading.local):
    # Not a context variable: what runs in a greenlet of its own is part of the call that switches to it.
    frames: tuple[CallFrame, ...] = ()


_stack = _Stack()


def frames() -> tuple[CallFrame, ...]:
    """The calls that this code runs in, the innermost last."""
    return _stack.frames


@contextlib.contextmanager
def standing_in(inside: tuple[CallFrame, ...]) -> Iterator[None]:
    """Let what runs here, in this thread, be part of those calls."""
    outer = _stack.frames
    _stack.frames = inside
    try:
        yield
    finally:
        _stack.frames = outer


class InlineActorExit(BaseException):
    """Unwinds a method whose actor has ended; no `except Exception` of the user's stops it."""

    def __init__(self, life: ActorInstance) -> None:
        super().__init__("the actor that this runs in has ended")
        self.life = life


@dataclass(frozen=True)
class Outcome:
    """Outcome of a call.

    Attributes:
        value: what was returned.
        failure: packed, in place of a value.
        error: what was raised.
        exited: by SystemExit, as if to end a process of its own.
    """

    value: Any = None
    failure: Packed | None = None
    error: BaseException | None = None
    exited: bool = False


class InlineCallRunner:
    """Runs user code in its frames.

    Args:
        spec: of the session, for what every call sees.
    """

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self.running: list[CallFrame] = []

    @contextlib.contextmanager
    def entered(self, frame: CallFrame) -> Iterator[None]:
        """Let what runs here be `frame`'s, and see its environment and folder."""
        outer = frames()
        # What an outer call sees, its inner ones see too, as a worker's own workers do.
        variables = dict(frame.placement.env) if outer else {**self._spec.environment, **frame.placement.env}
        folder = frame.placement.cwd or (None if outer else self._spec.working_dir)
        self.running.append(frame)
        try:
            with standing_in((*outer, frame)), _surroundings(variables, folder):
                yield
        finally:
            self.running.remove(frame)

    def outcome(self, frame: CallFrame, work: Callable[[], Any]) -> Outcome:
        """Do `work` in `frame`.

        KeyboardInterrupt is the caller's own Ctrl-C, as this is the caller's process, and passes through.
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
            return Outcome(failure=pack_failure(error, frame.name), error=error)
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
    """The outcome of a call that `error` stands for."""
    return Outcome(failure=pack_failure(error, name), error=error)


def died(frame: CallFrame, code: int | None = None) -> Outcome:
    """The outcome of a call whose actor has ended."""
    name, reason = (frame.life.name, frame.life.over) if frame.life is not None else (frame.name, None)
    error = ActorDiedError(f"{name} was ended: {reason}")
    error.exit_code = code
    return failed(error, frame.name)


def is_retried(outcome: Outcome, spec: TaskSpec | MethodSpec) -> bool:
    """Return whether a call that came to `outcome` is to run again, if that is left."""
    if outcome.exited:
        return True
    wanted = spec.retry_exceptions
    if isinstance(wanted, bool):
        return wanted and isinstance(outcome.error, Exception)
    return isinstance(outcome.error, wanted)


def require_generator(result: Any, name: str) -> Any:
    """`result`, if values can be pulled out of it; raises TypeError if not."""
    if hasattr(result, "__next__") or hasattr(result, "__anext__"):
        return result
    raise TypeError(
        f"{name} was called with num_returns='streaming' and returned a {type(result).__name__}; it must "
        "be a generator, or return an iterator"
    )


def packed_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Packed:
    """A copy of the arguments as they are now."""
    return pack((args, dict(kwargs)), f"the arguments of {name}").owned()


def arguments(packed: Packed, resolve: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments, each reference among them replaced by its value."""
    args, kwargs = unpack(packed)
    return tuple(map(resolve, args)), {name: resolve(value) for name, value in kwargs.items()}


def _surroundings(
    variables: Mapping[str, str], folder: str | None
) -> contextlib.AbstractContextManager[None]:
    if variables or folder:
        return _changed(variables, folder)
    return contextlib.nullcontext()


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
