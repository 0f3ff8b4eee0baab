"""Code that runs in Ray's workers: wrappers around the user's functions and classes.

Ray receives these wrappers instead of the user's code. The wrappers unpack the arguments, make trainkit's
functions available in the process, and pack results and failures as other engines do. The wrappers have the
names of the user's functions and classes, so that Ray's dashboard and logs show these names.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import ray

from trainkit.plugins.ray.errors import RetriedFailure, UserFailure, translate
from trainkit.plugins.ray.values import Call, Parcel, seal, unseal, wrap
from trainkit.runtime.calls.methods import method_of
from trainkit.runtime.calls.results import drained, split_results
from trainkit.runtime.failures import ActorExit, pack_failure
from trainkit.runtime.restart_policy import RetriedKinds, retries_on
from trainkit.runtime.session import inside

Join = Callable[[], None]
Running = Callable[[Call], contextlib.AbstractContextManager[None]]


def _hide_gpus() -> None:
    """Hide all GPUs from a process that requested no GPUs, because Ray would show the node's GPUs to this
    process.
    """
    if not ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray sets the variable again for a task that requests GPUs


@contextlib.contextmanager
def _told_as(
    failure: Callable[[Exception], UserFailure], leaves: tuple[type[BaseException], ...] = ()
) -> Iterator[None]:
    """Run user code in the `with` block, and raise its exceptions in a form that Ray can transfer.

    Args:
        failure: function that returns the exception to raise instead of an exception of user code.
        leaves: classes of exceptions that end the actor.
    """
    try:
        yield
    except UserFailure:
        raise
    except leaves:
        ray.actor.exit_actor()
    except Exception as error:
        raise failure(error) from None


class _Task:
    """User's function in a worker, which is unpacked at the first call."""

    def __init__(self, function: Parcel, retries: Parcel, join: Join) -> None:
        self.function = function
        self.retries = retries
        self.join = join
        self.opened: tuple[Any, Any] | None = None

    def start(self, call: Call, values: Sequence[Any]) -> Any:
        """Call the function."""
        args, kwargs = call.resolved(values)
        if self.opened is None:
            self.opened = unseal(self.function), unseal(self.retries)
        return self.opened[0](*args, **kwargs)

    @contextlib.contextmanager
    def running(self, call: Call) -> Iterator[None]:
        """Run the `with` block in the folder of the call, with trainkit's functions available."""
        self.join()
        _hide_gpus()
        with _told_as(functools.partial(self._failure, call)), inside(call.folder):
            yield

    def _failure(self, call: Call, error: Exception) -> UserFailure:
        """Return the exception to raise instead of `error`, whose class
        tells Ray whether to retry the task.
        """
        return _failure(error, call, _kind(error, self.opened[1] if self.opened else False))


def task_body(
    function: Parcel, retries: Parcel, name: str, streaming: bool, join: Join
) -> Callable[..., Any]:
    """Return the function that runs a task in Ray's worker.

    Args:
        function: the user's function.
        retries: `TaskSpec.retry_exceptions`.
        name: name of the task in Ray's listings.
        streaming: True if the results arrive one by one, for which Ray requires a generator function.
        join: function that makes trainkit's functions available in the process.
    """
    task = _Task(function, retries, join)

    def plain(call: Call, *values: Any) -> Any:
        with task.running(call):
            return _results(task.start(call, values), call, task.running)

    def stream(call: Call, *values: Any) -> Iterator[Parcel]:
        with task.running(call):
            yield from _sealed(task.start(call, values), call)

    body = stream if streaming else plain
    body.__name__ = body.__qualname__ = name
    return body


def _results(result: Any, call: Call, running: Running) -> Any:
    what = f"the result of {call.where}"
    values = split_results(result, call.num_returns, call.where)
    if call.num_returns > 1 and isinstance(result, Iterator):
        return _yielded(values, call, running)
    parts = [seal(part, what) for part in values]
    return parts[0] if call.num_returns == 1 else parts if call.num_returns else None


def _yielded(items: Iterable[Any], call: Call, running: Running) -> Iterator[Parcel]:
    with running(call):
        yield from _sealed(items, call)


