"""Monitor of the workers' memory: ends a worker above its limit.

What counts is a worker's own memory and that of all its descendants: anonymous pages and swap. A page
that several of them share counts once; those of the template that a worker was forked from are not its
own, and objects in shared memory have a limit of their own.

The kernel tells the size of all pages of a process at once, and what is shared among them by a walk
over them; so the walk is only done where the first number is above the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainkit.clock import SYSTEM
from trainkit.resources import describe_bytes
from trainkit.runtime.local.node.loop import After
from trainkit.runtime.local.node.records import Kill, WorkerRecord, WorkerStarted, WorkerTable
from trainkit.runtime.local.system import process

_EVERY_S = 0.1
_AT_LEAST_EVERY_S = 1.0


@dataclass(frozen=True)
class MemorySample:
    """Measurement of a worker's memory.

    Attributes:
        at: when.
        gross_bytes: all its pages.
        net_bytes: its share of them.
    """

    at: float
    gross_bytes: int
    net_bytes: int


def needs_a_look(limit_bytes: float, gross_bytes: int, last: MemorySample | None, now: float) -> bool:
    """Return whether a worker with so many pages may be above its limit, so that a close look is due.

    After one that found it below, the next is due when it has grown by half of what was left, and
    anyway after a second, as a shared page that is written to becomes its own without growth.
    """
    if gross_bytes <= limit_bytes:
        return False
    if last is None or now - last.at >= _AT_LEAST_EVERY_S:
        return True
    return gross_bytes - last.gross_bytes > (limit_bytes - last.net_bytes) / 2


def excess(limit_bytes: float, net_bytes: int) -> str | None:
    """Return why a worker must end; None if it is within its limit."""
    if net_bytes <= limit_bytes:
        return None
    return (
        f"memory limit exceeded: it held {describe_bytes(net_bytes)} of the {describe_bytes(limit_bytes)} "
        "that it asked for; give it more by memory=..., or use less"
    )


class MemoryMonitor:
    """Watches the workers that asked for memory, as long as there are any.

    Args:
        table: the living workers.
        after: `Loop.after`.
        kill: `Supervisor.kill`.
    """

    def __init__(self, table: WorkerTable, after: After, kill: Kill) -> None:
        self._table = table
        self._after = after
        self._kill = kill
        self._samples: dict[int, MemorySample] = {}

    def worker_started(self, event: WorkerStarted) -> None:
        """Begin to watch, if the worker has a limit."""
        if _limit(event.worker) is not None:
            self._after(_EVERY_S, self._check_all)

    def _check_all(self) -> None:
        limited = [worker for worker in self._table.all() if _limit(worker) is not None]
        self._samples = {
            worker.serial: self._samples[worker.serial]
            for worker in limited
            if worker.serial in self._samples
        }
        if not limited:
            return
        self._after(_EVERY_S, self._check_all)
        families = process.families([worker.pid for worker in limited if worker.pid is not None])
        for worker in limited:
            if worker.pid is not None and not worker.ending:
                self._check(worker, families[worker.pid])

    def _check(self, worker: WorkerRecord, family: Sequence[int]) -> None:
        limit, now = _limit(worker) or 0, SYSTEM.monotonic()
        gross = sum(process.own_pages_bytes(pid) for pid in family)
        if not needs_a_look(limit, gross, self._samples.get(worker.serial), now):
            return
        net = _net_bytes(family)
        self._samples[worker.serial] = MemorySample(now, gross, net)
        reason = excess(limit, net)
        if reason is not None:
            self._kill(worker.worker_id, reason, lambda _: None)


def _net_bytes(family: Sequence[int]) -> int:
    """Return what a worker and its descendants hold without what they share with its template."""
    template = process.parent(family[0])
    shared, forked = process.own_share_bytes(template), process.command_line(template)
    # A page that n processes share counts as a part of n in each of them, so also in the template: what
    # counts there is what counts here for all pages in common.
    return sum(
        max(0, process.own_share_bytes(pid) - shared * (process.command_line(pid) == forked))
        for pid in family
    )


def _limit(worker: WorkerRecord) -> float | None:
    return worker.spec.placement.resources.get("memory")
