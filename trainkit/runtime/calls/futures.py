"""Futures of calls, and the threads that run their callbacks."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainkit.clock import SYSTEM

if TYPE_CHECKING:
    from concurrent.futures import Future

    from trainkit.runtime.local.client.background import BackgroundThread


_PATIENCE_S = 0.01

_KEPT_IDLE = 2


class Callbacks:
    """Threads that run callbacks in place of a thread that must not block, such as the background thread.

    One thread runs the callbacks in order, and a standby thread waits. The standby thread also runs callbacks
    if no callback has begun for a while, because the running callbacks may block each other. The more
    callbacks are running, the longer the standby thread waits. The threads end when no callback is expected
    any more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: deque[Callable[[], object]] = deque()
        self._expected = 0
        self._idle = 0
        self._running = 0
        self._last_begun_at = 0.0

    def expect(self) -> None:
        """Ensure that a thread exists for an additional callback.

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
        """Reduce the number of expected callbacks by one."""
        with self._changed:
            self._forgo()

    def put(self, callback: Callable[[], object]) -> None:
        """Schedule an expected callback."""
        with self._changed:
            self._due.append(callback)
            self._try_to_stand_by()
            if len(self._due) == 1:  # if more callbacks are due, a thread is already running them
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
        with contextlib.suppress(RuntimeError):
            # If no thread can be started, the running threads run the callbacks.
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
        """Wait until the calling thread is needed. Return False if no callback is expected any more."""
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
        except BaseException:
            # The error is reported like an uncaught error of a thread, and the next callback runs.
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        finally:
            del callback
            self._changed.acquire()


def ref_future(pump: BackgroundThread, callbacks: Callbacks) -> Future[Any]:
    """Return a future that the background thread `pump` settles.

    `callbacks` runs the future's callbacks. If the background thread ran a callback that waits for a
    reference, the thread could not read the answer.
    """
    future: Future[Any] = _ref_future_class()(pump, callbacks)
    return future


@functools.cache
def _ref_future_class() -> Any:
    from concurrent.futures import Future  # imported here because the import is slow and few programs need it

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
