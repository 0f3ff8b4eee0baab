"""Code of pools that runs in a worker, and the errors that it raises."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trainkit.errors import TrainkitError, WorkerDiedError
from trainkit.runtime.api import get, scratch_dir
from trainkit.runtime.session import engine
from trainkit.runtime.specs import ObjectRef

T = TypeVar("T")


class BrokenWorkerError(WorkerDiedError, futures.BrokenExecutor):
    """The worker that ran the call has died; other calls go on, and further ones may be submitted.

    It is raised as a `concurrent.futures.process.BrokenProcessPool` too.
    """

    def __reduce__(self) -> Any:
        return broken_pool, (BrokenWorkerError, str(self), vars(self))


class InitializerError(TrainkitError, futures.BrokenExecutor):
    """The executor's initializer has failed in a worker: the executor takes no more calls.

    It is raised as a `concurrent.futures.process.BrokenProcessPool` too.

    Attributes:
        pool: id of the executor's preparation of workers.
    """

    pool: str

    def __reduce__(self) -> Any:
        return broken_pool, (InitializerError, str(self), vars(self))


class EndedError(Exception):
    """Carrier of a `SystemExit` or `KeyboardInterrupt` from a function to its future.

    Args:
        error: what was raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def broken_pool(kind: Any, message: str, attributes: Mapping[str, Any]) -> BaseException:
    """Return an error of `kind` that is a `BrokenProcessPool` too."""
    broken = _broken_class(kind)(message)
    vars(broken).update(attributes)
    return broken


@functools.cache
def _broken_class(kind: Any) -> type[BaseException]:
    from concurrent.futures.process import BrokenProcessPool  # with all of multiprocessing

    return type(kind.__name__, (kind, BrokenProcessPool), {"__module__": __name__})


class Preparation(NamedTuple):
    """Preparation of a worker before its first call of a pool.

    Attributes:
        pool: its id.
        ref: of the initializer and its arguments, which a worker fetches once.
    """

    pool: str
    ref: ObjectRef[tuple[Callable[..., object], tuple[Any, ...]]]


def initializing(folder: Path, pool: str, pid: int) -> Path:
    """Return the path of a file that is there while a pool's initializer runs, and if that ends the process.

    Args:
        folder: scratch folder of the session.
        pool: id of the preparation.
        pid: of the worker.
    """
    return folder / f"initializing-{pool}-{pid}"


_prepared: dict[str, str] = {}
"""What the initializers of pools have raised in this process; nothing of those that have not failed."""


def run(before: Preparation | None, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call `fn`, after the preparation of this process if that is still to come."""
    if before is not None:
        _prepare(before)
    return _survive(fn, args, kwargs)


def _prepare(before: Preparation) -> None:
    """Call the initializer once in this process.

    Raises:
        InitializerError: it has failed, now or before.
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
        message = f"the executor's initializer raised {raised} in a worker: mend it, and make a new executor"
        raise broken_pool(InitializerError, message, {"pool": before.pool}) from cause


def guarded(fn: Callable[..., T]) -> Callable[..., T]:
    """Return a function that calls `fn`, and turns what would end the process into an error."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> T:
        return _survive(fn, args, kwargs)

    return call


def _survive(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    try:
        return fn(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        if type(error) not in (SystemExit, KeyboardInterrupt):  # by which the runtime cancels a call
            raise
        if type(error) is KeyboardInterrupt and not engine().is_worker:  # the caller's own Ctrl-C, inline
            raise
        raise EndedError(error) from error


def run_chunk(fn: Callable[..., T], chunk: Sequence[tuple[Any, ...]]) -> list[T]:
    """Return `fn` of each item of `chunk`."""
    refs = {each for item in chunk for each in item if isinstance(each, ObjectRef)}
    values = dict(zip(refs, get(list(refs)), strict=True)) if refs else {}
    if not values:
        return [fn(*item) for item in chunk]
    return [
        fn(*(values.get(each, each) if isinstance(each, ObjectRef) else each for each in item))
        for item in chunk
    ]
