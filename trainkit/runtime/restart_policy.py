"""Pure functions that decide about retries and restarts after a process has ended, and make the messages."""

from __future__ import annotations

import signal
from dataclasses import dataclass

RetriedKinds = bool | tuple[type[BaseException], ...]

MOST_LOSSES = 3
"""Number of consecutive node deaths without progress that are tolerated.

After a further death, the work fails.
"""

_FIRST_DELAY_S = 0.01
_LONGEST_DELAY_S = 0.2


def lost_text(how: str) -> str:
    """Return the message for a lost session. `how` says how the session's node ended; "" if unknown."""
    return f"the runtime's node died ({how})" if how else "the runtime's node died"


@dataclass(frozen=True)
class ExitRecord:
    """End of a worker process.

    Attributes:
        pid: id of the process; None if it never started.
        code: exit code as from `os.waitstatus_to_exitcode`, negative for a signal; None if unknown.
        requested: True if trainkit ended the process, by `kill`, after the end of its owner, or at shutdown.
        reason: reason why the process was ended or could not start; "" if it ended by itself.
        stderr_tail: last lines of the process's standard error.
        out_of_memory: True if the kernel killed any process for lack of memory during this process's life.
        may_restart: True if the actor may be restarted although its end was requested.
        log_files: paths of the files with the process's output; "" without output.
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
    """Return True if a task is retried after this end of its worker; `retries_left=-1` means no limit."""
    return retries_left != 0 and not exit_.requested


def retries_on(error: BaseException | None, kinds: RetriedKinds) -> bool:
    """Return True if a call that raised `error` should be retried, provided that retries are left.

    Args:
        error: the exception; None if nothing was raised.
        kinds: classes of exceptions to retry. True means any Exception; False means no retries.
    """
    if isinstance(kinds, bool):
        return kinds and isinstance(error, Exception)
    return isinstance(error, kinds)


def restarts_left(max_restarts: int, restarts: int) -> int:
    """Return the remaining number of restarts of an actor; -1 means no limit."""
    return -1 if max_restarts < 0 else max(0, max_restarts - restarts)


def should_restart(exit_: ExitRecord, restarts_left: int) -> bool:
    """Return True if an actor is restarted after this end of its process, whatever the exit code."""
    return restarts_left != 0 and (exit_.may_restart or not exit_.requested)


def restart_delay_s(early_deaths: int) -> float:
    """Return the seconds to wait before a restart of a process that died soon after its start.

    Args:
        early_deaths: number of consecutive deaths soon after a start. The delay keeps a failing
            constructor from using a whole CPU.
    """
    return (
        0.0 if early_deaths < 1 else min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(early_deaths - 1, 30))
    )


def retries_after_restart(sent: bool, retries_left: int) -> int | None:
    """Return the remaining retries of an unanswered call after its actor's restart; None if the call fails.

    Args:
        sent: True if the call may have begun. A call made after the end of the actor's process can't have
            begun.
        retries_left: remaining retries so far; -1 means no limit.
    """
    if not sent:
        return retries_left
    return None if retries_left == 0 else retries_left - (retries_left > 0)


def describe(exit_: ExitRecord, name: str, consequence: str = "") -> str:
    """Return the error message for callers of the actor or task `name`, whose process has ended.

    `consequence` is text about the next steps.
    """
    who = f"{name} (pid {exit_.pid})" if exit_.pid is not None else name
    if exit_.requested:
        text = f"{who} was ended: {exit_.reason}"
    elif exit_.pid is None:
        text = f"{who} could not be started: {exit_.reason or 'its process has ended'}"
    elif exit_.code is None:
        text = f"{who} was lost: {exit_.reason or 'its connection closed'}"
    elif exit_.code < 0:
        text = f"{who} was killed by {signal_name(-exit_.code)}"
    else:
        text = f"{who} ended by itself with exit code {exit_.code}"
    if exit_.out_of_memory and exit_.code == -signal.SIGKILL and not exit_.requested:
        text += "; it was probably the OOM killer, as the kernel ran out of memory: use less memory"
    elif exit_.code == -signal.SIGSEGV:
        text += ": native code crashed"
    text += consequence
    if exit_.stderr_tail:
        text += "\nIts last lines of stderr:\n" + "\n".join(
            f"  {line}" for line in exit_.stderr_tail.splitlines()
        )
    if exit_.log_files:
        text += f"\nIts full output: {exit_.log_files}"
    return text


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has no name, like most realtime signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
