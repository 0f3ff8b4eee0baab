"""Rules for retries after workers were lost, as functions without side effects, and messages about lost
workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from trainkit.resources import Bundle

RETRIES = 3
"""Default number of retries of a call, as `max_retries` in RaySGD."""

REFORM_WAIT_S = 30.0
"""Seconds to wait for resources for the full number of workers before fewer workers are used."""


class Effect(Enum):
    """Effect of a call on the workers' state, which decides whether a snapshot stays valid."""

    NOTHING = "nothing"
    """The call only reads the state, so the snapshot stays valid."""
    SMALL = "small"
    """The call may change only generators, schedulers, rates and the operator's state, which are saved
    again.
    """
    REPEATABLE = "repeatable"
    """The call has the same effect on a restored state, so it is recorded, and repeated after a restore."""
    UNKNOWN = "unknown"
    """The call may change any state, so the snapshot becomes invalid."""


@dataclass(frozen=True)
class Call:
    """Call of a method on the workers.

    Attributes:
        method: name of a method of `Worker`.
        args: arguments, equal for all workers.
        effect: effect of the call on the workers' state.
        first: True if only worker 0 is called.
        in_step: True if the workers communicate in the call.
        alike: True if the call changes state that must be equal on all workers.
        pausable: True if the workers can pause in the call.
        name: name of the trainer's method that makes the call, for messages.
    """

    method: str
    args: tuple[object, ...] = ()
    effect: Effect = Effect.NOTHING
    first: bool = False
    in_step: bool = False
    alike: bool = False
    pausable: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.method)


@dataclass
class Snapshot:
    """The workers' state between two calls.

    Attributes:
        states: state of each worker, by rank; None means the state after setup.
        stored: references to these states in the object store, by rank; [] if the states are not in the
            object store.
        small: later values of the part of the state that validation and prediction may change, by rank; None
            if neither has run.
        repeated: calls that were made after the snapshot, and that are repeated after the state is restored.
    """

    states: list[Any] | None = None
    stored: list[Any] = field(default_factory=list)
    small: list[Any] | None = None
    repeated: list[Call] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if `states` is the workers' current state, without later changes."""
        return self.states is not None and self.small is None and not self.repeated

    def progress(self) -> tuple[int, int] | None:
        """Return the numbers of finished epochs and of training steps; None if no state is held."""
        shared = None if self.states is None else self.states[0].shared
        return None if shared is None else (shared["epoch"], shared["global_step"])


def may_retry(failures: int, max_retries: int, *, has_snapshot: bool) -> bool:
    """Return True if a call is repeated after it lost workers `failures` times.

    Args:
        failures: number of failures, 1 or more.
        max_retries: how often the call may be repeated.
        has_snapshot: True if the workers' state before the call can be restored.
    """
    return has_snapshot and failures <= max_retries


def give_up_text(method: str, failures: Sequence[str]) -> str:
    """Return the error message for a call that failed at every attempt."""
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(failures, start=1))
    count = len(failures)
    return f"{method}() lost workers in all {count} attempts (max_retries={count - 1}):\n{listed}"


_NEW = "make a new TorchTrainer, and load() a checkpoint into it"


NO_SNAPSHOT = "and no snapshot has their state: train() takes snapshots unless max_retries=0"
"""Part of a message: the reason why a trainer can't continue after an interruption."""


def no_snapshot_text(lost: str) -> str:
    """Return the error message for workers that were lost together with their training progress."""
    return f"{lost}; no snapshot of the workers' state exists: {_NEW}"


def lost_session_text(
    lost: str, method: str, *, ended_by: str = "", in_a_row: int = 0, has_snapshot: bool = True
) -> str:
    """Return the error message for workers that were lost with their session and are not replaced.

    Args:
        lost: text that says how the session was lost.
        method: name of the running method.
        ended_by: the user who ended the session with `trainkit stop`; "" if no user did.
        in_a_row: how many times in a row `method` has lost its session, if the workers are not replaced for
            this reason; the number is then 4 or more.
        has_snapshot: True if the workers' state before the call can be restored.
    """
    if ended_by:
        return f"the session was ended with `trainkit stop` by {ended_by} in {method}(): {_NEW}"
    if not has_snapshot:
        return no_snapshot_text(f"{lost} in {method}()")
    return f"{lost} in {method}(), for the {in_a_row}th time in a row: {_NEW}"


def not_again_text(lost: str, method: str) -> str:
    """Return the error message for a call that lost its session and is not repeated automatically."""
    return (
        f"{lost} in {method}(), which is not retried automatically. All workers restart with the state from "
        f"before {method}(): call {method}() again if repeating it is safe"
    )


def reform_text(why: str, method: str) -> str:
    """Return the log line for lost workers that are replaced."""
    resumes = "continues after the last snapshot" if method == "train" else "runs again from its start"
    return f"{why}; restarting all workers; {method}() {resumes}"


def size_text(before: int, now: int, full: int) -> str:
    """Return the log line for a worker group whose size has changed."""
    change = "more" if now > before else "fewer"
    return f"{now} of num_workers={full} workers train now, {change} than before ({before})"


def waiting_save_text(path: Path, why: str) -> str:
    """Return the log line for a call `save(path, wait=False)` for which no memory is left to copy the
    state.
    """
    return (
        f"save({str(path)!r}, wait=False) waits until the checkpoint is written, because a copy of the state "
        f"does not fit into the object store: raise object_store_memory in trainkit.init() ({why})"
    )


def no_room_text(fewest: int, timeout_s: float) -> str:
    """Return the error message for a trainer that does not get the resources for its smallest worker
    group.
    """
    workers = "1 worker" if fewest == 1 else f"{fewest} workers"
    return (
        f"the resources for {workers} were not free within timeout_s={timeout_s:g}: "
        "trainkit.list_placement_groups() shows who holds them; min_workers allows fewer workers"
    )


def infeasible_text(workers: int, cpus: float, gpus: int, existing: Bundle) -> str:
    """Return advice about arguments of a trainer that request more resources than exist.

    Args:
        workers: smallest number of workers.
        cpus: `num_cpus_per_worker`.
        gpus: number of GPUs of each worker.
        existing: all resources of the session.
    """
    asked = f"TorchTrainer asked for {'1 worker' if workers == 1 else f'{workers} workers'}"
    if workers * gpus > (there := existing.get("GPU", 0)):
        each = f", each with {gpus} GPU" if workers > 1 else f" with {gpus} GPU"
        fewer = f", or reduce num_workers: the session has {there:g} GPU" if there else ""
        return f"{asked}{each}: pass use_gpu=False to train on the CPU{fewer}"
    return f"{asked} with num_cpus_per_worker={cpus:g}: to share CPUs, pass a fraction such as 0.25"