def _sealed(items: Iterable[Any], call: Call) -> Iterator[Parcel]:
    for item in items:
        yield seal(item, f"a result of {call.where}")


def _kind(error: Exception, retries: RetriedKinds) -> type[UserFailure]:
    return RetriedFailure if retries_on(error, retries) else UserFailure


def _failure(
    error: Exception, call: Call, kind: type[UserFailure] = UserFailure, *, of_constructor: bool = False
) -> UserFailure:
    return kind(wrap(pack_failure(error, f"{call.where} (pid {os.getpid()})", of_constructor=of_constructor)))


def _method_failure(call: Call, error: Exception) -> UserFailure:
    """Return the exception to raise instead of `error`, whose class tells Ray whether to retry the call."""
    return _failure(error, call, _kind(error, False if call.retries is None else unseal(call.retries)))


class ActorHost:
    """Host of an actor whose methods are plain functions. The actor is the only actor of its process.

    Attributes:
        made_of: the user's class, and the actor's name in error messages; None outside an actor.
    """

    join: Join
    made_of: ClassVar[tuple[type, str] | None] = None
    _leaves: ClassVar[tuple[type[BaseException], ...]] = (ActorExit,)

    def __init__(self, call: Call, cls: Parcel, refs: list[Any], *_: None) -> None:
        type(self).join()
        _hide_gpus()
        self._failure: UserFailure | None = None
        try:
            if call.folder is not None:
                os.chdir(call.folder)
                sys.path.insert(0, call.folder)
            # This method reads the arguments, because if Ray read them, callers would get only the text of a
            # failed argument's error.
            args, kwargs = call.resolved(ray.get(refs))
            made_of = unseal(cls)
            ActorHost.made_of = made_of, call.where
            self._instance = made_of(*args, **kwargs)
        except ray.exceptions.RayError as error:
            translated = translate(error)
            failure = translated if isinstance(translated, Exception) else error
            self._failure = _failure(failure, call, of_constructor=True)
        except Exception as error:  # the error is kept, so that callers get it unchanged
            self._failure = _failure(error, call, of_constructor=True)

    def _start(self, call: Call, values: Sequence[Any]) -> Any:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        args, kwargs = call.resolved(values)
        return method_of(self._instance, call.method)(*args, **kwargs)

    def _running(self, call: Call) -> contextlib.AbstractContextManager[None]:
        return _told_as(functools.partial(_method_failure, call), self._leaves)

    def call(self, call: Call, *values: Any) -> Any:
        """Run a method."""
        with self._running(call):
            return _results(self._start(call, values), call, self._running)

    def stream(self, call: Call, *values: Any) -> Iterator[Parcel]:
        """Run a method that yields its results."""
        with self._running(call):
            yield from _sealed(self._start(call, values), call)


class AsyncActorHost(ActorHost):
    """Host of an actor with `async def` methods, which all run on one event loop.

    SystemExit ends the actor. Without special handling, SystemExit would end only the event loop, and the
    callers would wait forever.
    """

    _leaves = (ActorExit, SystemExit)

    async def call(self, call: Call, *values: Any) -> Any:
        """Run a method. If the method returns a coroutine, wait for its result."""
        with self._running(call):
            result = self._start(call, values)
            if inspect.isawaitable(result):
                result = await result
            if inspect.isasyncgen(result) and call.num_returns > 1:
                result = await drained(result, call.num_returns)
            return _results(result, call, self._running)

    async def stream(self, call: Call, *values: Any) -> AsyncIterator[Parcel]:  # type: ignore[override]
        """Run a method that yields its results."""
        with self._running(call):
            result = self._start(call, values)
            if inspect.isasyncgen(result):
                async for item in result:
                    yield seal(item, f"a result of {call.where}")
            else:
                for part in _sealed(result, call):
                    yield part


def host_class(name: str, is_async: bool, join: Join) -> type[ActorHost]:
    """Return the class for Ray that wraps a user's class named `name`."""
    return type(name, (AsyncActorHost if is_async else ActorHost,), {"join": staticmethod(join)})
