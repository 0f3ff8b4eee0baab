"""Results of calls: several values at once, streams of values, and futures."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.runtime.failures import ResultCountError
from trainkit.runtime.specs import ObjectRef

if TYPE_CHECKING:
    from concurrent.futures import Future

    from trainkit.runtime.local.client.background import BackgroundThread


T_co = TypeVar("T_co", covariant=True)


class ObjectRefGenerator(ABC, Generic[T_co], Iterator[ObjectRef[T_co]], AsyncIterator[ObjectRef[T_co]]):
    """Generator of references to the values that a remote generator yields, each as soon as it exists.

    `for ref in generator` and `async for ref in generator` wait for the next value. If the remote generator
    raises, or its process dies, one last reference follows, whose `get` raises that error.

    The remote generator does not wait for its reader: its values are kept until they are taken. It is stopped
    when this object is dropped, unless `completed` was called.
    """

    @abstractmethod
    def __next__(self) -> ObjectRef[T_co]:
        """Return the next value's reference, which is done; raise StopIteration after the last."""

    @abstractmethod
    async def __anext__(self) -> ObjectRef[T_co]:
        """Return the next reference without blocking the event loop."""

    @abstractmethod
    def upcoming(self) -> ObjectRef[Any]:
        """Return a reference that is done once the next value, or the end, exists; it takes no value."""

    @abstractmethod
    def completed(self) -> ObjectRef[None]:
        """Return a reference that is done once the remote generator has ended; its `get` raises its error."""

    @abstractmethod
    def hex(self) -> str:
        """Return the call's id as text."""

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self.hex()})"

    def __iter__(self) -> ObjectRefGenerator[T_co]:
        return self

    def __aiter__(self) -> ObjectRefGenerator[T_co]:
        return self


class DynamicObjectRefGenerator:
    """Value of a call with `num_returns="dynamic"`: references to the values that the function yielded.

    If the function raised, the last reference is that failure. Each reference is handed out once.
    """

    def __init__(self, refs: Iterable[ObjectRef[Any]]) -> None:
        self._refs = list(refs)

    def __iter__(self) -> Iterator[ObjectRef[Any]]:
        while self._refs:
            yield self._refs.pop(0)

    def __len__(self) -> int:
        return len(self._refs)

    @classmethod
    def of(
        cls,
        items: Iterable[Any],
        put: Callable[[Any], ObjectRef[Any]],
        failed: Callable[[Exception], ObjectRef[Any]],
    ) -> DynamicObjectRefGenerator:
        """Run a generator to its end; store its values with `put`, and its error with `failed`."""
        refs: list[ObjectRef[Any]] = []
        try:
            refs.extend(map(put, items))
        except Exception as error:
            refs.append(failed(error))
        return cls(refs)


def require_iterator(result: Any, where: str, num_returns: str = "streaming") -> Any:
    """Return `result`; raise ConfigError if it is not an iterator."""
    if isinstance(result, (Iterator, AsyncIterator)):
        return result
    raise ConfigError(
        f"{where} was called with num_returns={num_returns!r} but returned a {type(result).__name__}: "
        "yield the values, or return an iterator"
    )


def split_results(result: Any, num_returns: int, where: str) -> Iterable[Any]:
    """Return `result` as `num_returns` values; for 0, return one dummy value.

    A generator runs only as values are taken, so the first values exist even if a later one raises.

    Raises:
        ResultCountError: `result` has another number of values. For an iterator, this is raised during
            iteration.
    """
    if num_returns == 1:
        return (result,)
    if num_returns == 0:
        return (None,)
    if isinstance(result, Iterator):
        return _first(result, num_returns, where)
    if not isinstance(result, (tuple, list)) or len(result) != num_returns:
        several = isinstance(result, (tuple, list))
        what = f"{len(result)} values" if several else f"one {type(result).__name__}"
        raise ResultCountError(
            f"{where} was called with num_returns={num_returns} but returned {what}: return a tuple or list "
            f"of {num_returns} values"
        )
    return result


def _first(items: Iterator[Any], num_returns: int, where: str) -> Iterator[Any]:
    try:
        for count in range(num_returns):
            try:
                item = next(items)
            except StopIteration:
                raise ResultCountError(
                    f"{where} was called with num_returns={num_returns} but yielded {count} values"
                ) from None
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:  # run its `finally` blocks now
            close()


