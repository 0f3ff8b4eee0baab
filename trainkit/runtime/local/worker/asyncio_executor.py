"""Executor of calls on event loops, for actors with `async def` methods.

The main thread's loop runs the constructor and the methods in no group, and serves the connections. An
actor with concurrency groups has a loop in a thread of its own for each of them, and serves the
connections in a further thread, so that a method that blocks stops only those of its group.

Calls begin in the order in which they came, group by group. A coroutine method is a task, an asynchronous
generator a task that sends what is yielded, and a plain method holds its loop as long as it runs.
"""

from __future__ import annotations

import inspect
import select
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainkit.errors import TaskCancelledError
from trainkit.runtime.local.client.calls import GivenName, calling
from trainkit.runtime.local.client.futures import Futures
from trainkit.runtime.local.client.refs import LocalRef
from trainkit.runtime.local.wire.channel import CALL, FAILURE, INIT, Frame
from trainkit.runtime.local.worker.calls import (
    ENDS,
    CallerConnection,
    Calls,
    ConstructorFailed,
    SmallCall,
    parts_of,
    require_iterator,
)
from trainkit.runtime.local.worker.executors import ExecutorHost, group_error, limits
from trainkit.runtime.serialize import Packed
from trainkit.runtime.specs import DYNAMIC, STREAMING, Concurrency
from trainkit.runtime.streams import drained

if TYPE_CHECKING:
    import asyncio

_MOST_AT_ONCE = 1_000


@dataclass(slots=True, eq=False)
class _Call:
    conn: CallerConnection
    frame: Frame | SmallCall
    method: str
    count: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str | None = None
    begun: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[_Call]
    free: asyncio.Semaphore
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)


class AsyncioExecutor:
    """The loops of an actor.

    Args:
        host: the worker.
        calls: its calls.
        futures: of this process.
        concurrency: how many calls run at once.
    """

    def __init__(self, host: ExecutorHost, calls: Calls, futures: Futures, concurrency: Concurrency) -> None:
        # Imported by the workers that need it alone: a tenth of a second, and megabytes.
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
        except BaseException as error:  # SystemExit in a task of the user's own
            self._host.end(error)

    def serve(self, fd: int, turn: Callable[[], bool]) -> None:
        """Run the main loop until `turn` is False, which runs when `fd` can be read or calls have ended."""

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

    def begin(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
        if frame.kind == INIT:
            if self._has_threads:
                self._construct_in_main_thread(conn, frame)
            else:
                self._construct(conn, frame)
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

    def _construct(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
        try:
            self._calls.run(conn, frame)
        except BaseException as error:
            self._host.end(error)

    def _construct_in_main_thread(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
        made = threading.Event()

        def construct() -> None:
            try:
                self._construct(conn, frame)
            finally:
                made.set()

        self._loop.call_soon_threadsafe(construct)
        made.wait()

    def cancelled(self, call_id: int, recursive: bool) -> None:
        self._calls.cancel(call_id, recursive)
        for group in self._groups.values():
            group.loop.call_soon_threadsafe(self._stop, group, call_id)

    def _stop(self, group: _Group, call_id: int) -> None:
        task = group.tasks.get(call_id)
        if task is not None:
            task.cancel()

    async def _dispatch(self, group: _Group) -> None:
        """Begin the calls of a group, one after the other."""
        while True:
            try:
                await self._begin_next(group, await group.queue.get())
            except self._asyncio.CancelledError:
                continue  # user code has cancelled all tasks of its loop, and this is not one of its own

    async def _begin_next(self, group: _Group, call: _Call) -> None:
        try:
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
        if not call.begun:  # its task was cancelled before its first step
            self._fail(call, self._asyncio.CancelledError())
        group.tasks.pop(call.frame.call_id, None)
        self._calls.forget_cancelled(call.frame.call_id)
        group.free.release()
        self._end()

    async def _resolved(self, value: Any) -> Any:
        if isinstance(value, LocalRef) and not value.done():
            await self._futures.arrival(value)
        return self._calls.resolved(value)

    async def _run(self, call: _Call, args: list[Any], kwargs: dict[str, Any], group: _Group) -> None:
        call.begun = True
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
                    await self._asyncio.sleep(0)  # other calls, and a cancellation of this one, come in here
        finally:
            if hasattr(items, "aclose"):
                await items.aclose()
            elif hasattr(items, "close"):
                items.close()

    def _fail(
        self, call: _Call, error: BaseException, answers: list[tuple[int, Packed]] | None = None
    ) -> None:
        call_id = call.frame.call_id
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
        if self._has_threads:  # the last handle may have gone meanwhile
            self._host.wake()
        else:
            self._loop.call_soon(self._look)
