"""Debugger of a worker. `breakpoint()` uses the program's terminal, for one worker at a time."""

from __future__ import annotations

import fcntl
import functools
import io
import os
import sys
import threading
from types import FrameType
from typing import Any, TextIO

_REMEDY = (
    "Run the program in a terminal, or run this code in the program itself: trainkit.init(engine='inline'), "
    "or TorchTrainer(use_local=True) for worker 0 of a trainer"
)


def break_at(frame: FrameType, path: str) -> None:
    """Start `pdb` at `frame` on a terminal, after waiting until no other worker uses the terminal.

    Args:
        frame: frame at which the code stops.
        path: path of the terminal's device; "" if the program has no terminal.

    Raises:
        RuntimeError: the terminal is missing.
    """
    debugger = _debugger(path, threading.get_ident())
    sys.settrace(None)  # if a debugger is active already, it would stop in its own code
    debugger.set_trace(frame)


# The debugger is cached, as a thread that already uses the terminal may reach a second breakpoint().
@functools.cache
def _debugger(path: str, thread: int) -> Any:
    """Return the debugger of a thread, which locks the terminal from each stop until the code resumes."""
    import pdb  # imported only here, as the import takes milliseconds

    class TerminalPdb(pdb.Pdb):
        def message(self, msg: str, *args: Any, **more: Any) -> None:
            # pdb also prints before its prompt, for example at a return or a cleared breakpoint.
            self._borrow()
            super().message(msg, *args, **more)

        def error(self, msg: str) -> None:
            self._borrow()
            super().error(msg)

        def interaction(self, *args: Any) -> None:
            self._borrow()
            self.prompt = f"(Pdb {os.getpid()}) "
            super().interaction(*args)

        def _borrow(self) -> None:
            if self.stdin.closed:
                self.stdin = self.stdout = _terminal(path)

        def trace_dispatch(self, *args: Any) -> Any:
            try:
                return super().trace_dispatch(*args)
            finally:
                # If the user has set no further stop, the code resumes, so the terminal is released.
                if self.stopframe is self.botframe and not self.stdin.closed:
                    self.stdin.close()

    terminal = _terminal(path)
    return TerminalPdb(stdin=terminal, stdout=terminal, nosigint=True)


def _terminal(path: str) -> TextIO:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(
            f"breakpoint() in a worker needs the program's terminal, which is missing. {_REMEDY}"
        ) from error
    fcntl.flock(fd, fcntl.LOCK_EX)  # the lock is released when the terminal is closed
    both_ways = io.BufferedRWPair(io.FileIO(fd, "r"), io.FileIO(os.dup(fd), "w"))
    terminal = io.TextIOWrapper(both_ways, line_buffering=True)  # type: ignore[type-var]
    terminal.write(f"\nbreakpoint() in process {os.getpid()}: `continue` resumes the code\n")
    return terminal
