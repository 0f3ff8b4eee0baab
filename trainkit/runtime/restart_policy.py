"""Pure rules for the end of a process: retries, restarts, and their descriptions."""

from __future__ import annotations

import signal
from dataclasses import dataclass

RetriedKinds = bool | tuple[type[BaseException], ...]

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


def should_retry(exit_: ExitRecord, retries_left: int) -> bool:
    """Return True if a task is run again after such an end of its worker; -1 retries are without end."""
    return retries_left != 0 and not exit_.requested


def retries_on(error: BaseException | None, kinds: RetriedKinds) -> bool:
    """Return True if a call that raised `error` is made again, as far as retries are left.

    Args:
        error: None if nothing was raised.
        kinds: the classes of exceptions; True for any Exception, False for none.
    """
    if isinstance(kinds, bool):
        return kinds and isinstance(error, Exception)
    return isinstance(error, kinds)


def restarts_left(max_restarts: int, restarts: int) -> int:
    """How often an actor can still be made anew; -1 without end."""
    return -1 if max_restarts < 0 else max(0, max_restarts - restarts)


def should_restart(exit_: ExitRecord, restarts_left: int) -> bool:
    """Return whether an actor whose process ended so is made anew, whatever its exit code."""
    return restarts_left != 0 and (exit_.may_restart or not exit_.requested)


def restart_delay_s(early_deaths: int) -> float:
    """How long to wait before a process is started again that has died soon after its start.

    Args:
        early_deaths: how often in a row; one whose constructor kills it must not keep a CPU busy.
    """
    return (
        0.0 if early_deaths < 1 else min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(early_deaths - 1, 30))
    )


def retries_after_restart(sent: bool, retries_left: int) -> int | None:
    """Return how often an unanswered call of a restarted actor is still made again; None if it fails.

    Args:
        sent: it may have begun; one that was made since the actor's process ended can't have.
        retries_left: before; -1 without end.
    """
    if not sent:
        return retries_left
    return None if retries_left == 0 else retries_left - (retries_left > 0)


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
        text = f"{who} was killed by {signal_name(-exit_.code)}"
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


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none, as most realtime signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
