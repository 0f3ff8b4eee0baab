"""Reclaiming of idle leases (workers granted to a process for its tasks) for waiting requests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainkit.clock import SYSTEM
from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.loop import After
from trainkit.runtime.local.node.placement_groups import PlacementGroups
from trainkit.runtime.local.wire.messages import Reclaim, RequestLease

_MOMENT_S = 0.005
_INSIST_S = 0.05
"""Waiting time of a request after which all leases are reclaimed for it, even leases that are probably
busy.
"""

_RELIEVE_S = 1.0

_COUNT_S = 1.0
"""Longest time in seconds that a count of the free resources waits for the return of idle leases."""


@dataclass(eq=False)
class LeaseReclaimer:
    """Reclaimer of leases that processes do not need while requests of other processes wait.

    Args:
        queue: the waiting requests.
        groups: placement groups, with the ledger of the machine's free resources.
        table: the living workers.
        after: `Loop.after`.
        notify: `Clients.notify`.
    """

    _queue: records.RequestQueue
    _groups: PlacementGroups
    _table: records.WorkerTable
    _after: After
    _notify: records.Notify
    _kept: dict[int, records.WorkerRecord] = field(default_factory=dict)
    _counts: dict[int, tuple[set[int], Callable[[], None]]] = field(default_factory=dict)
    _last_count: int = 0

    def granted(self, worker: records.WorkerRecord) -> bool:
        """Record a granted lease. Return True if the lease must be returned as soon as its worker is idle."""
        worker.wanted_back = self._is_wanted(worker, self._in_reach)
        if not worker.wanted_back:
            self._kept[worker.serial] = worker
        return worker.wanted_back

    def returned(self, worker: records.WorkerRecord) -> None:
        """Forget a lease that was returned."""
        self._kept.pop(worker.serial, None)

    def reclaim(self, _: object = None) -> None:
        """Reclaim the leases whose return helps a waiting request now.

        Reclaim further leases later if needed.
        """
        line = functools.cache(self._in_reach)
        self._ask_back([worker for worker in self._kept.values() if self._is_wanted(worker, line)])
        if self._kept:
            self._after(_MOMENT_S, self._insist)

    def _insist(self) -> None:
        """Reclaim the driver's leases, even busy leases.

        If requests still wait after these leases are returned, also reclaim workers' leases.
        """
        if not (line := self._in_reach()):  # the return of a lease would not help the waiting requests
            return
        waited = SYSTEM.monotonic() - min(request.since for request in line)
        kept, is_long = self._kept.values(), waited >= _INSIST_S
        self._ask_back([worker for worker in kept if is_long or self._table.by_serial(worker.owner) is None])
        if self._kept:
            self._after(_INSIST_S, self._insist)

    def relieve_later(self) -> None:
        """Schedule a check after a second, which reclaims leases if more CPUs are in use than the machine
        has.
        """
        self._after(_RELIEVE_S, self._relieve)

    def _relieve(self) -> None:
        if self._kept and self._groups.machine_is_overdrawn():
            self._ask_back(list(self._kept.values()))
            self.relieve_later()

    def unneeded(self, serial: int) -> None:
        """Reclaim the leases held by worker `serial`, whose own lease was returned."""
        self._ask_back([worker for worker in self._kept.values() if worker.owner == serial])

    def when_returned(self, client: int, then: Callable[[], None]) -> None:
        """Call `then` when all processes except `client` have returned their idle leases, or after 1 s."""
        owners = self._ask_back(
            [worker for worker in self._kept.values() if worker.owner != client], self._last_count + 1
        )
        if not owners:
            then()
            return
        self._last_count += 1
        self._counts[self._last_count] = owners, then
        self._after(_COUNT_S, functools.partial(self._count, self._last_count))

    def reclaimed(self, client: int, count: int) -> None:
        """Record that process `client` has returned its idle leases, as was requested before a count of the
        free resources.
        """
        if count in self._counts:
            owners, _ = self._counts[count]
            owners.discard(client)
            if not owners:
                self._count(count)

    def _count(self, count: int) -> None:
        if count in self._counts:
            _, then = self._counts.pop(count)
            then()

    def _ask_back(self, workers: Sequence[records.WorkerRecord], count: int = 0) -> set[int]:
        for worker in workers:
            worker.wanted_back = True
            del self._kept[worker.serial]
        owners = {worker.owner for worker in workers}
        for owner in owners:
            self._notify(owner, Reclaim(count))
        return owners

    def _in_reach(self) -> list[records.Request]:
        """Return the waiting requests that could be granted soon if all processes returned their leases."""
        return self._groups.that_hold_up(self._queue.line(), leases_end=True)

    def _is_wanted(self, worker: records.WorkerRecord, line: Callable[[], list[records.Request]]) -> bool:
        """Return True if the return of this lease would probably help a request of `line` at once.

        The return does not help in any of four cases: a worker holds the lease, and needs it again soon; the
        leased worker waits for another process, and so is busy; the request comes from a worker that lends
        its own CPUs as soon as it waits; or the process that has the lease requests a further worker with the
        same placement, and will reuse this lease.
        """
        if worker.lent is not None or self._table.by_serial(worker.owner) is not None:
            return False
        return any(
            not self._is_about_to_lend(request.client)
            and not (
                request.client == worker.owner
                and isinstance(request.start, RequestLease)
                and request.start.placement == worker.spec.placement
            )
            for request in line()
        )

    def _is_about_to_lend(self, client: int) -> bool:
        asking = self._table.by_serial(client)
        return asking is not None and asking.lends_cpus
