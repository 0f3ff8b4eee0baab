"""`concurrent.futures.Executor` that runs calls as tasks of the runtime.

    submit ──▶ calls that wait, and can be cancelled ──▶ some on their way to the workers ──▶ futures

Calls are sent to the workers in advance, so that a worker that becomes free finds its next call at once. Some
milliseconds of work are sent in advance: hundreds of calls that take microseconds, but no long calls.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import math
import sys
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, TypeVar

from trainkit.clock import SYSTEM
from trainkit.errors import (
    ArgumentTypeError,
    ConfigError,
    NotInitializedError,
    SerializationError,
    TaskError,
    WorkerDiedError,
)
from trainkit.plugins.pools.worker import (
    BrokenWorkerError,
    EndedError,
    InitializerError,
    Preparation,
    broken_pool,
    guarded,
    initializing,
    run,
    run_chunk,
)
from trainkit.resources import QUANTUM
from trainkit.runtime.api import cancel, cluster_resources, put, wait
from trainkit.runtime.calls.futures import Callbacks
from trainkit.runtime.calls.options import ACTORS_ONLY, Options
from trainkit.runtime.calls.remote import RemoteFunction
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.session import at_end, engine, running

T = TypeVar("T")
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

AHEAD_S = 0.02
"""Total seconds of work in the calls that are sent in advance."""
MOST_AHEAD = 2_000
"""Maximum number of calls that are sent in advance."""
LOOK_EVERY = 32
"""Number of finished calls after which the number of calls to send in advance is computed again."""
SHARED_BYTES = 1_000_000
"""Smallest size of an array that is stored once for all calls that use it."""
MOST_FUNCTIONS = 100
"""Maximum number of functions that are kept registered; calls of a registered function send only
arguments."""
LOOK_S = 0.5
"""Seconds between two checks whether the session still exists."""
SESSION_ENDED = "the session of this executor has ended: create a new executor"


def share(cpus: float, workers: int) -> float:
    """Return the CPUs that each call reserves, at most 1, so that `workers` calls fit into `cpus`.

    Raises:
        ConfigError: `workers` is so large that a call's share of the CPUs would be 0.
    """
    part = min(1.0, math.floor(cpus * QUANTUM / workers) / QUANTUM)
    if not part:
        raise ConfigError(
            f"max_workers={workers} is too large to share {cpus:g} CPU: choose a smaller number"
        )
    return part


def ahead(ended: int, seconds: float) -> int:
    """Return how many calls to send to the workers in addition to one call for each worker.

    Args:
        ended: number of recently finished calls.
        seconds: time in seconds in which all workers together finished these calls.
    """
    return int(ended / seconds * AHEAD_S) if seconds > 0 else 0


_PENDING, _RUNNING, _FINISHED = "PENDING", "RUNNING", "FINISHED"
_unseen = threading.RLock()
"""Lock for the state of futures that have no condition yet, because no thread has waited for them."""


class _LendingEvent(threading.Event):
    """Event with which `futures.wait` and `as_completed` wait in a worker.

    During a wait, the worker's CPUs are lent to other calls.
    """

    def __init__(self, lending: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._lending = lending

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        with self._lending():
            return super().wait(timeout)


class _NestedWaiters(list[Any]):
    """List of objects that wait for a future in a worker.

    Each object gets an event that lends the worker's CPUs during its wait.
    """

    def __init__(self, lending: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._lending = lending

    def append(self, waiter: Any) -> None:
        if not isinstance(waiter.event, _LendingEvent):
            waiter.event = _LendingEvent(self._lending)
        super().append(waiter)


class PoolFuture(futures.Future[T]):
    """Future of a call that was submitted to an `Executor`. Callbacks run in a separate thread, and may wait
    for other calls.

    The condition and its locks are made only when a thread waits, adds a callback or cancels. Thousands of
    such objects would take much of the garbage collector's time.

    Attributes:
        call: function and arguments; None after the call was sent.
        ref: reference to the result; None before the call is sent and after the result has arrived.
    """

    ref: ObjectRef[T] | None = None
    _seen: threading.Condition | None = None
    _state = _PENDING
    _result = _exception = None
    _waiters = _done_callbacks = ()  # type: ignore[assignment]

    def __init__(self, pool: Executor, call: _Call) -> None:
        self._pool = pool
        self.call: _Call | None = call

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._seen is None:
            with _unseen:
                if self._seen is None:
                    pool = self._pool
                    self._waiters = _NestedWaiters(pool.lending) if pool.is_nested else []  # type: ignore[assignment]
                    self._done_callbacks = []  # type: ignore[assignment]
                    self._seen = threading.Condition()
        return self._seen

    def set_running_or_notify_cancel(self) -> bool:
        with _unseen:
            if self._seen is None and self._state == _PENDING:
                self._state = _RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def done(self) -> bool:
        return self._state not in (_PENDING, _RUNNING)

    def add_done_callback(self, fn: Callable[[futures.Future[T]], object]) -> None:
        if self.done():
            super().add_done_callback(fn)
        else:
            super().add_done_callback(self._pool.callback(fn))

    def result(self, timeout: float | None = None) -> T:
        if self._state == _FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value]
        return super().result(self.lend_cpus(timeout) if self._pool.is_nested else timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return super().exception(self.lend_cpus(timeout) if self._pool.is_nested else timeout)

    def lend_cpus(self, timeout: float | None) -> float | None:
        """Wait for the call and lend the worker's CPUs during the wait; return the rest of `timeout`."""
        ref = self.ref
        if ref is None or self.done() or not self._pool.is_nested:
            return timeout
        end = None if timeout is None else SYSTEM.monotonic() + timeout
        wait([ref], timeout=timeout)
        return None if end is None else max(0.0, end - SYSTEM.monotonic())

    def is_in_callback(self) -> bool:
        """Return True if this thread is running a callback of the future's executor."""
        return self._pool.is_in_callback()

    def set_result(self, result: T) -> None:
        with _unseen:
            is_unseen = self._seen is None and self._state == _RUNNING
            if is_unseen:
                self._result = result
                self._state = _FINISHED
        if not is_unseen:
            self._settle(super().set_result, result)
        self._pool.on_end(self)

    def set_exception(self, exception: BaseException | None) -> None:
        raised = self._pool.blamed(_as_raised(exception))
        if isinstance(raised, InitializerError):
            self._pool.break_by(raised)
        self._settle(super().set_exception, raised)
        self._pool.on_end(self)

    def _settle(self, by: Callable[[Any], None], what: Any) -> None:
        try:
            by(what)
        except futures.InvalidStateError:
            # If the session has ended, the future has already failed because of this end.
            if self._pool.has_session():
                raise


