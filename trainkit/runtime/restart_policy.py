"""Pure rules for the end of a process: retries, restarts, and their descriptions."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

MOST_LOSSES = 3
"""Deaths of the node in a row, without progress in between, that are survived; one more ends the work."""

_FIRST_DELAY_S = 0.01
_LONGEST_DELAY_S = 0.2


def lost_text(how: str) -> str:
    """Say that a session was lost; `how` tells how its node ended, if that is known."""
    return f"the runtime's node died ({how})" if how else "the runtime's node died"


@dataclass(frozen=True)
class ExitRecord:
    """How a worker process ended.

    Attributes:
        pid: of the process; None if it never started.
        code: as `os.waitstatus_to_exitcode`; negative for a signal; None if unknown.
        requested: trainkit ended it itself, by `kill`, by the end of its owner, or at shutdown.
        reason: why it was ended or could not start; "" if it ended by itself.
        stderr_tail: its last lines.
        out_of_memory: the kernel killed a process for memory while this one was alive.
        may_restart: though requested, an actor that can be made anew is.
        log_files: where all that it printed is; "" if it printed nothing.
    """

    pid: int | None = None
    code: int | None = None
    requested: bool = False
    reason: str = ""
    stderr_tail: str = ""
    out_of_memory: bool = False
    may_restart: bool = False
    log_files: str = ""


@dataclass(frozen=True)
class Unanswered:
    """A call to an actor whose process has ended before it was answered.

    Attributes:
        call_id: its number.
        sent: it may have begun; one that was made since then can't have.
        retries_left: how often it is still sent again; -1 without end.
    """

    call_id: int
    sent: bool
    retries_left: int


def should_retry(exit_: ExitRecord, retries_left: int) -> bool:
    """Return True if a task is run again after such an end of its worker; -1 retries are without end."""
    return retries_left != 0 and not exit_.requested


def restarts_left(max_restarts: int, restarts: int) -> int:
    """How often an actor can still be made anew; -1 without end."""
    return -1 if max_restarts < 0 else max(0, max_restarts - restarts)


def should_restart(exit_: ExitRecord, restarts_left: int) -> bool:
    """Return whether an actor whose process ended so is made anew, whatever its exit code."""
    if exit_.requested and not exit_.may_restart:
        return False
    return restarts_left != 0


def restart_delay_s(early_deaths: int) -> float:
    """How long to wait before a process is started again that has died soon after its start.

    Args:
        early_deaths: how often in a row; one whose constructor kills it must not keep a CPU busy.
    """
    return (
        0.0 if early_deaths < 1 else min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(early_deaths - 1, 30))
    )


def after_restart(calls: Sequence[Unanswered]) -> tuple[list[Unanswered], list[int]]:
    """Sort the unanswered calls of an actor that was restarted, given in the order made.

    Returns:
        Those to send, in the same order and with what is left of their retries, and the numbers of
        those that fail.
    """
    again: list[Unanswered] = []
    failed: list[int] = []
    for call in calls:
        if not call.sent:
            again.append(call)
        elif call.retries_left == 0:
            failed.append(call.call_id)
        else:
            again.append(replace(call, sent=False, retries_left=_one_less(call.retries_left)))
    return again, failed


def _one_less(retries: int) -> int:
    return retries if retries < 0 else retries - 1


def describe(exit_: ExitRecord, name: str, consequence: str = "") -> str:
    """The message of the error that callers of `name` get; `consequence` says what follows from it."""
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
    text += consequence
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
