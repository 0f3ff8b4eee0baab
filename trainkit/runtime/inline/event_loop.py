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
    # A context variable would not work, as a greenlet has its own context, although its code belongs to the
    # call that switches to it.
    frames: tuple[Any, ...] = ()


_stack = _Stack()


def running_frames() -> tuple[Any, ...]:
    """Return the frames of the calls that run this code, from the outermost to the innermost."""
    return _stack.frames


@contextlib.contextmanager
def standing_in(inside: tuple[Any, ...]) -> Iterator[None]:
    """Make the code of the `with` block, in this thread, part of the calls `inside`."""
    outer = _stack.frames
    _stack.frames = inside
    try:
        yield
    finally:
        _stack.frames = outer


_open: set[asyncio.Runner] = set()
"""Open runners. The set keeps the garbage collector from ending a loop before its actor closes the loop."""


class _Stuck(Exception):
    """Error that the loop waits for an event that can't happen."""


class _Selector(selectors.DefaultSelector):
    """Selector that detects an endless wait.

    A loop would wait forever if it has no timer, no open file except its own, and no other thread that could
    wake the loop.

    Attributes:
        threads: number of threads that can't wake the loop, which are the loop's thread and a thread that
            waits for it.
    """

    threads = 1

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None and len(self.get_map()) <= 1 and threading.active_count() <= self.threads:
            raise _Stuck
        return super().select(timeout)


class PrivateLoop:
    """Event loop of one actor or task, made on first use, which runs only during a call.

    The caller may be in a running event loop itself, such as a notebook's. As a thread can run only one loop,
    this loop then runs in a different thread, and the caller waits.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._selector: _Selector | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, awaitable: Awaitable[T], where: str) -> T:
        """Run `awaitable` to its end and return its result.

        Raises:
            ConfigError: the awaitable waits for an effect of a different call, which can't run meanwhile.
        """
        if self._task is not None:
            if hasattr(awaitable, "close"):
                awaitable.close()  # closing the coroutine avoids the warning that it was never awaited
            raise ConfigError(
                f"{where} was called while another async call of the same actor runs, and the inline engine "
                "runs one at a time; engine='local' runs them side by side"
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
        import asyncio  # imported here, as it takes a tenth of a second

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
            if self._task is not None:
                self._task.cancel()  # the cancelled task's `finally` blocks run now
                with contextlib.suppress(_Stuck, asyncio.CancelledError):
                    self._runner.get_loop().run_until_complete(self._task)
            raise ConfigError(
                f"{where} waits for something that only another call could do, and the inline engine runs "
                "one call at a time, to its end; engine='local' runs them side by side"
            ) from None
        finally:
            self._task = None

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
    """Call `work` in a new thread and wait for its result. Ctrl-C calls `interrupt`."""
    done: Future[T] = Future()
    inside = running_frames()

    def run() -> None:
        try:
            with standing_in(inside):
                done.set_result(work())
        except BaseException as error:  # errors of every type are passed to the waiting thread
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
