"""What follows when a process ends: pure rules, and the words for it."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Exit:
    """How a worker process ended.

    Attributes:
        pid: of the process; None if it never started.
        code: as `os.waitstatus_to_exitcode`; negative for a signal; None if unknown.
        requested: trainkit ended it itself, by `kill`, by the end of its owner, or at shutdown.
        reason: why it was ended or could not start; "" if it ended by itself.
        stderr_tail: its last lines.
        out_of_memory: the kernel killed a process for memory while this one was alive.
        log_files: where all that it printed is; "" if it printed nothing.
    """

    pid: int | None = None
    code: int | None = None
    requested: bool = False
    reason: str = ""
    stderr_tail: str = ""
    out_of_memory: bool = False
    log_files: str = ""


def should_retry(exit_: Exit, retries_left: int) -> bool:
    """Whether a task whose worker ended so is run again."""
    return retries_left > 0 and not exit_.requested


def describe(exit_: Exit, name: str) -> str:
    """The message of the error that callers of `name` get."""
    who = f"{name} (pid {exit_.pid})" if exit_.pid is not None else name
    if exit_.requested:
        text = f"{who} was ended: {exit_.reason}"
    elif exit_.pid is None:
        text = f"{who} could not be started: {exit_.reason or 'its process is gone'}"
    elif exit_.code is None:
        text = f"{who} is gone: {exit_.reason or 'its connection closed'}"
    elif exit_.code < 0:
        text = f"{who} was killed by {_signal_name(-exit_.code)}"
    else:
        text = f"{who} ended by itself with exit code {exit_.code}"
    if exit_.out_of_memory and exit_.code == -signal.SIGKILL and not exit_.requested:
        text += "; the kernel ran out of memory then, so it was probably the OOM killer: use less memory"
    elif exit_.code == -signal.SIGSEGV:
        text += ": native code crashed"
    if exit_.stderr_tail:
        text += "\nIts last lines of stderr:\n" + "\n".join(
            f"  {line}" for line in exit_.stderr_tail.splitlines()
        )
    if exit_.log_files:
        text += f"\nAll its output: {exit_.log_files}"
    return text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
