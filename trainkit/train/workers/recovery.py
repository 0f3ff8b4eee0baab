"""Rules for lost workers, as pure functions, with their messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trainkit.resources import Bundle

RETRIES = 3
"""Times that a call is run again by default, as RaySGD's `max_retries`."""

REFORM_WAIT_S = 30.0
"""Seconds to wait for room for the full number of workers before fewer are taken."""


class Effect(Enum):
    """Effect of a call on the state in a snapshot, which decides what becomes of the snapshot."""

    NOTHING = "nothing"
    """The call reads: the snapshot stays good."""
    SMALL = "small"
    """The call may change generators, schedulers, rates and the operator's state: these are read again."""
    REPEATABLE = "repeatable"
    """Repeated on the restored state, the call has an equal effect: it is noted, to be repeated."""
    UNKNOWN = "unknown"
    """The call may change anything: the snapshot is out of date."""


@dataclass(frozen=True)
class Call:
    """A call of a method of the workers.

    Attributes:
        method: of `Worker`.
        args: equal for all workers.
        effect: on the state.
        first: on worker 0 alone.
        in_step: the workers meet in it.
        alike: it changes state that must be equal on all workers.
        name: of the trainer's method that makes the call, for messages.
    """

    method: str
    args: tuple[object, ...] = ()
    effect: Effect = Effect.NOTHING
    first: bool = False
    in_step: bool = False
    alike: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.method)


def may_retry(failures: int, max_retries: int, *, has_snapshot: bool) -> bool:
    """Return True if a call that has failed `failures` times, as it lost workers, is run again.

    Args:
        failures: 1 or more.
        max_retries: times that the call may be run again.
        has_snapshot: the workers' state before the call can be restored.
    """
    return has_snapshot and failures <= max_retries


def give_up_text(method: str, failures: Sequence[str]) -> str:
    """Return the message for a call that failed each time it was run."""
    retries = len(failures) - 1
    times = "once" if retries == 1 else f"{retries} times"
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(failures, start=1))
    return f"{method}() lost workers although it was run again {times} (max_retries={retries}):\n{listed}"


_NEW = "make a new TorchTrainer, and load() a checkpoint into it"


NO_SNAPSHOT = "and no snapshot held their state: train() keeps one unless max_retries=0"
"""Why a trainer cannot go on after an interruption."""


def go_on_text(why: str, method: str) -> str:
    """Return the log's line for workers that are formed again, as Ctrl-C has ended those before."""
    return f"{why}; the workers are formed again for {method}(), with the state from before the interruption"


def no_snapshot_text(lost: str) -> str:
    """Return the message for workers that were lost together with their training."""
    return f"{lost}; no snapshot holds the workers' state: {_NEW}"


def lost_session_text(
    lost: str, method: str, *, ended_by: str = "", in_a_row: int = 0, has_snapshot: bool = True
) -> str:
    """Return the message for workers that went with their session and don't go on in another.

    Args:
        lost: text about the loss of the session.
        method: that ran.
        ended_by: the user who ended the session by `trainkit stop`; "" if nobody did.
        in_a_row: times that `method` has lost its session, where that is too often; 4 or more.
        has_snapshot: the workers' state before the call can be restored.
    """
    if ended_by:
        return f"the session was ended with `trainkit stop` by {ended_by} in {method}(): {_NEW}"
    if not has_snapshot:
        return no_snapshot_text(f"{lost} in {method}()")
    return f"{lost} in {method}(), for the {in_a_row}th time in a row: {_NEW}"


def not_again_text(lost: str, method: str) -> str:
    """Return the message for a call that lost its session and is not run again by itself."""
    return (
        f"{lost} in {method}(), which is not run again by itself; the workers are formed again, with the "
        "state from before it: call it again if it may be done twice"
    )


def reform_text(why: str, method: str) -> str:
    """Return the log's line for lost workers that are replaced."""
    return f"{why}; the workers are formed again, and {method}() starts over"


def size_text(before: int, now: int, full: int) -> str:
    """Return the log's line for a worker group of another size than before."""
    change = "more" if now > before else "fewer"
    return f"{now} of num_workers={full} workers train now, {change} than the {before} before"


def no_room_text(fewest: int, timeout_s: float) -> str:
    """Return the message for a trainer whose smallest worker group found no room."""
    workers = "1 worker" if fewest == 1 else f"{fewest} workers"
    return (
        f"there was no room for {workers} within timeout_s={timeout_s:g}: trainkit.list_placement_groups() "
        f"tells who holds it; min_workers allows fewer"
    )


def infeasible_text(workers: int, cpus: float, gpus: int, existing: Bundle) -> str:
    """Return a note about those arguments of a trainer that ask for too much.

    Args:
        workers: the fewest that it needs.
        cpus: `num_cpus_per_worker`.
        gpus: of each worker.
        existing: all resources of the session.
    """
    asked = f"TorchTrainer asked for {'1 worker' if workers == 1 else f'{workers} workers'}"
    if workers * gpus > (there := existing.get("GPU", 0)):
        each = f", each with {gpus} GPU" if workers > 1 else f" with {gpus} GPU"
        fewer = f"; {there:g} GPU would do for fewer workers (num_workers)" if there else ""
        return f"{asked}{each}: pass use_gpu=False to train on the CPU{fewer}"
    return (
        f"{asked} with num_cpus_per_worker={cpus:g}; workers that shall share CPUs take a fraction, such as "
        f"num_cpus_per_worker=0.25"
    )