def _as_raised(error: BaseException | None) -> BaseException | None:
    if isinstance(error, TaskError) and error.cause is not None:
        from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]

        raised = error.cause.error if isinstance(error.cause, EndedError) else error.cause
        raised.__cause__ = RemoteTraceback(f'\n"""\n{error.remote_traceback}"""')
        return raised
    if isinstance(error, WorkerDiedError):
        return broken_pool(BrokenWorkerError, str(error), vars(error))
    return error


def _fail(calls: Iterable[PoolFuture[Any]], error: BaseException) -> None:
    for each in calls:
        if each.set_running_or_notify_cancel():
            futures.Future.set_exception(each, error)


def _as_pickled(error: BaseException) -> BaseException:
    """Return the exception from pickling an argument, with a note that names the part at fault."""
    cause = error.__cause__ if isinstance(error, SerializationError) else None
    if cause is None:
        return error
    cause.add_note(str(error))
    return cause


class Executor(futures.Executor):
    """Executor that runs calls as tasks of the runtime, in worker processes that are forked in advance.

    `Executor` replaces `ProcessPoolExecutor`. A future raises the same exception as the function, with the
    remote traceback as its cause. A call whose worker dies is retried up to three times, or `max_retries`
    times. After the last retry, only this call fails, with an error that is also a `BrokenExecutor`. If an
    initializer fails, the executor accepts no more calls, as in `ProcessPoolExecutor`. A function is sent
    only once, with the values that the global names in its code have at that time. A closure or a bound
    method is sent with each call, because its contents may change.

    Args:
        max_workers: maximum number of calls that run at the same time; None means the number of CPUs. If the
            number is larger than the number of CPUs, calls share CPUs.
        mp_context: argument of `ProcessPoolExecutor`, which has no effect.
        initializer: function that each worker calls before its first call for this executor.
        initargs: arguments of the initializer, which are sent to each worker once.
        max_tasks_per_child: number of calls after which a worker process is replaced; None means never.
        **options: further options of `trainkit.remote` for tasks, such as `num_gpus=1`.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: object = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: int | None = None,
        **options: Any,
    ) -> None:
        del mp_context
        if max_workers is not None and max_workers < 1:
            raise ConfigError(
                f"max_workers must be greater than 0, not {max_workers!r}; None means one worker for each CPU"
            )
        if max_tasks_per_child is not None and (
            type(max_tasks_per_child) is not int or max_tasks_per_child < 1
        ):
            raise ConfigError(
                f"max_tasks_per_child must be an integer of 1 or more, or None for no limit, not "
                f"{max_tasks_per_child!r}"
            )
        if initializer is not None and not callable(initializer):
            raise ArgumentTypeError(f"initializer must be a function, not {initializer!r}")
        if "num_returns" in options:
            raise ConfigError("num_returns is not supported, as a future has one result: return a tuple")
        total = cluster_resources().get("CPU", 1.0)
        self.workers = max_workers or max(1, int(total))
        own = {"num_returns": 1, "max_calls": max_tasks_per_child, "num_cpus": share(total, self.workers)}
        self._options = Options().updated({**own, **options}, foreign=ACTORS_ONLY)
        self._engine = engine()
        self._runs_any = RemoteFunction(run, self._options)
        self._functions: dict[FunctionType, RemoteFunction[..., Any]] = {}
        self._before = None
        if initializer is not None:
            self._before = Preparation(uuid.uuid4().hex, put((initializer, initargs)))
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._waiting: deque[PoolFuture[Any]] = deque()
        self._sent: set[PoolFuture[Any]] = set()
        self._callbacks = Callbacks()
        self._turn = threading.Lock()
        self._calling: int | None = None
        self._owed_callbacks = 0
        self.is_nested, self.lending = self._engine.is_worker, self._engine.lending
        # Calls are sent in advance only if running calls use all CPUs. If CPUs were free, calls that are sent
        # in advance would run at once, beside `workers` other calls.
        cpus = self._options.num_cpus
        fills = (1 if cpus is None else cpus) * (self.workers + 1) > total
        self._most_ahead = MOST_AHEAD if fills else 0
        # In a worker, all calls are sent immediately, because only calls that were sent can use the CPUs that
        # the waiting worker lends.
        self._window = math.inf if self.is_nested else self.workers
        self._refilled_at = self._window - 1
        self._ended = 0
        self._since = SYSTEM.monotonic()
        self._is_shut_down = self._is_killed = False
        self._failure: InitializerError | None = None
        # After the end of a session, engines raise various errors, so all unfinished calls fail with the same
        # error.
        at_end(self._fail_all)
        _open.add(self)
        # Exit functions run in reverse order. So this function is registered again, so that it runs before
        # the session's own exit function.
        atexit.unregister(_finish_all)
        atexit.register(_finish_all)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> PoolFuture[T]:
        """Start `fn(*args, **kwargs)` in a worker; each reference among the arguments is replaced by its
        value.

        Raises:
            RuntimeError: the executor was shut down.
            InitializerError: the executor's initializer failed.
            NotInitializedError: the session in which the executor was created has ended.
        """
        if not self.has_session():
            raise NotInitializedError(SESSION_ENDED)
        future: PoolFuture[T] = PoolFuture(self, (fn, args, kwargs))
        with self._lock:
            if self._failure is not None:
                raise broken_pool(
                    InitializerError, str(self._failure), vars(self._failure)
                ) from self._failure
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if len(self._sent) >= self._window:
                self._waiting.append(future)
                return future
            self._sent.add(future)
        self._send([future])
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Yield the results of `fn` for all items, in order; all calls are submitted immediately.

        An array of a megabyte or more that several calls use is stored in shared memory only once.

        Args:
            fn: function that takes one item from each iterable.
            iterables: iterables of arguments; the shortest one determines the number of calls.
            timeout: seconds from now after which the iterator raises TimeoutError; None means never.
            chunksize: number of items per call; more than 1 is faster if an item takes only microseconds.
        """
        if chunksize < 1:
            raise ConfigError(f"chunksize must be 1 or more, not {chunksize!r}")
        items = shared(zip(*iterables, strict=False))
        if not items:
            return iter(())
        if chunksize == 1:
            return super().map(fn, *zip(*items, strict=True), timeout=timeout)
        chunks = super().map(run_chunk, itertools.repeat(fn), _chunked(items, chunksize), timeout=timeout)
        return itertools.chain.from_iterable(chunks)

    def submit_chunks(
        self, fn: Callable[..., T], items: Iterable[tuple[Any, ...]], chunksize: int
    ) -> Iterator[PoolFuture[list[T]]]:
        """Start `fn(*item)` for each item, `chunksize` items in one call; yield a future for each call."""
        left = iter(items)
        while chunk := [*itertools.islice(left, chunksize)]:
            yield self.submit(run_chunk, fn, chunk)

    def callback(self, fn: Callable[[futures.Future[Any]], object]) -> Callable[[futures.Future[Any]], None]:
        """Return a callback that runs `fn` in a separate thread, one at a time; `shutdown` waits for it."""
        self._callbacks.expect()
        with self._lock:
            self._owed_callbacks += 1

        def call(future: futures.Future[Any]) -> None:
            with self._turn:
                self._calling = threading.get_ident()
                try:
                    fn(future)
                finally:
                    self._calling = None
                    with self._lock:
                        self._owed_callbacks -= 1
                        self._quiet.notify_all()

        return lambda future: self._callbacks.put(functools.partial(call, future))

    def is_in_callback(self) -> bool:
        """Return True if this thread is running a callback of this executor."""
        return self._calling == threading.get_ident()

    def has_session(self) -> bool:
        """Return True if the session in which the executor was created is still running."""
        return running() is self._engine

    def blamed(self, error: BaseException | None) -> BaseException | None:
        """Return `error`; an InitializerError if the worker died while it ran the initializer."""
        if self._before is None or not isinstance(error, BrokenWorkerError) or error.pid is None:
            return error
        pool = self._before.pool
        if not self.has_session() or not initializing(self._engine.scratch_dir(), pool, error.pid).exists():
            return error
        message = (
            f"the executor's initializer has ended its worker ({error}): fix it, and create a new executor"
        )
        return broken_pool(InitializerError, message, {**vars(error), "pool": pool})

    def break_by(self, error: InitializerError) -> None:
        """Let waiting calls fail and refuse new calls, unless `error` comes from another executor."""
        if self._before is None or error.pool != self._before.pool:
            return
        with self._lock:
            self._failure = error
            lost = self._drop_waiting()
        _fail(lost, error)

    def on_end(self, future: PoolFuture[Any]) -> None:
        """Send waiting calls after a call has ended: one call, or several calls if many calls are sent in
        advance.
        """
        with self._lock:
            self._sent.discard(future)
            future.ref = None
            self._ended += 1
            if self._sent and (len(self._sent) > self._refilled_at or not self._waiting):
                return
            if self._ended >= LOOK_EVERY and self._most_ahead and not self.is_nested:
                now = SYSTEM.monotonic()
                more = min(self._most_ahead, ahead(self._ended, now - self._since))
                self._window, self._refilled_at = self.workers + more, self.workers + more // 2 - 1
                self._ended, self._since = 0, now
            has_session = self.has_session()
            calls = self._next_calls() if has_session else []
            lost = [] if has_session else self._drop_waiting()
        _fail(lost, NotInitializedError(SESSION_ENDED))
        if calls:
            self._send(calls)

    def _fail_all(self) -> None:
        """Make all calls fail, because an engine may report nothing after the end of its session."""
        error = NotInitializedError(SESSION_ENDED)
        with self._lock:
            waiting, sent = self._drop_waiting(), list(self._sent)
            self._sent.clear()
        _fail(waiting, error)
        for each in sent:
            # Another thread is about to send a call that is not running yet; this call fails when it is sent.
            if each.running():
                with contextlib.suppress(futures.InvalidStateError):  # The call may have ended just now.
                    futures.Future.set_exception(each, error)

    def _drop_waiting(self) -> list[PoolFuture[Any]]:
        """Remove all waiting calls and return them; the lock must be held."""
        dropped = list(self._waiting)
        self._waiting.clear()
        self._quiet.notify_all()
        return dropped

    def _next_calls(self) -> list[PoolFuture[Any]]:
        """Remove the waiting calls that may be sent now, and return them; the lock must be held."""
        room = min(len(self._waiting), self._window - len(self._sent))
        calls = [self._waiting.popleft() for _ in range(int(room))]
        self._sent.update(calls)
        if not self._sent:
            self._quiet.notify_all()
        return calls

    def _send(self, calls: list[PoolFuture[Any]]) -> None:
        # The code is a loop and not a recursion, because each call that can't be sent makes room for the next
        # call, maybe thousands of times.
        while calls:
            left = []
            for number, future in enumerate(calls):
                call, future.call = future.call, None
                if call is None or not future.set_running_or_notify_cancel():
                    left.append(future)
                    continue
                try:
                    ref = future.ref = self._remote(*call)
                    ref.future(future)
                    # Another thread has called `terminate_workers` after the call was taken.
                    if self._is_killed:
                        cancel(ref, force=True)
                except BaseException as error:  # As in `ProcessPoolExecutor`, the future receives the error.
                    futures.Future.set_exception(future, _as_pickled(error))
                    left.append(future)
                    if not isinstance(error, Exception):
                        self._put_back(left, calls[number + 1 :])
                        raise
            with self._lock:
                self._sent.difference_update(left)
                calls = self._next_calls() if left else []

    def _put_back(self, left: list[PoolFuture[Any]], calls: list[PoolFuture[Any]]) -> None:
        """Put `calls`, which were not sent because Ctrl-C interrupted the sending, back into the queue."""
        with self._lock:
            self._sent.difference_update(left, calls)
            self._waiting.extendleft(reversed(calls))
            self._quiet.notify_all()

    def _remote(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ObjectRef[Any]:
        # A closure or a bound method contains objects that may change between calls, so it is sent with each
        # call.
        if self._before is None and type(fn) is FunctionType and fn.__closure__ is None:
            remote = self._functions.get(fn)
            if remote is None:
                if len(self._functions) >= MOST_FUNCTIONS:
                    self._functions.clear()
                remote = self._functions[fn] = RemoteFunction(guarded(fn), self._options)
            return remote.remote(*args, **kwargs)
        return self._runs_any.remote(self._before, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new calls; if `wait` is True, return when submitted calls and their callbacks have ended.

        Args:
            wait: True: wait for submitted calls. False: the calls continue, and the program waits for them
                before it ends.
            cancel_futures: True: cancel the calls that have not been sent to a worker.
        """
        with self._lock:
            self._is_shut_down = True
            dropped = self._drop_waiting() if cancel_futures else []
        for future in dropped:
            future.cancel()
            future.set_running_or_notify_cancel()
        if wait:
            for future in list(self._sent) if self.is_nested else ():
                future.lend_cpus(None)
            with self._quiet:
                while (self._sent or self._waiting) and self.has_session():
                    self._quiet.wait(LOOK_S)
        if not self.has_session():
            self._fail_all()
        if not wait:
            return
        with self._quiet:
            # If a callback calls `shutdown`, it must not wait for its own end.
            while self._owed_callbacks and not self.is_in_callback():
                self._quiet.wait(LOOK_S)
        _open.discard(self)

    def terminate_workers(self) -> None:
        """Refuse new calls, cancel waiting calls, and kill the workers that run calls."""
        self.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._is_killed = True
            refs = [future.ref for future in self._sent if future.ref is not None]
        if self.has_session():
            for ref in refs:
                cancel(ref, force=True)


class Sharing:
    """Store for arrays that several calls use. Each array is stored in shared memory only once."""

    def __init__(self) -> None:
        self._put: dict[int, tuple[object, ObjectRef[Any]]] = {}

    def of(self, value: Any) -> Any:
        """Return a reference to `value` if it is a large array; otherwise, return `value` itself."""
        numpy = sys.modules.get("numpy")
        if (
            numpy is None
            or type(value) is not numpy.ndarray
            or value.nbytes < SHARED_BYTES
            or value.dtype.hasobject
        ):
            return value
        # The array is kept in the dictionary, because after its deletion, another object could get the same
        # id.
        _, ref = self._put.get(id(value)) or (None, None)
        if ref is None:
            ref = put(value)
            self._put[id(value)] = value, ref
        return ref


def shared(items: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Replace large arrays in the arguments of several calls by references."""
    sharing = Sharing()
    return [tuple(map(sharing.of, item)) for item in items]


def _chunked(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


_open: weakref.WeakSet[Executor] = weakref.WeakSet()


def _finish_all() -> None:
    for executor in list(_open):
        executor.shutdown()
