"""Rules for lost workers, as pure functions, with their messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trainkit.resources import Bundle

RETRIES = 3
"""How often a call is run again by default, as RaySGD's `max_retries`."""

REFORM_WAIT_S = 30.0
"""How long room for the full number of workers is waited for before fewer are taken."""


class Effect(Enum):
    """Effect of a call on the state that a snapshot holds, which decides the fate of the snapshot."""

    NOTHING = "nothing"
    """It reads: the snapshot stays good."""
    SMALL = "small"
    """Generators, schedulers, rates and the operator's own state: these are read again."""
    REPEATABLE = "repeatable"
    """The same call on the restored state does the same again: it is noted, to be repeated."""
    UNKNOWN = "unknown"
    """Anything: the snapshot is out of date."""


@dataclass(frozen=True)
class Call:
    """A call on a gang's workers.

    Attributes:
        method: of `Worker`.
        args: the same for all.
        effect: what it changes.
        first: on worker 0 alone.
        in_step: the workers meet in it.
        alike: it changes what must be the same on all workers.
        name: of the trainer's method that makes the call, in messages.
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
    """Return True if a call that lost workers `failures` times is run again.

    Args:
        failures: 1 or more.
        max_retries: how often the call may be run again.
        has_snapshot: the workers' state before the call can be had again.
    """
    return has_snapshot and failures <= max_retries


def give_up_text(method: str, failures: Sequence[str]) -> str:
    """Return the message for a call that failed each time it was run."""
    retries = len(failures) - 1
    times = "once" if retries == 1 else f"{retries} times"
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(failures, start=1))
    return f"{method}() lost workers although it was run again {times} (max_retries={retries}):\n{listed}"


_NEW = "make a new TorchTrainer, and load() a checkpoint into it"


def no_snapshot_text(lost: str) -> str:
    """Return the message for workers that were lost together with their training."""
    return f"{lost}; no snapshot holds the workers' state: {_NEW}"


def lost_session_text(
    lost: str, method: str, *, ended_by: str = "", in_a_row: int = 0, has_snapshot: bool = True
) -> str:
    """Return the message for workers that went with their session and don't go on in another.

    Args:
        lost: how the session was lost.
        method: that ran.
        ended_by: who ended the session by `trainkit stop`; "" if nobody did.
        in_a_row: how often `method` has lost its session, where that is too often; 4 or more.
        has_snapshot: the workers' state before the call can be had again.
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
    """The log's line when workers were lost and others take their place."""
    return f"{why}; the workers are formed again, and {method}() starts over"


def size_text(before: int, now: int, full: int) -> str:
    """The log's line when a gang has another number of workers than before."""
    change = "more" if now > before else "fewer"
    return f"{now} of num_workers={full} workers train now, {change} than the {before} before"


def no_room_text(fewest: int, timeout_s: float) -> str:
    """Return the message for lack of room even for the smallest number of workers."""
    workers = "1 worker" if fewest == 1 else f"{fewest} workers"
    return (
        f"there was no room for {workers} within timeout_s={timeout_s:g}: trainkit.list_placement_groups() "
        f"tells who holds it; min_workers allows fewer"
    )


def infeasible_text(workers: int, cpus: float, gpus: int, existing: Bundle) -> str:
    """Return which of a trainer's arguments ask for too much.

    Args:
        workers: that it would need at least.
        cpus: `num_cpus_per_worker`.
        gpus: that each worker takes.
        existing: what the session has in all.
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
