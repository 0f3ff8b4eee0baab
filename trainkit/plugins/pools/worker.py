"""Functions of pools that run in workers, and the errors that these functions raise."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trainkit.errors import TrainkitError, WorkerDiedError
from trainkit.runtime.api import get, scratch_dir
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.session import engine

T = TypeVar("T")


class BrokenWorkerError(WorkerDiedError, futures.BrokenExecutor):
    """The worker of the call died. Other calls continue, and new calls can be submitted.

    The raised error is also a `concurrent.futures.process.BrokenProcessPool`.
    """

    def __reduce__(self) -> Any:
        return broken_pool, (BrokenWorkerError, str(self), vars(self))


class InitializerError(TrainkitError, futures.BrokenExecutor):
    """Failure of the executor's initializer in a worker, after which the executor accepts no more calls.

    The raised error is also a `concurrent.futures.process.BrokenProcessPool`.

    Attributes:
        pool: id of the `Preparation` of the executor.
    """

    pool: str

    def __reduce__(self) -> Any:
        return broken_pool, (InitializerError, str(self), vars(self))


class EndedError(Exception):
    """Wrapper that carries a `SystemExit` or `KeyboardInterrupt` of the user's function to the call's future.

    Args:
        error: exception that the user's function raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def broken_pool(kind: Any, message: str, attributes: Mapping[str, Any]) -> BaseException:
    """Return an error of `kind` that is also a `BrokenProcessPool`."""
    broken = _broken_class(kind)(message)
    vars(broken).update(attributes)
    return broken


@functools.cache
def _broken_class(kind: Any) -> type[BaseException]:
    # The import is made only when needed, because it loads all of multiprocessing, which takes time.
    from concurrent.futures.process import BrokenProcessPool

    return type(kind.__name__, (kind, BrokenProcessPool), {"__module__": __name__})


class Preparation(NamedTuple):
    """Initializer that a worker calls before its first call of a pool.

    Attributes:
        pool: id of the preparation, unique to the executor.
        ref: reference to the initializer and its arguments, which each worker fetches once.
    """

    pool: str
    ref: ObjectRef[tuple[Callable[..., object], tuple[Any, ...]]]


def initializing(folder: Path, pool: str, pid: int) -> Path:
    """Return the path of a file that exists while an initializer runs; the file remains if the process dies.

    Args:
        folder: scratch folder of the session.
        pool: id of the preparation.
        pid: process id of the worker.
    """
    return folder / f"initializing-{pool}-{pid}"


_prepared: dict[str, str] = {}
"""Maps the id of each preparation that has run in this process to the initializer's error; "" means
success."""


def run(before: Preparation | None, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call `fn`; before the first call in this process, call the pool's initializer."""
    if before is not None:
        _prepare(before)
    return _survive(fn, args, kwargs)


def _prepare(before: Preparation) -> None:
    """Call the pool's initializer, unless this process has called it already.

    Raises:
        InitializerError: the initializer failed, in this call or earlier.
    """
    cause = None
    if before.pool not in _prepared:
        initializer, initargs = get(before.ref)
        raised = ""
        mark = initializing(scratch_dir(), before.pool, os.getpid())
        mark.touch()
        try:
            _survive(initializer, initargs, {})
        except Exception as error:
            cause = error.error if isinstance(error, EndedError) else error
            raised = repr(cause)
        finally:
            mark.unlink(missing_ok=True)
        _prepared[before.pool] = raised
    if raised := _prepared[before.pool]:
        message = f"the executor's initializer raised {raised} in a worker: fix it, and create a new executor"
        raise broken_pool(InitializerError, message, {"pool": before.pool}) from cause


def guarded(fn: Callable[..., T]) -> Callable[..., T]:
    """Return a function that calls `fn`, and replaces SystemExit and KeyboardInterrupt by an EndedError."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> T:
        return _survive(fn, args, kwargs)

    return call


def _survive(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    try:
        return fn(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        # Subclasses of these errors come from the runtime, which cancels calls with them.
        if type(error) not in (SystemExit, KeyboardInterrupt):
            raise
        # If this process is not a worker, the user has pressed Ctrl-C in the program.
        if type(error) is KeyboardInterrupt and not engine().is_worker:
            raise
        raise EndedError(error) from error


def run_chunk(fn: Callable[..., T], chunk: Sequence[tuple[Any, ...]]) -> list[T]:
    """Call `fn` with each item of `chunk`; return the results."""
    refs = {each for item in chunk for each in item if isinstance(each, ObjectRef)}
    values = dict(zip(refs, get(list(refs)), strict=True)) if refs else {}
    if not values:
        return [fn(*item) for item in chunk]
    return [
        fn(*(values.get(each, each) if isinstance(each, ObjectRef) else each for each in item))
        for item in chunk
    ]
