"""Pool of actors that gives each value to the next free actor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar, overload

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, GetTimeoutError
from trainkit.runtime.api import get, wait
from trainkit.runtime.refs import ObjectRef

A = TypeVar("A")
V = TypeVar("V")
R = TypeVar("R")

_Result: TypeAlias = "ObjectRef[Any] | list[ObjectRef[Any]]"


class ActorPool(Generic[A]):
    """Pool of actors that gives each value to a free actor and collects the results.

    An actor is free again when its call returns or raises. Queued calls are sent whenever a method of
    the pool is called. Only one thread may use a pool.

    Args:
        actors: handles of the actors.
    """

    def __init__(self, actors: Iterable[A]) -> None:
        self._idle: deque[A] = deque(actors)
        self._waiting: deque[tuple[int, Callable[[A, Any], _Result], Any]] = deque()
        # The key is the last reference that a call returned, because this reference finishes last.
        self._running: dict[ObjectRef[Any], tuple[int, A, _Result]] = {}
        # In `_owed` and `_arrived`, the keys are submission numbers. `_arrived` contains the results in the
        # order of arrival.
        self._owed: dict[int, None] = {}
        self._arrived: dict[int, _Result | Exception] = {}
        self._submitted = 0

    @overload
    def map(self, fn: Callable[[A, V], ObjectRef[R]], values: Iterable[V]) -> Iterator[R]: ...
    @overload
    def map(self, fn: Callable[[A, V], list[ObjectRef[Any]]], values: Iterable[V]) -> Iterator[Any]: ...
    def map(self, fn: Callable[[A, V], Any], values: Iterable[V]) -> Iterator[Any]:
        """Submit all `values`; return an iterator over their results, in the order of `values`.

        Results of earlier calls that have not been returned are dropped. If a call fails, the iterator raises
        its error at the position of its result, and can continue after the error.
        """
        self._submit_all(fn, values)
        return _Results(self, self.get_next)

    @overload
    def map_unordered(self, fn: Callable[[A, V], ObjectRef[R]], values: Iterable[V]) -> Iterator[R]: ...
    @overload
    def map_unordered(
        self, fn: Callable[[A, V], list[ObjectRef[Any]]], values: Iterable[V]
    ) -> Iterator[Any]: ...
    def map_unordered(self, fn: Callable[[A, V], Any], values: Iterable[V]) -> Iterator[Any]:
        """Apply `fn` to all values; return an iterator over the results in the order of arrival."""
        self._submit_all(fn, values)
        return _Results(self, self.get_next_unordered)

    def submit(self, fn: Callable[[A, V], _Result], value: V) -> None:
        """Start `fn(actor, value)` on a free actor, or queue it.

        Args:
            fn: function that calls a method of the actor and returns its reference, such as `lambda a, v:
                a.double.remote(v)`. For a method with several returns, `fn` returns a list of references, and
                the result is a list of values.
            value: second argument that `fn` receives.
        """
        self._collect(0)
        if self._idle and not self._waiting:
            self._send(self._submitted, fn, value)
        else:
            self._waiting.append((self._submitted, fn, value))
        self._owed[self._submitted] = None
        self._submitted += 1

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the result of the earliest submission whose result has not been returned.

        Args:
            timeout: longest wait in seconds; None means no limit.
            ignore_if_timedout: True: after a timeout, never return the late result. The actor is free when
                its call ends.

        Raises:
            StopIteration: the results of all submissions were already returned.
            GetTimeoutError: the timeout passed.
        """
        first = next(iter(self._owed), None)
        if first is not None:
            self._await(lambda: first in self._arrived, timeout, first if ignore_if_timedout else None)
        return self._hand_out(first)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the result that arrived first; see `get_next` for the arguments."""
        first = next(iter(self._owed), None)
        if first is not None:
            self._await(lambda: bool(self._arrived), timeout, first if ignore_if_timedout else None)
        return self._hand_out(next(iter(self._arrived), None))

    def has_next(self) -> bool:
        """Return True if a submission exists whose result has not been returned."""
        return bool(self._owed)

    def has_free(self) -> bool:
        """Return True if a submission would start immediately."""
        self._collect(0)
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> A | None:
        """Remove a free actor from the pool and return it; None if no actor is free."""
        return self._idle.popleft() if self.has_free() else None

    def push(self, actor: A) -> None:
        """Add an actor to the pool.

        Raises:
            ConfigError: the actor is already in the pool.
        """
        if any(actor is own for own in (*self._idle, *(busy for _, busy, _ in self._running.values()))):
            raise ConfigError(f"push({actor!r}): the pool already has this actor")
        self._idle.append(actor)
        self._feed()

    def _submit_all(self, fn: Callable[[A, V], _Result], values: Iterable[V]) -> None:
        for earlier in list(self._owed):
            self._forget(earlier)
        for value in values:
            self.submit(fn, value)

    def _send(self, index: int, fn: Callable[[A, Any], _Result], value: Any) -> None:
        """Call `fn` with a free actor, which stays free if `fn` raises."""
        actor = self._idle[0]
        result = fn(actor, value)
        refs = result if isinstance(result, list) else [result]
        if not refs or not all(isinstance(ref, ObjectRef) for ref in refs):
            raise ConfigError(f"the pool's function must return one reference or several, not {result!r}")
        self._idle.popleft()
        self._running[refs[-1]] = index, actor, result

    def _feed(self) -> None:
        while self._idle and self._waiting:
            index, fn, value = self._waiting.popleft()
            try:
                self._send(index, fn, value)
            # The error is stored as this call's result, so that it is raised when the result is requested.
            except Exception as error:
                self._arrived[index] = error

    def _collect(self, timeout: float | None) -> None:
        """Free the actors whose calls have ended; wait up to `timeout` seconds for the first such actor."""
        if self._running:
            done = wait(list(self._running), timeout=timeout)[0]
            # The first `wait` may return only the first finished call, so a second `wait` returns all
            # finished calls.
            if done:
                done = wait(list(self._running), num_returns=len(self._running), timeout=0)[0]
            for ref in done:
                index, actor, result = self._running.pop(ref)
                self._idle.append(actor)
                if index in self._owed:
                    self._arrived[index] = result
        self._feed()

    def _await(self, there: Callable[[], bool], timeout: float | None, ignored: int | None) -> None:
        deadline = None if timeout is None else SYSTEM.monotonic() + timeout
        self._collect(0)
        while not there():
            if not self._running:
                raise ConfigError("the pool has no actor left for the submitted calls: add one by push()")
            left = None if deadline is None else max(deadline - SYSTEM.monotonic(), 0)
            if left == 0:
                if ignored is not None:
                    self._forget(ignored)
                outcome = "can be asked for again" if ignored is None else "is forgotten"
                raise GetTimeoutError(f"the pool has no result after {timeout:g} s; the result {outcome}")
            self._collect(left)

    def _forget(self, index: int) -> None:
        del self._owed[index]
        self._arrived.pop(index, None)
        self._waiting = deque(item for item in self._waiting if item[0] != index)

    def _hand_out(self, index: int | None) -> Any:
        if index is None:
            raise StopIteration("the pool has no pending results: all results were already returned")
        del self._owed[index]
        result = self._arrived.pop(index)
        if isinstance(result, Exception):
            raise result
        return get(result)


class _Results(Iterator[R]):
    """Iterator over results that can continue after an error, unlike a generator."""

    def __init__(self, pool: ActorPool[Any], take: Callable[[], Any]) -> None:
        self._pool = pool
        self._take = take

    def __next__(self) -> R:
        if not self._pool.has_next():
            raise StopIteration
        result: R = self._take()
        return result
