"""Detection of errors that only show that a different worker failed first.

A worker that waits in a collective for a missing worker fails too: gloo raises an error, and NCCL's watchdog
aborts the whole process. Neither gloo nor NCCL can say which worker is missing. Only the process that called
the workers can find the missing worker.
"""

from __future__ import annotations

import re
import signal
import sys

from trainkit.errors import ActorDiedError, TaskError

_LOST_PEER = re.compile(
    r"\[[^\]]*\bgloo/[^\]]*\.(?:cc|h):\d+\]"  # All network errors of gloo begin with a source file and line.
    r"|timed out waiting \d+ ?ms for (?:recv|send) operation"
    r"|application timeout caused pair closure"
    r"|\bgloo connectfullmesh failed"
    r"|\bnccl (?:error|communicator)\b",
    re.IGNORECASE,
)
"""Phrases that identify gloo's errors, because their class, RuntimeError, is also raised by user code."""

_LOST_LOADER = re.compile(r"DataLoader worker \(pid.*\) (?:is killed by signal|exited unexpectedly)")
"""Message of the error after a DataLoader's process died; torch has no class for this error
(torch/utils/data/dataloader.py and torch/csrc/DataLoader.cpp)."""

_WATCHDOG = re.compile(
    r"watchdog caught collective operation timeout"
    r"|watchdog thread terminated with exception"
    r"|some nccl operations have failed or timed out"
    r"|taking the entire process down"
    r"|heartbeat monitor timed out",
    re.IGNORECASE,
)
"""Messages that torch's ProcessGroupNCCL prints before it ends the process (torch/csrc/distributed/c10d)."""


class LostOthersError(RuntimeError):
    """Failure of a worker that waited for other workers; the exception's cause is the error of gloo or NCCL.

    Args:
        step: training step in which the worker waited, counted from 1; 0 before the first step, None if no
            steps ran.
    """

    def __init__(self, step: int | None, text: str) -> None:
        super().__init__(step, text)
        self.step = step
        self.text = text

    def __str__(self) -> str:
        return self.text


def original(error: BaseException) -> BaseException:
    """Return the exception that user code raised, without the wrapper for errors of remote calls."""
    return (error.cause or error) if isinstance(error, TaskError) else error


def lost_peer(error: BaseException) -> bool:
    """Return True if `error` only means that a different worker is missing or late."""
    torch = sys.modules.get("torch.distributed")  # Only torch.distributed raises DistError.
    if isinstance(error, LostOthersError) or (torch is not None and isinstance(error, torch.DistError)):
        return True
    return isinstance(error, RuntimeError) and _LOST_PEER.search(str(error)) is not None


def lost_loader(error: BaseException) -> bool:
    """Return True if a process of a `DataLoader` has died, for example for lack of memory."""
    cause = original(error)
    return isinstance(cause, RuntimeError) and _LOST_LOADER.match(str(cause)) is not None


def file_error(error: RuntimeError) -> Exception:
    """Return an error with the reason why torch could not write a file, because torch's own error does not
    name the reason.
    """
    cause = error.__context__
    return OSError(cause.errno, cause.strerror) if isinstance(cause, OSError) else error


def advice(error: BaseException) -> str | None:
    """Return text that says how users of trainkit follow the advice in an error of torch; None for other
    errors.
    """
    if isinstance(error, RuntimeError) and "find_unused_parameters=True" in str(error):
        return 'In trainkit, pass register(..., ddp_args={"find_unused_parameters": True})'
    return None


def ended_by_watchdog(exit_code: int | None, stderr_tail: str) -> bool:
    """Return True if NCCL's watchdog ended the process because a worker was missing.

    Args:
        exit_code: result of `os.waitstatus_to_exitcode`.
        stderr_tail: last lines of the process's stderr.
    """
    return exit_code == -signal.SIGABRT and _WATCHDOG.search(stderr_tail) is not None


def is_exit(error: BaseException) -> bool:
    """Return True if `error` only means that a worker's process has ended with exit code 0."""
    return isinstance(error, ActorDiedError) and not isinstance(error, TaskError) and error.exit_code == 0


def is_symptom(error: BaseException) -> bool:
    """Return True if `error`, which a call to a worker raised, results from the failure of a different
    worker.
    """
    if isinstance(error, ActorDiedError) and not isinstance(error, TaskError):
        return ended_by_watchdog(error.exit_code, error.stderr_tail)
    return lost_peer(original(error))


def waiting_step(error: BaseException) -> int | None:
    """Return the step in which the worker with this `error` waited for others; None if unknown."""
    cause = original(error)
    return cause.step if isinstance(cause, LostOthersError) else None
