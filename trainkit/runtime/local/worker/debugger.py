"""Debugger of a worker: `breakpoint()` borrows the terminal of the program, one worker at a time."""

from __future__ import annotations

import fcntl
import io
import os
from types import FrameType

_REMEDY = (
    "Run the program in a terminal, or run this code in the program itself: trainkit.init(engine='inline'), "
    "or TorchTrainer(use_local=True) for worker 0 of a trainer"
)


def break_at(frame: FrameType, path: str) -> None:
    """Start `pdb` at `frame` on a terminal; wait while another worker has it.

    Args:
        frame: where the code stops.
        path: the terminal's device; "" if the program has none.

    Raises:
        RuntimeError: the terminal is missing.
    """
    import pdb  # takes milliseconds, which only a debugged worker pays

    class TerminalPdb(pdb.Pdb):
        def set_continue(self) -> None:
            super().set_continue()
            if not self.breaks:  # with a breakpoint of its own it stops again, at the same terminal
                terminal.close()

        def set_quit(self) -> None:
            super().set_quit()
            terminal.close()

    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(
            f"breakpoint() in a worker needs the program's terminal, which is missing. {_REMEDY}"
        ) from error
    fcntl.flock(fd, fcntl.LOCK_EX)  # released as the terminal is closed
    both_ways = io.BufferedRWPair(io.FileIO(fd, "r"), io.FileIO(os.dup(fd), "w"))
    terminal = io.TextIOWrapper(both_ways, line_buffering=True)  # type: ignore[type-var]
    terminal.write(f"\nbreakpoint() in process {os.getpid()}: `continue` resumes the code\n")
    debugger = TerminalPdb(stdin=terminal, stdout=terminal, nosigint=True)
    debugger.prompt = f"(Pdb {os.getpid()}) "
    debugger.set_trace(frame)
