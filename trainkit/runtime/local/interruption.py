"""Stopping a task that runs: KeyboardInterrupt in its main thread, wherever its own code is just then.

    owner ──Cancel──▶ node ──Cancel──▶ control connection
                        └───SIGINT──▶ handler: reads it, and raises if that call is running

An exception between two steps of trainkit's own code could lose a frame or leave a lock behind. So the
handler raises only where the innermost code is the user's, and comes again shortly where it isn't; a wait
in `get` holds the signal back by itself. Code that puts a SIGINT handler of its own in place is let be:
then a cancelled task runs to its end.
"""

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
from trainkit.runtime.local.calls import Calls, Cancelled
from trainkit.runtime.local.channel import Connection

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
