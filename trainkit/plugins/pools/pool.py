"""`multiprocessing.Pool` that runs calls as tasks of the runtime."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent import futures
from multiprocessing import TimeoutError as PoolTimeoutError
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeVar

from trainkit.clock import SYSTEM
from trainkit.errors import ArgumentTypeError, ConfigError
from trainkit.plugins.pools.executor import Executor, PoolFuture, Sharing, shared

T = TypeVar("T")

_CHUNKS_A_WORKER = 4


class AsyncResult(Generic[T]):
    """Future result of one call, or of several calls whose results are joined.

    Args:
        parts: futures of the calls.
        joined: function that receives the list of the calls' results, and returns the joined result.
        callback: function that is called with the result, in a separate thread.
        error_callback: function that is called with the first error, if a call fails.
    """

    def __init__(
        self,
        parts: Sequence[futures.Future[Any]],
        joined: Callable[[list[Any]], T],
        callback: Callable[[T], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._parts = parts
        self._joined = joined
        self._has_told = threading.Event()
        # If there are no calls or no callbacks, no callback must be awaited, as in multiprocessing.
        if not parts or (callback is None and error_callback is None):
            self._has_told.set()
        else:
            self._when_done(callback, error_callback)

    def _when_done(
        self, callback: Callable[[T], object] | None, error_callback: Callable[[BaseException], object] | None
    ) -> None:
        left = itertools.count(len(self._parts) - 1, -1)

        def tell(_: object) -> None:
            if next(left) > 0:
                return
            error = next((error for part in self._parts if (error := _error(part)) is not None), None)
            try:
                if error is None and callback is not None:
                    callback(self._result())
                elif error is not None and error_callback is not None:
                    error_callback(error)
            finally:
                self._has_told.set()

        for part in self._parts:
            part.add_done_callback(tell)

    def get(self, timeout: float | None = None) -> T:
        """Return the result; raise the function's error, or `multiprocessing.TimeoutError`."""
        self.wait(timeout)
        if not self.ready():
            raise PoolTimeoutError
        return self._result()

    def _result(self) -> T:
        return self._joined([part.result() for part in self._parts])

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result is available and its callback has ended, for at most `timeout` seconds."""
        end = None if timeout is None else SYSTEM.monotonic() + timeout
        with contextlib.suppress(PoolTimeoutError):
            for part in self._parts:
                _await(part, _left(end))
            if not self._is_called_back():
                self._has_told.wait(_left(end))

    def ready(self) -> bool:
        """Return True if the result or an error is available, and its callback has ended."""
        is_told = self._has_told.is_set() or self._is_called_back()
        return is_told and all(part.done() for part in self._parts)

    def _is_called_back(self) -> bool:
        """Return True if this thread runs a callback; no other callback can run until it ends."""
        return any(isinstance(part, PoolFuture) and part.is_in_callback() for part in self._parts)

    def successful(self) -> bool:
        """Return True if all calls have ended without an error.

        Raises:
            ConfigError: the result is not ready yet.
        """
        if not self.ready():
            raise ConfigError(f"{self!r} is not ready: call wait() or get() first")
        return all(_error(part) is None for part in self._parts)


def _error(part: futures.Future[Any]) -> BaseException | None:
    return futures.CancelledError() if part.cancelled() else part.exception()


class ResultIterator(Iterator[T]):
    """Iterator over the items of calls whose results are lists. Calls can be added until `end` is called.

    Args:
        ordered: True: yield items in the order of the calls; False: in the order in which calls end.
    """

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._added = 0
        self._taken = 0
        self._total: int | None = None
        self._there: list[T] = []
        self._parts: SimpleQueue[futures.Future[list[T]] | None] = SimpleQueue()
        self._next_part: futures.Future[list[T]] | None = None
        # Calls that were made in a worker. The worker must lend its CPUs while it waits for these calls.
        self._nested: deque[PoolFuture[list[T]]] = deque()

    def add(self, part: futures.Future[list[T]]) -> None:
        """Add a call."""
        self._added += 1
        if self._ordered:
            self._parts.put(part)
            return
        if isinstance(part, PoolFuture):
            self._nested.append(part)
        # This callback does not run in the executor's callback thread, because a user's callback that reads
        # these results may block this thread.
        futures.Future.add_done_callback(part, self._parts.put)

    def end(self) -> None:
        """Accept no more calls."""
        self._parts.put(None)

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """Return the next item; raise `multiprocessing.TimeoutError` after `timeout` seconds."""
        end = None if timeout is None else SYSTEM.monotonic() + timeout
        while not self._there:
            if self._taken == self._total:
                raise StopIteration
            part = self._next_part = self._next_part or self._awaited(_left(end))
            if part is None:
                self._total = self._added
                continue
            _await(part, _left(end))
            self._taken += 1
            self._next_part = None
            self._there = part.result()[::-1]
        return self._there.pop()

    def _awaited(self, timeout: float | None) -> futures.Future[list[T]] | None:
        try:
            if self._nested:
                timeout = self._nested.popleft().lend_cpus(timeout)
            return self._parts.get(timeout=timeout)
        except Empty:
            raise PoolTimeoutError from None


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - SYSTEM.monotonic())


def _await(part: futures.Future[Any], timeout: float | None) -> None:
    """Wait until a call has ended; if this process is a worker, it lends its CPUs during the wait."""
    if isinstance(part, PoolFuture):
        timeout = part.lend_cpus(timeout)
    if futures.wait([part], timeout).not_done:
        raise PoolTimeoutError


class Pool:
    """Pool of workers, with the interface of `multiprocessing.Pool`.

    Args:
        processes: maximum number of calls that run at the same time; None means the number of CPUs.
        initializer: function that each worker calls before its first call for this pool.
        initargs: arguments of the initializer.
        maxtasksperchild: number of calls after which a worker process is replaced; None means never.
        context: argument of `multiprocessing.Pool`, which has no effect.
        **options: further options of `trainkit.remote` for tasks, such as `num_gpus=1`.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        maxtasksperchild: int | None = None,
        context: object = None,
        **options: Any,
    ) -> None:
        self._executor = Executor(
            processes, context, initializer, initargs, max_tasks_per_child=maxtasksperchild, **options
        )
        self._is_closed = False
        self._feeders: list[threading.Thread] = []

    def apply(
        self, func: Callable[..., T], args: Iterable[Any] = (), kwds: dict[str, Any] | None = None
    ) -> T:
        """Call `func(*args, **kwds)` in a worker, and return its result."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: dict[str, Any] | None = None,
        callback: Callable[[T], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[T]:
        """Start a call and return an `AsyncResult`; see `apply` for the arguments."""
        self._require_open()
        future = self._executor.submit(func, *args, **(kwds or {}))
        return AsyncResult([future], lambda results: results[0], callback, error_callback)

    def map(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int | None = None) -> list[T]:
        """Return the results of `func` for all items, in order."""
        return self.map_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Callable[[Any], T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[T]]:
        """Start `func` for each item, and return an `AsyncResult`; see `map`."""
        return self._start(func, [(item,) for item in iterable], chunksize, callback, error_callback)

    def starmap(
        self, func: Callable[..., T], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[T]:
        """Return the results of `func(*item)` for all items, in order."""
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[T]]:
        """Start `func(*item)` for each item, and return an `AsyncResult`; see `starmap`."""
        return self._start(func, [tuple(item) for item in iterable], chunksize, callback, error_callback)

    def imap(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1
    ) -> ResultIterator[T]:
        """Iterate over the results of `func` for all items, in order, each as soon as it is available."""
        return self._fed(func, iterable, chunksize, ResultIterator(ordered=True))

    def imap_unordered(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1
    ) -> ResultIterator[T]:
        """Iterate over the results of `func` for all items, in the order in which calls end."""
        return self._fed(func, iterable, chunksize, ResultIterator(ordered=False))

    def _fed(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int, results: ResultIterator[T]
    ) -> ResultIterator[T]:
        """Return `results` after adding calls to it, in a thread if `iterable` has no length."""
        self._require_open()
        _require_size(chunksize)
        if not hasattr(type(iterable), "__iter__") and not hasattr(type(iterable), "__getitem__"):
            raise ArgumentTypeError(f"the items must be an iterable, not {iterable!r}")
        if isinstance(iterable, Sized):
            items: Iterable[Any] = [*map(Sharing().of, iterable)]
            self._feed(func, items, chunksize, results)
            return results
        feeder = threading.Thread(
            target=self._feed, args=(func, iterable, chunksize, results), daemon=True, name="trainkit-feed"
        )
        self._feeders = [*(each for each in self._feeders if each.is_alive()), feeder]
        feeder.start()
        return results

    def _feed(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int, results: ResultIterator[T]
    ) -> None:
        try:
            for part in self._executor.submit_chunks(func, zip(iterable, strict=False), chunksize):
                results.add(part)
        except Exception as error:
            failed: futures.Future[list[T]] = futures.Future()
            failed.set_exception(error)
            results.add(failed)
        finally:
            results.end()

    def _start(
        self,
        func: Callable[..., T],
        items: Sequence[tuple[Any, ...]],
        chunksize: int | None,
        callback: Callable[[list[T]], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> AsyncResult[list[T]]:
        self._require_open()
        size = chunksize or -(-len(items) // (self._executor.workers * _CHUNKS_A_WORKER)) or 1
        _require_size(size)
        parts = [*self._executor.submit_chunks(func, shared(items), size)]
        return AsyncResult(
            parts, lambda chunks: [*itertools.chain.from_iterable(chunks)], callback, error_callback
        )

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConfigError("Pool not running: it was closed or terminated; create a new pool")

    def close(self) -> None:
        """Refuse new calls; calls that were submitted continue."""
        self._is_closed = True
        if not any(feeder.is_alive() for feeder in self._feeders):
            self._executor.shutdown(wait=False)

    def terminate(self) -> None:
        """Refuse new calls, cancel waiting calls, and kill the workers that run calls."""
        self._is_closed = True
        self._feeders.clear()
        self._executor.terminate_workers()

    def join(self) -> None:
        """Wait until all calls have ended.

        Raises:
            ConfigError: the pool was neither closed nor terminated.
        """
        if not self._is_closed:
            raise ConfigError("the pool still takes calls: call close() or terminate() before join()")
        for feeder in self._feeders:
            feeder.join()
        self._executor.shutdown(wait=True)

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.terminate()


def _require_size(chunksize: int) -> None:
    if chunksize < 1:
        raise ConfigError(f"chunksize must be 1 or more, not {chunksize!r}")
