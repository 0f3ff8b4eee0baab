"""Running calls on an event loop: for actors with `async def` methods.

The main thread is the loop's, and serves the connections in it. Calls begin in the order sent, group by
group; a coroutine method is a task, an asynchronous generator a task that sends what is yielded, and
a plain method holds the loop as long as it runs.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.errors import TaskCancelledError
from trainkit.runtime.local.callers import CallerConnection, SmallCall, parts_of
from trainkit.runtime.local.calls import Calls, NeverMade, require_iterator
from trainkit.runtime.local.client import LocalEngine
from trainkit.runtime.local.frames import CALL, FAILURE, INIT, Frame
from trainkit.runtime.local.place import calling
from trainkit.runtime.local.refs import LocalRef
from trainkit.runtime.local.running import Host, group_error, limits
from trainkit.runtime.specs import STREAMING, Concurrency

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


class EventLoop:
    """A loop in the main thread.

    Args:
        host: the worker.
        calls: its calls.
        engine: this process's.
        concurrency: how many calls run at once.
    """

    def __init__(self, host: Host, calls: Calls, engine: LocalEngine, concurrency: Concurrency) -> None:
        # Imported by the workers that need it alone: a tenth of a second, and megabytes.
        import asyncio

        self._asyncio = asyncio
        self._host = host
        self._calls = calls
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._groups = {
            group: _Group(asyncio.Queue(), asyncio.Semaphore(limit))
            for group, limit in limits(concurrency, _MOST_AT_ONCE).items()
        }
        self._dispatchers = [
            self._loop.create_task(self._dispatch(group), name=f"trainkit-{name or 'calls'}")
            for name, group in self._groups.items()
        ]
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.unfinished = 0

    def serve(self, fd: int, turn: Callable[[], bool]) -> None:
        """Run the loop until `turn` is False, which runs when `fd` can be read and when calls have ended."""

        def look() -> None:
            if not turn():
                self._loop.stop()

        self._look = look
        self._loop.add_reader(fd, look)
        self._loop.run_forever()

    def begin(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
        if frame.kind == INIT:
            try:
                self._calls.run(conn, frame)
            except BaseException as error:
                self._host.end(error)
            return
        try:
            _, method, count, args, kwargs, *named = parts_of(frame)
            group = self._groups.get(named[0] if named else None)
            if group is None:
                raise group_error(named[0], self._groups, method)
        except Exception as error:
            self._calls.refuse(conn, frame, error)
            return
        self.unfinished += 1
        group.queue.put_nowait(_Call(conn, frame, method, count, args, kwargs))

    def cancelled(self, call_id: int, recursive: bool) -> None:
        self._calls.cancel(call_id, recursive)
        self._loop.call_soon_threadsafe(self._stop, call_id)

    def _stop(self, call_id: int) -> None:
        task = self._tasks.get(call_id)
        if task is not None:
            task.cancel()

    async def _dispatch(self, group: _Group) -> None:
        """Begin the calls of a group, one after the other."""
        while True:
            call = await group.queue.get()
            try:
                args = [await self._resolved(value) for value in call.args]
                kwargs = {key: await self._resolved(value) for key, value in call.kwargs.items()}
            except Exception as error:
                self._fail(call, error)
                self._end()
                continue
            await group.free.acquire()
            self._loop.create_task(self._run(call, args, kwargs, group), name=call.method)
            del call, args, kwargs

    async def _resolved(self, value: Any) -> Any:
        if isinstance(value, LocalRef) and not value.done():
            await self._engine.arrival(value)
        return self._calls.resolved(value)

    async def _run(self, call: _Call, args: list[Any], kwargs: dict[str, Any], group: _Group) -> None:
        task = self._asyncio.current_task()
        call_id = call.frame.call_id
        calling.set(call_id)
        try:
            if self._calls.cancelled:
                self._calls.require_wanted(call_id, call.method)
            if task is not None:  # from here on it has a `finally`, so it may be cancelled
                self._tasks[call_id] = task
            result = self._calls.bound(call.method)(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            count = call.count
            if count == STREAMING:
                await self._stream(call, result)
                result, count = None, 1
            self._calls.answer(call.conn, call_id, self._calls.packed(result, count, call.method))
        except NeverMade as error:
            self._calls.answer(call.conn, call_id, [(FAILURE, error.failure)] * max(1, call.count))
        except (Exception, self._asyncio.CancelledError) as error:
            self._fail(call, error)
        except BaseException as error:  # SystemExit, exit_actor
            self._host.end(error)
        finally:
            self._tasks.pop(call_id, None)
            self._calls.cancelled.pop(call_id, None)
            group.free.release()
            self._end()

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

    def _fail(self, call: _Call, error: BaseException) -> None:
        call_id = call.frame.call_id
        if isinstance(error, self._asyncio.CancelledError) and call_id in self._calls.cancelled:
            cause, error = error, TaskCancelledError(f"{self._calls.where(CALL, call.method)} was cancelled")
            error.__cause__ = cause
        self._calls.answer(
            call.conn, call_id, self._calls.failed(error, CALL, call_id, call.method, call.count)
        )

    def _end(self) -> None:
        self.unfinished -= 1
        if self.unfinished == 0:  # the last handle may have gone meanwhile
            self._loop.call_soon(self._look)


@dataclass(slots=True, eq=False)
class _Group:
    queue: asyncio.Queue[_Call]
    free: asyncio.Semaphore
