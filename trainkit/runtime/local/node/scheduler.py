"""Resource scheduler of the node, which grants requests in order, and idle workers kept for later tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainkit.clock import SYSTEM
from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.loop import After
from trainkit.runtime.local.node.placement_groups import PlacementGroups
from trainkit.runtime.local.node.reclaim import LeaseReclaimer
from trainkit.runtime.local.wire.channel import Descriptor
from trainkit.runtime.local.wire.messages import RequestLease, StartActor
from trainkit.runtime.placement import Allocation, serve, units

_SURPLUS_S = 2.0
"""Idle time after which workers end if more workers are idle than the machine has CPUs."""


class IdleWorkers:
    """Idle workers that ran tasks and wait for tasks with the same placement and environment.

    Args:
        most: number of idle workers that are kept without a time limit.
        after: `Loop.after`.
        end: function that ends a worker.
    """

    def __init__(self, most: int, after: After, end: Callable[[records.WorkerRecord], None]) -> None:
        self._most = max(1, most)
        self._after = after
        self.end = end
        self._workers: list[records.WorkerRecord] = []
        self._unused = 0

    def add(self, worker: records.WorkerRecord) -> None:
        """Keep an idle worker until it is needed again or too many workers are idle."""
        self._workers.append(worker)
        self._look_later()

    def discard(self, worker: records.WorkerRecord) -> None:
        """Remove a worker that has ended."""
        if worker in self._workers:
            self._workers.remove(worker)

    def take(self, asked: RequestLease) -> records.WorkerRecord | None:
        """Remove and return an idle worker that suits the request `asked`; None if no worker suits."""
        for worker in reversed(self._workers):
            # The most recently used worker is taken first, because its memory may still be in the CPU's
            # caches.
            if _suits(worker, asked) and not worker.control.closed:
                self._workers.remove(worker)
                self._unused = min(self._unused, len(self._workers))
                return worker
        return None

    def _look_later(self) -> None:
        if len(self._workers) > self._most and self._after(_SURPLUS_S, self._end_surplus):
            self._unused = len(self._workers)

    def _end_surplus(self) -> None:
        # `take` prefers workers at the end of the list, so the first `_unused` workers were not
        # needed since the last check.
        for worker in self._workers[: max(0, min(self._unused, len(self._workers) - self._most))]:
            self._workers.remove(worker)
            self.end(worker)
        self._look_later()


def _suits(worker: records.WorkerRecord, asked: RequestLease) -> bool:
    ours, wanted = worker.spec.environment, asked.environment
    return (
        worker.spec.placement == asked.placement
        and ours._replace(preload=wanted.preload) == wanted
        and ours.preload >= wanted.preload
    )


@dataclass(eq=False)
class ResourceScheduler:
    """Scheduler that grants requests for workers and groups in order, as resources become free.

    Args:
        queue: the waiting requests.
        groups: placement groups, with the ledger of the machine's free resources.
        table: the living workers.
        idle: idle workers that can be reused.
        reclaimer: object that makes processes return leases that they do not need.
        publish: function that delivers an event.
    """

    _queue: records.RequestQueue
    _groups: PlacementGroups
    _table: records.WorkerTable
    _idle: IdleWorkers
    _reclaimer: LeaseReclaimer
    _publish: records.Publish

    def __post_init__(self) -> None:
        self._ledger = self._groups.machine

    def enqueue(
        self,
        client: int,
        message: StartActor | RequestLease,
        first: Descriptor,
        answer: records.Answer | None = None,
    ) -> None:
        """Queue a request for a worker whose first connection is `first`. A lease request gets an answer."""
        placement = message.placement
        group = None if placement.group is None else placement.group.group
        bundle = None if placement.group is None else placement.group.bundle
        request = records.Request(
            message.worker_id,
            [placement.resources],
            group,
            client != records.DRIVER,
            bundle,
            message.name,
            client=client,
            start=message,
            first=first,
            answer=answer,
            ready=isinstance(message, RequestLease) or message.ready,
        )
        self._queue.add(request)
        if group is not None and group not in self._groups:
            self._queue.remove({message.worker_id})
            self._queue.refuse(request, "its placement group was removed")

    def serve(self) -> None:
        """Grant all requests that can be granted now."""
        if not self._queue.changed:
            return
        self._queue.changed = False
        line = self._queue.line()
        if not line:
            return
        self._share_lent(line)
        granted = serve(line, self._ledger, self._grant, self._groups.holds_up)
        done = {request.key for request in granted}
        granted += [request for request in line if request.key not in done and self._pass_on(request)]
        self._queue.remove({request.key for request in granted})
        for request in granted:
            if request.answer is not None:
                worker = self._table.get(request.key)
                request.answer(worker is not None and self._reclaimer.granted(worker))
        if len(granted) < len(line):
            self._publish(records.RequestsWaiting())

    def _pass_on(self, request: records.Request) -> bool:
        """Grant a request of a worker that waits and lends its CPUs, even if no CPU is free.

        Other processes may have got the lent CPUs, and reclaiming CPUs takes time. So a waiting worker gets
        one additional worker per wait, and the task that it waits for can run at once.
        """
        lender = self._table.by_serial(request.client)
        if lender is None or lender.lent is None or lender.passed_on:
            return False
        if lender.ledger_group is not None or request.group is not None:
            return False
        if not isinstance(request.start, RequestLease):
            return False
        wanted = Allocation(units(request.start.placement.resources))
        if any(amount > lender.lent.amounts.get(name, 0) for name, amount in wanted.amounts.items()):
            return False
        lender.passed_on = True
        self._ledger.retake(wanted)
        self._start_or_reuse(request, wanted, None)
        return True

    def _grant(self, request: records.Request) -> list[str] | None:
        """Try to grant `request`.

        Return None if the request was granted, else the names of the lacking resources.
        """
        if request.start is None:
            lacking = self._groups.grant(request.key)
            if lacking is None:
                self._queue.changed = True  # requests that wait for this group can be granted next
            return lacking
        placement = request.start.placement
        taken = self._groups.take(placement)
        if taken is None:
            return self._ledger.lacking(placement.resources)
        self._start_or_reuse(request, *taken)
        return None

    def _start_or_reuse(
        self, request: records.Request, allocation: Allocation, where: tuple[int, int] | None
    ) -> None:
        idle = None
        if isinstance(request.start, RequestLease) and not allocation.gpus:
            idle = self._idle.take(request.start)
        if idle is not None:
            idle.allocation, idle.ledger_group, idle.owner = allocation, where, request.client
            self._table.rename(idle, request.key)
        bundles = () if where is None else self._groups[where[0]].bundles
        self._publish(records.RequestGranted(request, allocation, where, bundles, idle))
        worker = self._table.get(request.key)
        if worker is not None:  # `worker` is None if its process could not be started
            worker.held_s = SYSTEM.monotonic()

    def start_failed(self, event: records.StartFailed) -> None:
        """Take back the resources of a worker that could not be started."""
        ledger = self._groups.ledger_of(event.granted.where)
        if ledger is not None:
            ledger.give_back(event.granted.allocation)
        self._queue.refuse(event.granted.request, event.reason)

    def return_lease(self, worker_id: int, retire: bool) -> None:
        """Free the resources of a leased worker, and keep its process for similar tasks.

        Args:
            worker_id: id of the worker.
            retire: True to end the process instead of keeping it.
        """
        worker = self._table.get(worker_id)
        if worker is None:
            return
        reusable = worker.is_reusable and not retire
        self._release(worker)
        worker.owner = self._table.heir(worker)
        self._reclaimer.unneeded(worker.serial)
        if reusable:
            self._idle.add(worker)
        else:
            self._idle.end(worker)

    def worker_exited(self, event: records.WorkerExited) -> None:
        """Handle the requests, leases and groups of a process that has ended.

        After a clean end, the heir gets the requests for actors of the ended process, and also its groups if
        the process was not an actor. Leases of the ended process are returned, and its other requests are
        refused.
        """
        worker = event.worker
        self._take_back(worker)
        if event.in_order:
            self._queue.inherit(worker.serial, event.heir)
            if not worker.is_actor:
                self._groups.owner_changes(worker.serial, event.heir)
        self.give_up(worker.serial, f"{worker.name}, which requested it, has ended")
        if event.in_order:
            for orphan in self._table.all():
                if orphan.owner == worker.serial and not orphan.is_actor:
                    self.return_lease(orphan.worker_id, retire=False)

    def give_up(self, owner: int, reason: str) -> None:
        """Refuse the requests of a process that has ended, and release its groups."""
        self._queue.give_up(owner, reason)
        self._groups.owner_ended(owner)

    def worker_ended(self, event: records.WorkerEnded) -> None:
        """Free the resources and the placement groups of a worker that has ended."""
        if event.worker is not None:
            self._idle.discard(event.worker)
            self._release(event.worker)
            self._groups.owner_ended(event.worker.serial)

    def _release(self, worker: records.WorkerRecord) -> None:
        self._reclaimer.returned(worker)
        self._take_back(worker)
        held, worker.allocation = worker.allocation, None
        ledger = None if held is None else self._groups.ledger_of(worker.ledger_group)
        if held is not None and ledger is not None:
            ledger.give_back(held)
        self._queue.changed = True

    def blocked(self, serial: int, waiting: bool) -> None:
        """Lend the CPUs of a worker that waits for other processes, or take the CPUs back."""
        worker = self._table.by_serial(serial)
        if worker is None:
            return
        if waiting:
            self._lend(worker)
        else:
            self._take_back(worker)

    def _lend(self, worker: records.WorkerRecord) -> None:
        if worker.allocation is None or worker.lent is not None:
            return
        worker.passed_on = False
        worker.lent = Allocation({"CPU": worker.allocation.amounts.get("CPU", 0)}, {})
        rest = {name: amount for name, amount in worker.allocation.amounts.items() if name != "CPU"}
        worker.allocation = Allocation(rest, worker.allocation.gpus)
        if (own := self._groups.ledger_of(worker.ledger_group)) is not None:
            own.give_back(worker.lent)
        self._queue.changed = True

    def _share_lent(self, line: Sequence[records.Request]) -> None:
        """Decide whether the machine or the group may use the CPUs that a waiting worker of the group lends.

        The machine gets the CPUs while the waiting worker, directly or through its own workers, waits for a
        request outside the group. At all other times, the group gets the CPUs.
        """
        asking: set[int] = set()
        for request in line:
            client = request.client if request.group is None else records.DRIVER
            while (worker := self._table.by_serial(client)) is not None and client not in asking:
                asking.add(client)
                client = worker.owner
        for worker in self._table.all():
            own = None if worker.ledger_group is None else self._groups.ledger_of(worker.ledger_group)
            if own is None or worker.lent is None:
                continue
            left = worker.lent.amounts["CPU"] - worker.lent_out
            if worker.serial in asking:
                self._lend_out(worker, min(left, own.unused("CPU")))
            else:
                self._lend_out(worker, -min(worker.lent_out, self._ledger.unused("CPU")))

    def _lend_out(self, worker: records.WorkerRecord, amount: int) -> None:
        """Move lent CPUs of a worker from its group to the machine, or back for a negative `amount`."""
        moved = Allocation({"CPU": amount})
        worker.lent_out += amount
        self._ledger.give_back(moved)
        if (own := self._groups.ledger_of(worker.ledger_group)) is not None:
            own.retake(moved)

    def _take_back(self, worker: records.WorkerRecord) -> None:
        if worker.allocation is None or worker.lent is None:
            return
        # The CPUs are taken back even if they are in use, so for a moment more tasks run than CPUs exist.
        self._lend_out(worker, -worker.lent_out)
        if (own := self._groups.ledger_of(worker.ledger_group)) is not None:
            own.retake(worker.lent)
        amounts = {**worker.allocation.amounts, **worker.lent.amounts}
        worker.allocation, worker.lent = Allocation(amounts, worker.allocation.gpus), None
        if self._ledger.is_overdrawn("CPU"):
            self._reclaimer.relieve_later()
