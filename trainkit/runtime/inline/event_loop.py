"""Event loop of one actor or task, which runs only during a call, and the stack of running calls."""

from __future__ import annotations

import contextlib
import contextvars
import selectors
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from trainkit.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class _Stack(threading.local):
    # The stack is thread-local, not a context variable, because the code of a greenlet belongs to the call
    # that switches to the greenlet.
    frames: tuple[Any, ...] = ()


_stack = _Stack()


def running_frames() -> tuple[Any, ...]:
    """Return the contexts (`CallFrame`) of the nested calls that run this code, innermost call last."""
    return _stack.frames


@contextlib.contextmanager
def standing_in(inside: tuple[Any, ...]) -> Iterator[None]:
    """Run the `with` block, on this thread, as code of the running calls `inside`."""
    outer = _stack.frames
    _stack.frames = inside
    try:
        yield
    finally:
        _stack.frames = outer


_open: set[asyncio.Runner] = set()
"""Open event loops.

The references in this set keep the garbage collector from ending a loop before its actor closes it.
"""


class _Stuck(Exception):
    """Error for an event loop that waits forever, because no event can wake the loop."""


class _Selector(selectors.DefaultSelector):
    """Selector that detects an endless wait.

    An event loop waits forever if it has no timer and no open file except its own, and no
    other thread can wake it.

    Attributes:
        threads: number of threads that can't wake the loop: the loop's own thread, and a thread that waits
            for the loop.
    """

    threads = 1

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None and len(self.get_map()) <= 1 and threading.active_count() <= self.threads:
            raise _Stuck
        return super().select(timeout)


class PrivateLoop:
    """Event loop of one actor or task, made on first use, which runs only during a call.

    The caller's thread may already run an event loop, such as the loop of a notebook. A thread can run only
    one loop. So if the caller's thread runs a loop, the private loop runs in a further thread, and the caller
    waits.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._selector: _Selector | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, awaitable: Awaitable[T], where: str) -> T:
        """Run `awaitable` to its end and return its result.

        Raises:
            ConfigError: `awaitable` waits for an effect that only another call could have.
        """
        if self._task is not None:
            if hasattr(awaitable, "close"):
                awaitable.close()  # without `close`, Python would warn that the coroutine was never awaited
            raise ConfigError(
                f"{where} was called while another async call of the same actor runs. The inline engine "
                "runs async calls one at a time; engine='local' runs them concurrently"
            )
        if not _in_running_loop():
            return self._run(awaitable, where)
        return _beside(lambda: self._run(awaitable, where), self._interrupt)

    def close(self) -> None:
        """Cancel all tasks of the loop, let them clean up, and close the loop."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        try:
            if _in_running_loop():
                _beside(runner.close, lambda: None)
            else:
                runner.close()
        finally:
            _open.discard(runner)

    def _run(self, awaitable: Awaitable[T], where: str) -> T:
        import asyncio  # the import takes a tenth of a second, so only async calls do it

        if self._runner is None or self._selector is None:
            self._selector = _Selector()
            loop = asyncio.SelectorEventLoop(self._selector)
            self._runner = asyncio.Runner(loop_factory=lambda: loop)
            _open.add(self._runner)
        self._selector.threads = 1 if threading.current_thread() is threading.main_thread() else 2

        async def main() -> T:
            self._task = asyncio.current_task()
            return await awaitable

        try:
            return self._runner.run(main(), context=contextvars.copy_context())
        except _Stuck:
            raise ConfigError(
                f"{where} waits for another call, but the inline engine runs each call to its end before "
                "the next call; engine='local' runs calls concurrently"
            ) from None
        finally:
            task, self._task = self._task, None
            if task is not None and not task.done():
                self._abandon(task)

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task whose loop has stopped, so that its `finally` blocks run now."""
        import asyncio

        task.cancel()
        with contextlib.suppress(_Stuck, asyncio.CancelledError):
            task.get_loop().run_until_complete(task)

    def _interrupt(self) -> None:
        task = self._task
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)


def _in_running_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _beside(work: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Run `work` in another thread and return its result.

    If Ctrl-C arrives during the wait, call `interrupt`.
    """
    done: Future[T] = Future()
    inside = running_frames()

    def run() -> None:
        try:
            with standing_in(inside):
                done.set_result(work())
        except BaseException as error:  # an error of any type is passed to the waiting thread
            done.set_exception(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="trainkit-inline-loop")
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        interrupt()
        raise
    finally:
        thread.join()
