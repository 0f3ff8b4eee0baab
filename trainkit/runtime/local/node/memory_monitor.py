"""Monitor of the workers' memory, which kills a worker that uses more than its limit.

The limit applies to the anonymous pages and swap of a worker and all its descendants. A page that a worker
and its descendants share counts once. Pages that the worker shares with its template (the process from which
it was forked) don't count. Objects in shared memory have a separate limit.

Finding shared pages is slow, as the kernel must walk over all pages of a process. So shared pages are only
searched if the total size, which the kernel reports at once, is above the limit.
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
        at: time of the measurement, by the monotonic clock.
        gross_bytes: size of all pages, with shared pages counted in each process.
        net_bytes: size of the pages that count towards the worker's limit.
    """

    at: float
    gross_bytes: int
    net_bytes: int


def needs_a_look(limit_bytes: float, gross_bytes: int, last: MemorySample | None, now: float) -> bool:
    """Return True if a worker may be above its limit, so that an exact measurement is due.

    After an exact measurement below the limit, the next measurement is due when the worker has grown by half
    of the remaining room. After a second, a further measurement is always due, because a write to a shared
    page gives the worker its own copy of the page, and the total size does not change.
    """
    if gross_bytes <= limit_bytes:
        return False
    if last is None or now - last.at >= _AT_LEAST_EVERY_S:
        return True
    return gross_bytes - last.gross_bytes > (limit_bytes - last.net_bytes) / 2


def excess(limit_bytes: float, net_bytes: int) -> str | None:
    """Return the reason for killing a worker; None if the worker is within its limit."""
    if net_bytes <= limit_bytes:
        return None
    return (
        f"memory limit exceeded: it used {describe_bytes(net_bytes)} of the {describe_bytes(limit_bytes)} "
        "that memory=... allows; raise memory=..., or use less"
    )


class MemoryMonitor:
    """Monitor of the workers that requested memory, which is active while such workers exist.

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
        """Start monitoring if the worker has a limit."""
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
    """Return the memory of a worker and its descendants, without the pages
    shared with the worker's template.
    """
    template = process.parent(family[0])
    shared, forked = process.own_share_bytes(template), process.command_line(template)
    # For a page that n processes share, the kernel counts 1/n of the page in each process. The template is
    # one of the n processes. So the sum of each worker forked from it also contains the template's sum, which
    # is subtracted.
    return sum(
        max(0, process.own_share_bytes(pid) - shared * (process.command_line(pid) == forked))
        for pid in family
    )


def _limit(worker: WorkerRecord) -> float | None:
    return worker.spec.placement.resources.get("memory")
