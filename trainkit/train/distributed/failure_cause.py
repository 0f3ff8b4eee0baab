"""Errors which only tell that another worker is gone or late, and so has failed first.

A worker that waits in a collective for one that never comes fails, too: gloo raises, and NCCL's watchdog
aborts the whole process. Neither knows which worker is missing; the process that called them does.
"""

from __future__ import annotations

import re
import signal
import sys

from trainkit.errors import ActorDiedError, TaskError

_LOST_PEER = re.compile(
    r"\[[^\]]*\bgloo/[^\]]*\.(?:cc|h):\d+\]"  # the place in gloo's source, as all its network errors begin
    r"|timed out waiting \d+ ?ms for (?:recv|send) operation"
    r"|application timeout caused pair closure"
    r"|\bgloo connectfullmesh failed"
    r"|\bnccl (?:error|communicator)\b",
    re.IGNORECASE,
)
"""Gloo raises bare RuntimeErrors, as user code does; their phrases are all there is to tell them by."""

_LOST_LOADER = re.compile(r"DataLoader worker \(pid.*\) (?:is killed by signal|exited unexpectedly)")
"""Torch has no class for it (torch/utils/data/dataloader.py, torch/csrc/DataLoader.cpp)."""

_WATCHDOG = re.compile(
    r"watchdog caught collective operation timeout"
    r"|watchdog thread terminated with exception"
    r"|some nccl operations have failed or timed out"
    r"|taking the entire process down"
    r"|heartbeat monitor timed out",
    re.IGNORECASE,
)
"""Text of torch's ProcessGroupNCCL before it ends the process (torch/csrc/distributed/c10d)."""


class LostOthersError(RuntimeError):
    """A worker waited for the others in vain; its cause is what the backend raised.

    Args:
        step: the step in which it waited, from 1; 0 before the first, None where there are no steps.
    """

    def __init__(self, step: int | None, text: str) -> None:
        super().__init__(step, text)
        self.step = step
        self.text = text

    def __str__(self) -> str:
        return self.text


def lost_peer(error: BaseException) -> bool:
    """Return True if `error` only shows that another worker is gone or late, so that the cause lies there."""
    torch = sys.modules.get("torch.distributed")  # a process that has not loaded it meets no error of it
    if isinstance(error, LostOthersError) or (torch is not None and isinstance(error, torch.DistError)):
        return True
    return isinstance(error, RuntimeError) and _LOST_PEER.search(str(error)) is not None


def lost_loader(error: BaseException) -> bool:
    """Return True if `error` tells that a process of a `DataLoader` has died, such as by a lack of memory."""
    cause = (error.cause or error) if isinstance(error, TaskError) else error
    return isinstance(cause, RuntimeError) and _LOST_LOADER.match(str(cause)) is not None


def file_error(error: RuntimeError) -> Exception:
    """Return why torch could not write to a file: it only tells where in the file it was."""
    cause = error.__context__
    return OSError(cause.errno, cause.strerror) if isinstance(cause, OSError) else error


def advice(error: BaseException) -> str | None:
    """Return how to follow the advice of torch's error in a trainer; None of other errors."""
    if isinstance(error, RuntimeError) and "find_unused_parameters=True" in str(error):
        return 'here: register(..., ddp_args={"find_unused_parameters": True})'
    return None


def ended_by_watchdog(exit_code: int | None, stderr_tail: str) -> bool:
    """Return True if NCCL's watchdog ended the process, because another worker did not come.

    Args:
        exit_code: as `os.waitstatus_to_exitcode` gives it.
        stderr_tail: its last lines.
    """
    return exit_code == -signal.SIGABRT and _WATCHDOG.search(stderr_tail) is not None


def is_exit(error: BaseException) -> bool:
    """Return True if `error` only tells that a worker's process has ended in order."""
    return isinstance(error, ActorDiedError) and not isinstance(error, TaskError) and error.exit_code == 0


def is_symptom(error: BaseException) -> bool:
    """Return True if `error`, a worker's answer to a call, comes from another worker's failure."""
    if isinstance(error, ActorDiedError) and not isinstance(error, TaskError):
        return ended_by_watchdog(error.exit_code, error.stderr_tail)
    return lost_peer((error.cause or error) if isinstance(error, TaskError) else error)


def waiting_step(error: BaseException) -> int | None:
    """Return the step in which the worker that raised `error` waited for the others; None if not known."""
    cause = error.cause if isinstance(error, TaskError) else error
    return cause.step if isinstance(cause, LostOthersError) else None
