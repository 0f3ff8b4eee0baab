"""Reclaiming of idle leases for waiting requests, and explanations of long waits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainkit.clock import SYSTEM
from trainkit.resources import Bundle, describe, total
from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.loop import After
from trainkit.runtime.local.node.placement_groups import PlacementGroups
from trainkit.runtime.local.wire.messages import Reclaim, RequestLease, Waits
from trainkit.runtime.placement import Allocation, Holder, Room, Wait, explain_wait, order

_MOMENT_S = 0.005
_INSIST_S = 0.05
"""Wait after which all leases are reclaimed, including leases that are probably busy."""

_RELIEVE_S = 1.0

_COUNT_S = 1.0
"""Longest time that a count of free resources waits for the return of idle leases."""

_LONG_S = 10.0
"""Wait after which a request is explained to the process that made it."""

_TOGETHER_S = 2.0
"""Requests made within this time after an explained request are explained with it."""

_MOST_EXPLAINED = 3
"""Number of a process's requests that are explained at a time; further requests are only counted."""


@dataclass(eq=False)
class LeaseReclaimer:
    """Reclaimer of leases that processes keep without need while requests of other processes wait.

    Args:
        queue: the waiting requests.
        groups: placement groups, and the ledger of the machine.
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
        """Record a granted lease. Return True if the lease must be returned as soon as it is idle."""
        worker.wanted_back = self._is_wanted(worker, self._in_reach)
        if not worker.wanted_back:
            self._kept[worker.serial] = worker
        return worker.wanted_back

    def returned(self, worker: records.WorkerRecord) -> None:
        """Forget a lease that was returned."""
        self._kept.pop(worker.serial, None)

    def reclaim(self, _: object = None) -> None:
        """Reclaim the leases whose return helps waiting requests at once, and more leases later if needed."""
        line = functools.cache(self._in_reach)
        self._ask_back([worker for worker in self._kept.values() if self._is_wanted(worker, line)])
        if self._kept:
            self._after(_MOMENT_S, self._insist)

    def _insist(self) -> None:
        """Reclaim the driver's leases, even busy ones. After a longer wait, reclaim workers' leases too."""
        if not (line := self._in_reach()):  # the return of a lease would not help the waiting requests
            return
        waited = SYSTEM.monotonic() - min(request.since for request in line)
        kept, is_long = self._kept.values(), waited >= _INSIST_S
        self._ask_back([worker for worker in kept if is_long or self._table.by_serial(worker.owner) is None])
        if self._kept:
            self._after(_INSIST_S, self._insist)

    def relieve_later(self) -> None:
        """Reclaim leases after a second if more CPUs than the machine has are still in use then."""
        self._after(_RELIEVE_S, self._relieve)

    def _relieve(self) -> None:
        if self._kept and self._groups.machine_is_overdrawn():
            self._ask_back(list(self._kept.values()))
            self.relieve_later()

    def unneeded(self, serial: int) -> None:
        """Reclaim the leases of a worker whose own lease was returned."""
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
        """Record that a process has returned its idle leases for a count of free resources."""
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
        """Return the waiting requests that could be granted soon if all leases were returned."""
        return self._groups.that_hold_up(self._queue.line(), leases_end=True)

    def _is_wanted(self, worker: records.WorkerRecord, line: Callable[[], list[records.Request]]) -> bool:
        """Return True if the return of this lease would probably help a request of `line` at once.

        The return does not help in four cases. The lease belongs to a worker, which needs the lease again
            soon. The leased worker is blocked and so busy. The requesting worker is about to lend its own
            CPUs. The process with the lease requests a further worker with the same placement, and will reuse
            the lease itself.
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


@dataclass(eq=False)
class WaitExplainer:
    """Explainer of waiting requests, for the state listing and for processes whose requests wait for long.

    Args:
        queue: the waiting requests.
        groups: placement groups, and the ledger of the machine.
        table: the living workers.
        totals: total resources of the machine.
        after: `Loop.after`.
        notify: `Clients.notify`.
    """

    _queue: records.RequestQueue
    _groups: PlacementGroups
    _table: records.WorkerTable
    _totals: Bundle
    _after: After
    _notify: records.Notify

    def explain_later(self, _: object = None) -> None:
        """Schedule explanations of the waiting requests for the time when they have waited 10 s."""
        waiting = [request.since for request in self._queue.line() if not request.explained]
        if waiting:
            self._after(max(0.0, min(waiting) + _LONG_S - SYSTEM.monotonic()), self._explain)

    def _explain(self) -> None:
        now = SYSTEM.monotonic()
        due: dict[int, list[records.Request]] = {}
        for request in self._queue.line():
            if not request.explained and now - request.since >= _LONG_S - _TOGETHER_S:
                request.explained = True
                due.setdefault(request.client, []).append(request)
        for client, requests in due.items():
            told, rest = requests[:_MOST_EXPLAINED], requests[_MOST_EXPLAINED:]
            for request, wait in zip(told, self.waits(told), strict=True):
                asked = describe(total(request.bundles))
                reasons = "; ".join(wait.reasons)
                text = f"{request.what} has been waiting {now - request.since:.0f} s for {asked}: {reasons}"
                self._notify(client, Waits(text))
            if rest:
                text = f"so have {len(rest)} more; `trainkit status` lists what waits"
                self._notify(client, Waits(text))
        self.explain_later()

    def waits(self, requests: Sequence[records.Request]) -> list[Wait]:
        """Return for each of `requests`, which are in the queue, why it is not granted."""
        by_key = {request.key: request for request in self._queue.all()}
        machine = Room(
            existing=self._totals, ledger=self._groups.machine, holders=self._holders_of_the_machine()
        )
        line = [request for request in order(self._queue.line()) if request.group is None]
        place = {request.key: index for index, request in enumerate(line)}
        ahead = {request.key for request in self._groups.that_hold_up(line)}

        def of(request: records.Request) -> Wait:
            if not request.ready:
                return Wait(reasons=["an argument of its constructor is still to come"])
            group_id = request.group
            if group_id is None:
                before = [each for each in line[: place[request.key]] if each.key in ahead]
                return explain_wait(request, [machine], before)
            wait = explain_wait(request, self._rooms(request, self._groups[group_id]))
            if group_id not in by_key:
                return wait
            of_group = of(by_key[group_id])
            reasons = [*wait.reasons, *(f"its group: {reason}" for reason in of_group.reasons)]
            return Wait(lacking=of_group.lacking, holders=of_group.holders, reasons=reasons)

        return [of(request) for request in requests]

    def _rooms(self, request: records.Request, group: records.PlacementGroupRecord) -> list[Room]:
        wanted = None if request.start is None else request.start.placement.group
        return [
            Room(
                name=f"bundle {index} of its group",
                existing=group.bundles[index],
                ledger=ledger,
                holders=[
                    _holder(worker, worker.allocation)
                    for worker in self._table.all()
                    if worker.allocation is not None and worker.ledger_group == (request.group, index)
                ],
            )
            for index, ledger in enumerate(group.ledgers)
            if wanted is None or wanted.bundle in (None, index)
        ]

    def _holders_of_the_machine(self) -> list[Holder]:
        workers = [
            _holder(worker, worker.allocation)
            for worker in self._table.all()
            if worker.allocation is not None and worker.ledger_group is None
        ]
        groups = [
            Holder(who=group.what, amounts=total(group.bundles))
            for _, group in self._groups.living()
            if group.held is not None
        ]
        return workers + groups


def _holder(worker: records.WorkerRecord, allocation: Allocation) -> Holder:
    return Holder(who=f"{worker.name} (pid {worker.pid})", amounts=allocation.as_bundle())
