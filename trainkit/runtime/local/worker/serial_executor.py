"""Executor that runs calls in the main thread, and handler of SIGINT that interrupts these calls."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from trainkit import runtime
from trainkit.clock import SYSTEM
from trainkit.runtime.local.client.futures import Results
from trainkit.runtime.local.wire.channel import Connection
from trainkit.runtime.local.worker.calls import ArrivedCall, CallerConnection, Calls, Cancelled

_RUNTIME = str(Path(runtime.__file__).resolve().parent) + os.sep
_BOUNDARY = frozenset({Calls.carry_out.__code__, Calls.run_small.__code__, Calls.stream.__code__})
"""Code objects of the methods that call user code.

If frames of trainkit come after them in a stack, user code has called trainkit.
"""
_AGAIN_S = 0.001


class Interruption:
    """SIGINT handler of a worker that runs calls in its main thread.

    Args:
        calls: the worker's calls.
        control: connection that delivers cancellations.
        can_raise: True if the worker runs tasks, which a cancellation interrupts. A running actor method
            continues when cancelled, unless the actor's class has a method `__cancelled__`, which raises an
            exception that ends the call.

    Attributes:
        missed: True if a signal arrived while no call was running, so that a cancellation may be unread.
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
        """Send SIGINT to the main thread if a different thread has read
        the cancellation of the running call.
        """
        if call_id == self._calls.running and threading.get_ident() != self._main:
            signal.pthread_kill(self._main, signal.SIGINT)

    def look(self) -> None:
        """Read the cancellations whose signals arrived while no call was running."""
        self.missed = False
        self._control.try_read()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        calls = self._calls
        running = calls.running
        if os.getpid() != self._pid:
            return  # a forked child of the worker ignores this signal
        # A call is interrupted only once, so that its `finally` blocks complete.
        if not running or running == calls.interrupted:
            self.missed = True
            return
        # If the handler has no frame, it was called by code of trainkit that waits, such as `get`.
        can_be_caught = _is_users(frame) if frame is not None else _is_in_call(sys._getframe())
        if not can_be_caught:
            # `_thread` is used because the interrupted code may hold a lock of the `threading` module.
            _thread.start_new_thread(_again, (self._main,))
            return
        self._control.try_read()
        # A method that waits for its arguments has not begun, so it may be interrupted.
        may_raise = self._can_raise or (frame is None and calls.resolving)
        # `__cancelled__` is looked up on the type, as a user's instance may forward any attribute name.
        own = getattr(type(calls.instance), "__cancelled__", None)
        if (may_raise or own) and running in calls.cancelled:
            calls.interrupted = running
            if own:
                own(calls.instance)
            raise Cancelled


def _again(thread: int) -> None:
    SYSTEM.sleep(_AGAIN_S)
    signal.pthread_kill(thread, signal.SIGINT)


def _is_users(frame: FrameType | None) -> bool:
    """Return True if no frame between `frame` and the call of user code belongs to trainkit.

    The stack of a greenlet ends where the greenlet was started, which is always within a call.
    """
    if frame is None or frame.f_code.co_filename.startswith(_RUNTIME):
        return False
    while frame is not None and not frame.f_code.co_filename.startswith(_RUNTIME):
        frame = frame.f_back
    return frame is None or frame.f_code in _BOUNDARY


def _is_in_call(frame: FrameType) -> bool:
    """Return True if the call has begun.

    An exception that is raised before the call begins would not be caught.
    """
    while frame.f_back is not None and frame.f_code not in _BOUNDARY:
        frame = frame.f_back
    # The stack of a greenlet starts with the greenlet's own function, so the search may end without a result.
    return frame.f_code in _BOUNDARY or frame.f_code.co_name != "<module>"


class SerialExecutor:
    """Executor that runs one call at a time in the main thread, which suits signal handlers and CUDA code."""

    unfinished = 0

    def __init__(self, calls: Calls, results: Results, node: Connection, can_raise: bool) -> None:
        self._calls = calls
        self._results = results
        self._interruption = Interruption(calls, node, can_raise)

    def begin(self, conn: CallerConnection, frame: ArrivedCall) -> None:
        calls, started = self._calls, self._results.started
        if started:
            started.clear()
        calls.running = frame.call_id
        if self._interruption.missed:  # checked after setting `running`, so that no signal is overlooked
            self._interruption.look()
        if frame.body is None:
            calls.run_small(conn, frame)
        else:
            calls.run(conn, frame)
        calls.running = 0
        if calls.cancelled:
            self._clear(frame.call_id)

    def _clear(self, call_id: int) -> None:
        """Drop the cancellation of an ended call. If the call was interrupted, cancel its child calls."""
        recursive = self._calls.forget_cancelled(call_id)
        if recursive and self._calls.interrupted == call_id:
            self._results.cancel_started()

    def cancelled(self, call_id: int, recursive: bool) -> None:
        self._calls.cancel(call_id, recursive)
        self._interruption.cancelled(call_id)
