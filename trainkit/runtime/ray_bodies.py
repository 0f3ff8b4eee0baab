"""What Ray's workers run: a user's function, or the process around a user's class.

Ray is given these wrappers instead of the user's code. They unpack the arguments, give the process
trainkit's verbs, and pack results and failures as every engine does. Their names are the user's, so Ray's
dashboard and logs show those.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from ray.exceptions import AsyncioActorExit

from trainkit.runtime.failures import pack_failure
from trainkit.runtime.ray_errors import RetriedFailure, UserFailure
from trainkit.runtime.ray_values import Call, Parcel, seal, unseal, wrap
from trainkit.runtime.results import split_results
from trainkit.runtime.specs import STREAMING

Join = Callable[[], None]


def task_body(function: Parcel, retries: Parcel, name: str, join: Join) -> Callable[..., Any]:
    """What Ray runs for a task.

    Args:
        function: the user's.
        retries: `TaskSpec.retry_exceptions`.
        name: for Ray's listings.
        join: gives the process the verbs.
    """
    opened: list[Any] = []  # one process unpacks the function once

    def body(call: Call, *values: Any) -> Any:
        join()
        try:
            if not opened:
                opened.extend((unseal(function), unseal(retries)))
            args, kwargs = call.resolved(values)
            folder = contextlib.nullcontext() if call.folder is None else contextlib.chdir(call.folder)
            with folder:
                result = opened[0](*args, **kwargs)
                if call.num_returns != STREAMING:
                    return _results(result, call)
        except Exception as error:
            raise _failure(error, call, opened[1] if opened else False) from None
        return _stream(result, call)

    body.__name__ = body.__qualname__ = name
    return body


def _results(result: Any, call: Call) -> Any:
    what = f"the result of {call.where}"
    parts = [seal(part, what) for part in split_results(result, call.num_returns, call.where)]
    return parts[0] if call.num_returns == 1 else parts


def _stream(result: Any, call: Call) -> Iterator[Parcel]:
    try:
        for item in result:
            yield seal(item, f"a result of {call.where}")
    except Exception as error:
        raise _failure(error, call) from None


def _failure(error: Exception, call: Call, retries: Any = False) -> UserFailure:
    parcel = wrap(pack_failure(error, f"{call.where} (pid {os.getpid()})"))
    again = retries is True or (isinstance(retries, tuple) and isinstance(error, retries))
    return RetriedFailure(parcel) if again else UserFailure(parcel)


class Host:
    """The process around an actor whose methods are plain functions."""

    join: Join

    def __init__(self, call: Call, cls: Parcel, *values: Any) -> None:
        type(self).join()
        self._failure: UserFailure | None = None
        try:
            if call.folder is not None:
                os.chdir(call.folder)
            args, kwargs = call.resolved(values)
            self._instance = unseal(cls)(*args, **kwargs)
        except AsyncioActorExit:
            raise
        except Exception as error:  # kept, as Ray would tell later callers only its text
            self._failure = _failure(error, call)

    def _start(self, call: Call, values: Sequence[Any]) -> Any:
        if self._failure is not None:
            raise self._failure
        try:
            args, kwargs = call.resolved(values)
            return getattr(self._instance, call.method)(*args, **kwargs)
        except AsyncioActorExit:
            raise
        except Exception as error:
            raise _failure(error, call) from None

    def call(self, call: Call, *values: Any) -> Any:
        """Run a method."""
        result = self._start(call, values)
        try:
            return _results(result, call)
        except Exception as error:
            raise _failure(error, call) from None

    def stream(self, call: Call, *values: Any) -> Iterator[Parcel]:
        """Run a method that yields its results."""
        return _stream(self._start(call, values), call)


class AsyncHost(Host):
    """The process around an actor with `async def` methods: all of them run on one event loop."""

    async def call(self, call: Call, *values: Any) -> Any:
        """Run a method, waiting for it if it is a coroutine."""
        try:
            result = self._start(call, values)
            return _results(await result if inspect.isawaitable(result) else result, call)
        except (AsyncioActorExit, UserFailure):
            raise
        except Exception as error:
            raise _failure(error, call) from None

    async def stream(self, call: Call, *values: Any) -> AsyncIterator[Parcel]:  # type: ignore[override]
        """Run a method that yields its results."""
        result = self._start(call, values)
        try:
            if inspect.isasyncgen(result):
                async for item in result:
                    yield seal(item, f"a result of {call.where}")
            else:
                for item in result:
                    yield seal(item, f"a result of {call.where}")
        except AsyncioActorExit:
            raise
        except Exception as error:
            raise _failure(error, call) from None


def host_class(name: str, is_async: bool, join: Join) -> type[Host]:
    """The class that Ray is given for a user's class of that name."""
    return type(name, (AsyncHost if is_async else Host,), {"join": staticmethod(join)})
