"""Executors that run calls in threads or on event loops."""

from __future__ import annotations

import inspect
import select
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TaskCancelledError
from trainkit.runtime.calls.results import drained, require_iterator
from trainkit.runtime.local.client.futures import Futures
from trainkit.runtime.local.client.refs import LocalRef
from trainkit.runtime.local.system.context import GivenName, calling
from trainkit.runtime.local.wire.channel import CALL, FAILURE, INIT
from trainkit.runtime.local.worker.calls import (
    ENDS,
    ArrivedCall,
    CallerConnection,
    Calls,
    ConstructorFailed,
    parts_of,
)
from trainkit.runtime.serialize import Packed
from trainkit.runtime.specs import DYNAMIC, STREAMING, Concurrency

if TYPE_CHECKING:
    import asyncio

_MOST_AT_ONCE = 1_000


class ExecutorHost(Protocol):
    """Methods of a worker that its executor uses."""

    def end(self, error: BaseException) -> None:
        """End the worker as if `error` had been raised in its main thread.

        Any thread may call this method.
        """

    def wake(self) -> None:
        """Wake the main thread, so that it checks its queue and connections."""


class Executor(Protocol):
    """Executor of calls.

    Attributes:
        unfinished: number of accepted calls that have not ended; always 0 if calls run inside `begin`.
    """

    unfinished: int

    def begin(self, conn: CallerConnection, frame: ArrivedCall) -> None:
        """Run or schedule a call.

        The thread that reads the connections calls this method in the order in which calls arrived.
        """

    def cancelled(self, call_id: int, recursive: bool) -> None:
        """Stop a call. Any thread may call this method."""


def limits(concurrency: Concurrency, default: int) -> dict[str | None, int]:
    """Return the largest number of concurrent calls by group name.

    The key None is for methods without a group.
    """
    found: dict[str | None, int] = {None: concurrency.max_concurrency or default}
    found.update(concurrency.groups)
    return found


def group_error(group: str | None, known: Mapping[str | None, Any], method: str) -> ConfigError:
    """Return the error for a call in a concurrency group that does not exist."""
    names = sorted(name for name in known if name is not None)
    return ConfigError(f"{method}(): the actor has no concurrency group {group!r}; it has {names}")


class Threads:
    """Executor with a pool of daemon threads for each concurrency group.

    The main thread runs the constructor and serves the connections.
    """

    def __init__(self, host: ExecutorHost, calls: Calls, concurrency: Concurrency) -> None:
        self._host = host
        self._calls = calls
        self._lock = threading.Lock()
        self._pools = {
            group: _Pool(f"trainkit-{group or 'calls'}", limit, host.end)
            for group, limit in limits(concurrency, 1).items()
        }
        self.unfinished = 0

    def begin(self, conn: CallerConnection, frame: ArrivedCall) -> None:
        if frame.kind == INIT:
            self._calls.run(conn, frame)
            return
        try:
            parts = parts_of(frame)
            group = parts[5] if len(parts) > 5 else None
            pool = self._pools.get(group)
            if pool is None:
                raise group_error(group, self._pools, parts[1])
        except Exception as error:
            self._calls.refuse(conn, frame, error)
            return

        def work() -> None:
            self._calls.carry_out(conn, frame.kind, frame.call_id, *parts)
            with self._lock:
                self.unfinished -= 1
                idle = self.unfinished == 0
            if idle:  # the main thread must check whether the last handle was released meanwhile
                self._host.wake()

        with self._lock:
            self.unfinished += 1
        pool.add(work)

    def cancelled(self, call_id: int, recursive: bool) -> None:
        self._calls.cancel(call_id, recursive)


class _Pool:
    """Pool of up to `limit` threads, started when needed, which run functions in order of arrival."""

    def __init__(self, name: str, limit: int, on_exit: Callable[[BaseException], None]) -> None:
        self._name = name
        self._limit = limit
        self._on_exit = on_exit
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._count = 0

    def add(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._work.append(work)
            if len(self._work) <= self._idle or self._count == self._limit:
                self._changed.notify()
                return
            self._count += 1
        threading.Thread(target=self._loop, name=f"{self._name}-{self._count}", daemon=True).start()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._work:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                work = self._work.popleft()
            try:
                work()
            except BaseException as error:  # SystemExit and `exit_actor` end the actor, not only the thread
                self._on_exit(error)
                return
            del work  # deleting the job releases the call's connection and arguments


@dataclass(slots=True, eq=False)
class _Call:
    conn: CallerConnection
    frame: ArrivedCall
    method: str
    count: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str | None = None
    begun: float = 0.0  # time at which the call started, by the monotonic clock


@dataclass(slots=True, eq=False)
class _Group:
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[_Call]
    free: asyncio.Semaphore
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)