async def drained(items: AsyncIterator[Any], most: int) -> Iterator[Any]:
    """Take up to `most` items, or all if `most` is negative; an error is raised after the last of them."""
    taken: list[Any] = []
    failure: Exception | None = None
    try:
        async for item in items:
            taken.append(item)
            if len(taken) == most:
                break
    except Exception as error:
        failure = error
    finally:
        if hasattr(items, "aclose"):
            await items.aclose()
    return _replayed(taken, failure)


def _replayed(items: list[Any], failure: Exception | None) -> Iterator[Any]:
    yield from items
    if failure is not None:
        raise failure


_PATIENCE_S = 0.01
_KEPT_IDLE = 2


class Callbacks:
    """Threads that run callbacks for a thread that must not block, such as the pump.

    One thread runs the callbacks in order, and another one stands by. The standby thread joins in when the
    running callbacks seem blocked, perhaps by each other: no callback has begun for a while. This while is
    longer if more callbacks are running. The threads end when no callback is expected any more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: deque[Callable[[], object]] = deque()
        self._expected = 0
        self._idle = 0
        self._running = 0
        self._last_begun_at = 0.0

    def expect(self) -> None:
        """Provide a thread for one more callback.

        Raises:
            RuntimeError: the system has no thread left.
        """
        with self._changed:
            self._expected += 1
            try:
                self._stand_by()
            except BaseException:
                self._forgo()
                raise

    def forgo(self) -> None:
        """Expect one callback fewer."""
        with self._changed:
            self._forgo()

    def put(self, callback: Callable[[], object]) -> None:
        """Schedule an expected callback."""
        with self._changed:
            self._due.append(callback)
            self._try_to_stand_by()
            if len(self._due) == 1:  # otherwise, a thread is already looking at the queue
                self._changed.notify()

    def _forgo(self) -> None:
        self._expected -= 1
        if not self._expected:
            self._changed.notify_all()

    def _stand_by(self) -> None:
        if self._idle:
            return
        thread = threading.Thread(target=self._serve, name="trainkit-callback", daemon=True)
        self._idle += 1
        try:
            thread.start()
        except BaseException:
            self._idle -= 1
            raise

    def _try_to_stand_by(self) -> None:
        with contextlib.suppress(RuntimeError):  # running threads will take the due callbacks
            self._stand_by()

    def _serve(self) -> None:
        with self._changed:
            while self._await_turn():
                self._idle -= 1
                self._running += 1
                while self._due:
                    self._run_next()
                self._running -= 1
                self._idle += 1
                if self._idle > _KEPT_IDLE:
                    break
            self._idle -= 1

    def _await_turn(self) -> bool:
        """Wait until this thread is needed; return False if no callback is expected any more."""
        while self._expected:
            if not self._due:
                self._changed.wait()
                continue
            left = self._last_begun_at + _PATIENCE_S * self._running - SYSTEM.monotonic()
            if not self._running or left <= 0:
                return True
            self._changed.wait(left)
        return False

    def _run_next(self) -> None:
        callback = self._due.popleft()
        self._last_begun_at = SYSTEM.monotonic()
        self._forgo()
        if self._expected:
            self._try_to_stand_by()
        self._changed.release()
        try:
            callback()
        except BaseException:  # report it like any thread's error, then run the next callback
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        finally:
            del callback
            self._changed.acquire()


def ref_future(pump: BackgroundThread, callbacks: Callbacks) -> Future[Any]:
    """Return a future that the thread of `pump` settles.

    `callbacks` runs its callbacks. In the pump's thread, a callback that waits for a reference would keep the
    pump from reading the answer.
    """
    future: Future[Any] = _ref_future_class()(pump, callbacks)
    return future


@functools.cache
def _ref_future_class() -> Any:
    from concurrent.futures import Future  # the import is slow, and few programs need it

    class RefFuture(Future[Any]):
        def __init__(self, pump: BackgroundThread, callbacks: Callbacks) -> None:
            super().__init__()
            self._pump = pump
            self._callbacks = callbacks

        def add_done_callback(self, callback: Callable[[Future[Any]], object]) -> None:
            def run(future: Future[Any]) -> None:
                if self._pump.is_current_thread:
                    self._callbacks.put(functools.partial(callback, future))
                else:
                    self._callbacks.forgo()
                    callback(future)

            if not self.done() or self._pump.is_current_thread:
                self._callbacks.expect()
                super().add_done_callback(run)
            else:
                super().add_done_callback(callback)

    return RefFuture
