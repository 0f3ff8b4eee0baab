"""Executors of calls: one by one in the main thread, or in threads; and the interruption of a call."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from trainkit import runtime
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.runtime.local.client.futures import Results
from trainkit.runtime.local.wire.channel import INIT, Connection, Frame
from trainkit.runtime.local.worker.calls import CallerConnection, Calls, Cancelled, SmallCall, parts_of
from trainkit.runtime.specs import Concurrency

_RUNTIME = str(Path(runtime.__file__).resolve().parent) + os.sep
_BOUNDARY = frozenset({Calls.carry_out.__code__, Calls.run_small.__code__, Calls.stream.__code__})
"""From here user code is called; all frames of ours above it are called by that."""
_AGAIN_S = 0.001


class Interruption:
    """The SIGINT handler of a worker that runs calls in its main thread.

    Args:
        calls: what runs there.
        control: the connection that cancellations come over.
        can_raise: the calls are tasks; methods of an actor that have begun go on.

    Attributes:
        missed: a signal came while no call was running, so the connection may have to be read.
    """

    def __init__(self, calls: Calls, control: Connection, can_raise: bool) -> None:
        self._calls = calls
        self._control = control
        self._can_raise = can_raise
        self._main = threading.get_ident()
        self._pid = os.getpid()
        self.missed = False
        signal.signal(signal.SIGINT, self._arrived)

    def cancelled(self, call_id: int) -> None:
        """A cancellation was read: the handler looks again if another thread than the main one did."""
        if call_id == self._calls.running and threading.get_ident() != self._main:
            signal.pthread_kill(self._main, signal.SIGINT)

    def look(self) -> None:
        """Read what the signals that were missed were about."""
        self.missed = False
        self._control.try_read()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        calls = self._calls
        running = calls.running
        if os.getpid() != self._pid:
            return  # a forked child has no part in it
        if not running:
            self.missed = True
            return
        # Without a frame, the signal comes from a wait of ours, such as that of `get`.
        can_be_caught = _is_users(frame) if frame is not None else _is_in_call(sys._getframe())
        if not can_be_caught:
            # Without the threading module, of which the interrupted code may hold a lock.
            _thread.start_new_thread(_again, (self._main,))
            return
        self._control.try_read()
        # A call's own code has not begun while that waits for its arguments.
        may_raise = self._can_raise or (frame is None and calls.resolving)
        if may_raise and running in calls.cancelled:
            calls.interrupted = running
            raise Cancelled


def _again(thread: int) -> None:
    SYSTEM.sleep(_AGAIN_S)
    signal.pthread_kill(thread, signal.SIGINT)


def _is_users(frame: FrameType | None) -> bool:
    """Return whether no frame from the innermost down to where user code was called is trainkit's."""
    if frame is None or frame.f_code.co_filename.startswith(_RUNTIME):
        return False
    while frame is not None and not frame.f_code.co_filename.startswith(_RUNTIME):
        frame = frame.f_back
    return frame is not None and frame.f_code in _BOUNDARY


def _is_in_call(frame: FrameType | None) -> bool:
    """Return whether a call has begun: what is raised before is caught by nobody."""
    while frame is not None and frame.f_code not in _BOUNDARY:
        frame = frame.f_back
    return frame is not None


class ExecutorHost(Protocol):
    """The part of a worker that its executor uses."""

    def end(self, error: BaseException) -> None:
        """End the worker as if `error` had been raised in its main thread; from any thread."""

    def wake(self) -> None:
        """Have the main thread look around."""


class Executor(Protocol):
    """Runs calls.

    Attributes:
        unfinished: how many calls it has begun that run beside the main thread's loop.
    """

    unfinished: int

    def begin(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
        """Run a call, or see to it that it is run; in the main thread, in the order in which calls came."""

    def cancelled(self, call_id: int, recursive: bool) -> None:
        """A call is to be stopped; from any thread."""


def limits(concurrency: Concurrency, default: int) -> dict[str | None, int]:
    """How many calls of each group run at once; None stands for methods in no group."""
    found: dict[str | None, int] = {None: concurrency.max_concurrency or default}
    found.update(concurrency.groups)
    return found


def group_error(group: str | None, known: Mapping[str | None, Any], method: str) -> ConfigError:
    """The error for a call in a group that isn't there."""
    names = sorted(name for name in known if name is not None)
    return ConfigError(f"{method}(): the actor has no concurrency group {group!r}; it has {names}")


class SerialExecutor:
    """One at a time, in the main thread: the fast way, and where signals and CUDA want their code."""

    unfinished = 0

    def __init__(self, calls: Calls, results: Results, node: Connection, can_raise: bool) -> None:
        self._calls = calls
        self._results = results
        self._interruption = Interruption(calls, node, can_raise)

    def begin(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
        calls, started = self._calls, self._results.started
        if started:
            started.clear()
        calls.running = frame.call_id
        if self._interruption.missed:  # looked at behind that, so that nothing falls in between
            self._interruption.look()
        if type(frame) is SmallCall:
            calls.run_small(conn, frame)
        else:
            calls.run(conn, frame)
        calls.running = 0
        if calls.cancelled:
            self._clear(frame.call_id)

    def _clear(self, call_id: int) -> None:
        """Forget that a call was cancelled, which has ended; cancel what it has started if it was stopped."""
        recursive = self._calls.forget_cancelled(call_id)
        if recursive and self._calls.interrupted == call_id:
            self._results.cancel_started()

    def cancelled(self, call_id: int, recursive: bool) -> None:
        self._calls.cancel(call_id, recursive)
        self._interruption.cancelled(call_id)


class Threads:
    """In daemon threads, a pool for each group; constructed in the main thread, which serves connections."""

    def __init__(self, host: ExecutorHost, calls: Calls, concurrency: Concurrency) -> None:
        self._host = host
        self._calls = calls
        self._lock = threading.Lock()
        self._pools = {
            group: _Pool(f"trainkit-{group or 'calls'}", limit, host.end)
            for group, limit in limits(concurrency, 1).items()
        }
        self.unfinished = 0

    def begin(self, conn: CallerConnection, frame: Frame | SmallCall) -> None:
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
            if idle:  # the last handle may have gone meanwhile
                self._host.wake()

        with self._lock:
            self.unfinished += 1
        pool.add(work)

    def cancelled(self, call_id: int, recursive: bool) -> None:
        self._calls.cancel(call_id, recursive)


class _Pool:
    """Up to `limit` threads, started as they are needed, that take work in the order in which it came."""

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
            except BaseException as error:  # SystemExit, exit_actor: the actor's end, not the thread's
                self._on_exit(error)
                return
            del work  # and with it the connection and the arguments
