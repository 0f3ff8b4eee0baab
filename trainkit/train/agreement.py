"""A step that all workers take or none: each tells the others whether it could, before anyone goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainkit.errors import CheckpointError, message_of
from trainkit.train.process_group import WorkerGroup
from trainkit.train.symptoms import lost_peer

Complaint = Callable[[str], str]
"""What went wrong, as a sentence with the reason in it."""


@contextmanager
def agreed(group: WorkerGroup, complaint: Complaint) -> Iterator[None]:
    """A block after which all workers of `group` go on, or all raise.

    Raises:
        CheckpointError: the block failed, here or on another worker; the message says where and why.
    """
    error: BaseException | None = None
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as raised:  # torch's CheckpointException is no Exception.
        if lost_peer(raised):
            raise
        error = raised
    reasons = group.gather_values(None if error is None else _reason(error))
    failed = [(rank, reason) for rank, reason in enumerate(reasons) if reason is not None]
    if isinstance(error, CheckpointError):
        raise error
    if failed:
        rank, reason = failed[0]
        where = f"worker {rank}: " if group.world_size > 1 else ""
        raise CheckpointError(complaint(f"{where}{reason}")) from error


def _reason(error: BaseException) -> str:
    """In one line; of several workers' errors that torch collects, the first."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        rank, failure = next(iter(failures.items()))
        error = failure[0] if isinstance(failure, tuple) else failure
        return f"{message_of(error)} (on worker {rank})"
    return message_of(error) or type(error).__name__
