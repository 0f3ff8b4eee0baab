"""Rule of a pool: which jobs to submit, drain and cancel. Pure functions of plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from trainkit.resources import QUANTUM, Bundle


class Stage(Enum):
    """Stage in the life of a job, from its submission until the batch system no longer has it."""

    COMING = "waits in the queue, or starts"
    JOINED = "its node takes calls"
    DRAINING = "its node takes no further calls"
    ENDING = "its node has ended, or the job was cancelled"


@dataclass(frozen=True)
class Job:
    """Job of the pool.

    Attributes:
        id: id in the batch system.
        stage: stage of the job.
        runs: True if the job has left the queue.
        age_s: seconds since the submission.
        left_s: seconds until the time limit.
        free: free resources of the job's node, if it has joined.
        idle_s: seconds for which the job's node has been idle.
    """

    id: str
    stage: Stage
    runs: bool = False
    age_s: float = 0.0
    left_s: float = math.inf
    free: Bundle = field(default_factory=dict)
    idle_s: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """Resources that are waited for together.

    Attributes:
        bundles: amounts; each bundle needs one node.
        apart: True if each bundle needs a node of its own.
    """

    bundles: Sequence[Bundle]
    apart: bool = False


@dataclass(frozen=True)
class Limits:
    """Limits of a pool.

    Attributes:
        max_jobs: maximum number of jobs at any time, those in the queue included.
        each: resources of each job.
        idle_s: seconds after which an idle job ends.
        notice_s: seconds before a job's time limit at which its node takes no further calls.
        time_s: time limit of a job; infinity: unknown.
        total_s: maximum seconds of all jobs together, over the life of the pool.
    """

    max_jobs: int
    each: Bundle
    idle_s: float = 60.0
    notice_s: float = 120.0
    time_s: float = math.inf
    total_s: float = math.inf


@dataclass(frozen=True)
class Plan:
    """Changes of a pool.

    Attributes:
        submit: number of jobs to submit.
        drain: ids of jobs that are about to end at their time limit.
        release: ids of idle jobs to drain and cancel.
        cancel: ids of jobs to cancel at once.
    """

    submit: int = 0
    drain: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ()


def wanted(jobs: Sequence[Job], waiting: Iterable[Waiting], limits: Limits, spent_s: float = 0.0) -> Plan:
    """Return the changes that the waiting requests and the limits demand.

    A request first counts on free resources of joined jobs, then on jobs that are coming, and only then on a
    further job. Requests that no job can hold are left out.

    Args:
        jobs: all jobs that the batch system still has.
        waiting: requests that no node can take now.
        limits: limits of the pool.
        spent_s: seconds that ended jobs have run.
    """
    due = {job.id for job in jobs if job.stage is Stage.JOINED and job.left_s <= limits.notice_s}
    bins = [
        _Bin(limits.each if job.stage is Stage.COMING else job.free, job.id)
        for job in sorted(jobs, key=lambda job: job.stage is Stage.COMING)
        if job.stage in (Stage.COMING, Stage.JOINED) and job.id not in due
    ]
    held = len(bins)
    room = min(limits.max_jobs - len(jobs), _affordable(jobs, limits, spent_s))
    for request in waiting:
        _place(request, bins, limits.each, held + max(0, room))
    used = {each.job for each in bins if each.is_used}
    unused = [job for job in jobs if job.id not in used and job.id not in due]
    return Plan(
        submit=sum(each.is_used for each in bins[held:]),
        drain=tuple(job.id for job in jobs if job.id in due),
        release=tuple(job.id for job in unused if job.stage is Stage.JOINED and job.idle_s >= limits.idle_s),
        cancel=tuple(
            job.id
            for job in unused
            if job.stage is Stage.COMING and not job.runs and job.age_s >= limits.idle_s
        ),
    )


def _affordable(jobs: Sequence[Job], limits: Limits, spent_s: float) -> int:
    """Return how many further jobs may run to their time limit within the total time."""
    if math.isinf(limits.total_s):
        return limits.max_jobs
    return max(0, math.floor((limits.total_s - spent_s) / limits.time_s) - len(jobs))


class _Bin:
    """Free resources of a job, counted in units."""

    def __init__(self, free: Bundle, job: str = "") -> None:
        self.job = job
        self.free = _units(free)
        self.is_used = False

    def holds(self, asked: Mapping[str, int]) -> bool:
        return all(amount <= self.free.get(name, 0) for name, amount in asked.items())

    def take(self, asked: Mapping[str, int]) -> None:
        self.is_used = True
        for name, amount in asked.items():
            self.free[name] -= amount


def _units(bundle: Bundle) -> dict[str, int]:
    return {name: round(amount * QUANTUM) for name, amount in bundle.items() if amount}


def _place(request: Waiting, bins: list[_Bin], each: Bundle, most: int) -> None:
    """Place a request in the first bins that hold it, and in new bins up to `most`."""
    taken: list[_Bin] = []
    for asked in map(_units, request.bundles):
        found = next((bin_ for bin_ in bins if bin_.holds(asked) and bin_ not in taken), None)
        if found is None:
            found = _Bin(each)
            if not found.holds(asked) or len(bins) >= most:
                return
            bins.append(found)
        found.take(asked)
        if request.apart:
            taken.append(found)