class AsyncioExecutor:
    """Executor with event loops, for an actor with `async def` methods.

    The main thread's event loop runs the constructor and the methods without a group. This event loop also
    serves the connections, unless the actor has concurrency groups. With concurrency groups, each group has
    an event loop in its own thread, and a further thread serves the connections. So with concurrency groups,
    a blocking method stops only the methods of its group.

    Calls of a group begin in their order of arrival. A coroutine method runs as an asyncio task. An
    asynchronous generator runs as a task that sends the yielded values. A plain method blocks the
    event loop while it runs.

    Args:
        host: the worker.
        calls: the worker's calls.
        futures: object that makes futures for references in this process.
        concurrency: limits on concurrent calls of the actor and of its groups.
    """

    def __init__(self, host: ExecutorHost, calls: Calls, futures: Futures, concurrency: Concurrency) -> None:
        # asyncio is imported only by workers that need it, as the import takes a tenth of a second and
        # megabytes.
        import asyncio

        self._asyncio = asyncio
        self._host = host
        self._calls = calls
        self._futures = futures
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._has_threads = bool(concurrency.groups)
        self._groups = {
            name: self._new_group(name, limit) for name, limit in limits(concurrency, _MOST_AT_ONCE).items()
        }
        self._counting = threading.Lock()
        self._constructing: asyncio.Task[None] | None = None
        self.unfinished = 0

    def _new_group(self, name: str | None, limit: int) -> _Group:
        loop = self._loop if name is None else self._asyncio.new_event_loop()
        group = _Group(loop, self._asyncio.Queue(), self._asyncio.Semaphore(limit))
        loop.create_task(self._dispatch(group), name=f"trainkit-{name or 'calls'}")
        if name is not None:
            threading.Thread(
                target=self._run_loop, args=(loop,), name=f"trainkit-{name}", daemon=True
            ).start()
        return group

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        except BaseException as error:  # a task of the user's code may raise SystemExit, for example
            self._host.end(error)

    def serve(self, fd: int, turn: Callable[[], bool]) -> None:
        """Run the main loop.

        Call `turn` when `fd` is readable or calls have ended, until `turn` returns False.
        """

        def look() -> None:
            if not turn():
                self._loop.stop()

        self._look = look
        if self._has_threads:
            threading.Thread(
                target=self._serve_connections, args=(fd, turn), name="trainkit-connections", daemon=True
            ).start()
        else:
            self._loop.add_reader(fd, look)
        self._loop.run_forever()

    def _serve_connections(self, fd: int, turn: Callable[[], bool]) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        try:
            while turn():
                poll.poll()
        except BaseException as error:
            self._host.end(error)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def begin(self, conn: CallerConnection, frame: ArrivedCall) -> None:
        if frame.kind == INIT:
            if self._has_threads:
                self._construct_in_main_thread(conn, frame)
            else:
                self._construct(conn, frame)
                # the actor's methods are called only after this asyncio task has ended
                if self._calls.beginning is not None:
                    self._constructing = self._loop.create_task(self._begin_instance(frame))
            return
        try:
            _, method, count, args, kwargs, *said = parts_of(frame)
            wanted, name = (*said, None, None)[:2]
            group = self._groups.get(wanted)
            if group is None:
                raise group_error(wanted, self._groups, method)
        except Exception as error:
            self._calls.refuse(conn, frame, error)
            return
        with self._counting:
            self.unfinished += 1
        call = _Call(conn, frame, method, count, args, kwargs, name)
        if self._has_threads:
            group.loop.call_soon_threadsafe(group.queue.put_nowait, call)
        else:
            group.queue.put_nowait(call)

    def _construct(self, conn: CallerConnection, frame: ArrivedCall) -> None:
        try:
            self._calls.run(conn, frame)
        except BaseException as error:
            self._host.end(error)

    def _construct_in_main_thread(self, conn: CallerConnection, frame: ArrivedCall) -> None:
        made = threading.Event()

        async def construct() -> None:
            try:
                self._construct(conn, frame)
                await self._begin_instance(frame)
            finally:
                made.set()

        self._asyncio.run_coroutine_threadsafe(construct(), self._loop)
        made.wait()

    async def _begin_instance(self, frame: ArrivedCall) -> None:
        """Run the `async def __init__` of the actor's class, if it has one."""
        calls, beginning = self._calls, self._calls.beginning
        if beginning is None:
            return
        method, begun = parts_of(frame)[1], SYSTEM.monotonic()
        try:
            await beginning
            if calls.recorder is not None:
                calls.recorder.add(calls.shown("__init__"), begun, None, calls.actor_id)
            calls.show_as(calls.instance)
        except ENDS as error:
            self._host.end(error)
        except BaseException as error:
            calls.require_parent(method, error)
            calls.failed(error, INIT, frame.call_id, method, 1)

    def cancelled(self, call_id: int, recursive: bool) -> None:
        self._calls.cancel(call_id, recursive)
        for group in self._groups.values():
            group.loop.call_soon_threadsafe(self._stop, group, call_id)

    def _stop(self, group: _Group, call_id: int) -> None:
        task = group.tasks.get(call_id)
        if task is not None:
            task.cancel()

    async def _dispatch(self, group: _Group) -> None:
        """Begin the calls of a group one after another."""
        while True:
            try:
                await self._begin_next(group, await group.queue.get())
            except self._asyncio.CancelledError:
                continue  # user code has cancelled all tasks of its loop, but this task must continue

    async def _begin_next(self, group: _Group, call: _Call) -> None:
        try:
            if self._constructing is not None:
                await self._asyncio.wait([self._constructing])
            args = [await self._resolved(value) for value in call.args]
            kwargs = {key: await self._resolved(value) for key, value in call.kwargs.items()}
            await group.free.acquire()
        except ENDS as error:
            self._host.end(error)
            self._end()
            return
        except BaseException as error:
            self._fail(call, error)
            self._end()
            return
        task = group.loop.create_task(self._run(call, args, kwargs, group), name=call.method)
        task.add_done_callback(lambda _: self._ended(call, group))

    def _ended(self, call: _Call, group: _Group) -> None:
        if not call.begun:  # the task was cancelled before its first step
            self._fail(call, self._asyncio.CancelledError())
        elif (recorder := self._calls.recorder) is not None:
            shown = self._calls.shown(call.method, call.name)
            recorder.add(shown, call.begun, f"{call.frame.call_id:016x}", self._calls.actor_id)
        group.tasks.pop(call.frame.call_id, None)
        self._calls.forget_cancelled(call.frame.call_id)
        group.free.release()
        self._end()

    async def _resolved(self, value: Any) -> Any:
        if isinstance(value, LocalRef) and not value.done():
            await self._futures.awaited(value, LocalRef.done)
        return self._calls.resolved(value)

    async def _run(self, call: _Call, args: list[Any], kwargs: dict[str, Any], group: _Group) -> None:
        call.begun = SYSTEM.monotonic()
        task = self._asyncio.current_task()
        call_id = call.frame.call_id
        calling.set((call_id, call.method if call.name is None else GivenName(call.name)))
        answers: list[tuple[int, Packed]] = []
        try:
            if self._calls.cancelled:
                self._calls.require_wanted(call_id, call.method)
            if task is not None:
                group.tasks[call_id] = task
            result = self._calls.bound(call.method)(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            count = call.count
            if count == STREAMING:
                await self._stream(call, result)
                result, count = None, 1
            elif (count > 1 or count == DYNAMIC) and isinstance(result, AsyncIterator):
                result = await drained(result, count)
            answers.extend(self._calls.packed(result, count, call.method))
            self._calls.answer(call.conn, call_id, answers)
        except ConstructorFailed as error:
            self._calls.answer(call.conn, call_id, [(FAILURE, error.failure)] * max(1, call.count))
        except ENDS as error:
            self._host.end(error)
        except BaseException as error:
            self._fail(call, error, answers)

    async def _stream(self, call: _Call, items: Any) -> None:
        require_iterator(items, call.method)
        try:
            if isinstance(items, AsyncIterator):
                async for item in items:
                    self._calls.send_item(call.conn, call.frame.call_id, item, call.method)
            else:
                for item in items:
                    self._calls.send_item(call.conn, call.frame.call_id, item, call.method)
                    # During the pause, other calls can run, and this call can be cancelled.
                    await self._asyncio.sleep(0)
        finally:
            if hasattr(items, "aclose"):
                await items.aclose()
            elif hasattr(items, "close"):
                items.close()

    def _fail(
        self, call: _Call, error: BaseException, answers: list[tuple[int, Packed]] | None = None
    ) -> None:
        call_id = call.frame.call_id
        self._calls.require_parent(call.method, error)
        if isinstance(error, self._asyncio.CancelledError) and call_id in self._calls.cancelled:
            cause, error = error, TaskCancelledError(f"{self._calls.where(CALL, call.method)} was cancelled")
            error.__cause__ = cause
        done = answers or []
        failed = self._calls.failed(error, CALL, call_id, call.method, call.count)
        self._calls.answer(call.conn, call_id, [*done, *failed[len(done) :]])

    def _end(self) -> None:
        with self._counting:
            self.unfinished -= 1
            if self.unfinished:
                return
        if self._has_threads:  # the main thread must check whether the last handle was released meanwhile
            self._host.wake()
        else:
            self._loop.call_soon(self._look)
