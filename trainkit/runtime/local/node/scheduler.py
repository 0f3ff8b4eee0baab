"""Resource scheduler of the node: the ledger, the queue of requests, and the idle workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.clock import SYSTEM
from trainkit.errors import WorkerDiedError
from trainkit.resources import QUANTUM, Bundle
from trainkit.runtime.local.node.loop import try_send
from trainkit.runtime.local.node.placement_groups import Groups
from trainkit.runtime.local.node.reclaim import LeaseReclaimer
from trainkit.runtime.local.node.records import DRIVER, Request, WorkerRecord, pending_row
from trainkit.runtime.local.system.devices import gpu_name
from trainkit.runtime.local.wire.channel import Descriptor
from trainkit.runtime.local.wire.frames import NOTICE
from trainkit.runtime.local.wire.messages import (
    Connect,
    EndWorker,
    RequestLease,
    StartActor,
    WorkerSpec,
    packed,
)
from trainkit.runtime.placement import Allocation, Demand, Ledger, serve, units
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.specs import PlacementGroupId, Registration, SessionSpec

if TYPE_CHECKING:
    from trainkit.runtime.local.node.node import Node

_SURPLUS_S = 2.0
"""Idle workers beyond one for each CPU that were not needed for so long are ended."""


def _suits(worker: WorkerRecord, asked: RequestLease) -> bool:
    """Return whether an idle worker is as if it had been started for `asked`."""
    ours, wanted = worker.surroundings, asked.surroundings
    return (
        worker.placement == asked.placement
        and ours._replace(preload=wanted.preload) == wanted
        and ours.preload >= wanted.preload
    )


class ResourceScheduler:
    """Grants requests in turn, as far as what exists is free.

    Args:
        node: whose loop it lives in.
        spec: of the session.
        visible: what CUDA_VISIBLE_DEVICES calls each GPU index.
    """

    def __init__(self, node: Node, spec: SessionSpec, visible: Sequence[str]) -> None:
        self._node = node
        self._spec = spec
        self._totals = dict(spec.totals)
        self._visible = list(visible)
        self._ledger = Ledger.of_machine(spec.totals)
        self._queue: list[Request] = []
        self.groups = Groups(node, self._ledger)
        self._idle: list[WorkerRecord] = []
        self._unused = 0
        self._will_end_surplus = False
        self._changed = False
        self.patience = LeaseReclaimer(node)

    # requests

    def start_actor(self, client: int, message: StartActor, first: Descriptor) -> None:
        self._enqueue_process(client, message, first, None)

    def lease(
        self, client: int, message: RequestLease, first: Descriptor, answer: Callable[[Any], None]
    ) -> None:
        self._enqueue_process(client, message, first, answer)

    def _enqueue_process(
        self,
        client: int,
        message: StartActor | RequestLease,
        first: Descriptor,
        answer: Callable[[Any], None] | None,
    ) -> None:
        placement = message.placement
        group = None if placement.group is None else placement.group.group
        bundle = None if placement.group is None else placement.group.bundle
        waiting = Demand(message.worker_id, [placement.resources], group, client != DRIVER, bundle)
        request = Request(waiting, client, SYSTEM.monotonic(), message.name, message, first, answer, [])
        request.ready = isinstance(message, RequestLease) or message.ready
        if group is not None and group not in self.groups:
            self._refuse(request, "its placement group was removed")
            return
        self.enqueue(request)

    @property
    def queue(self) -> list[Request]:
        """What waits, in the order in which it was asked for."""
        return self._queue

    @property
    def line(self) -> list[Request]:
        """Requests that wait for resources alone."""
        return [request for request in self._queue if request.ready]

    def arguments_there(self, worker_id: int) -> None:
        """Have an actor take its turn, now that the arguments of its constructor have come."""
        for request in self._queue:
            if request.waiting.key == worker_id and not request.ready:
                self._get_in_line(request)
                return

    def _get_in_line(self, request: Request) -> None:
        request.ready, request.since = True, SYSTEM.monotonic()
        self._queue.remove(request)
        self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """Have `request` granted in its turn."""
        self._queue.append(request)
        self._changed = True

    def changed(self) -> None:
        """Something is free that was not."""
        self._changed = True

    def dismiss(self, group_id: int) -> None:
        """Take back what waits for a group that was removed, and the request for the group itself."""
        for request in list(self._queue):
            if request.waiting.key == group_id:
                self._queue.remove(request)
            elif request.waiting.group == group_id:
                self._queue.remove(request)
                self._refuse(request, "its placement group was removed", requested=True)

    def withdraw(self, worker_id: int) -> None:
        """Take a request back whose process was killed before it was started."""
        for request in self._queue:
            if request.waiting.key == worker_id and request.start is not None:
                self._queue.remove(request)
                self._refuse(request, "it was killed before it was started", requested=True)
                return

    def is_queued(self, worker_id: int) -> bool:
        return any(request.waiting.key == worker_id for request in self._queue)

    def inquire_queued(self, worker_id: int, answer: Callable[[ExitRecord], None]) -> bool:
        """Answer once the request for that worker is refused; False if none waits."""
        for request in self._queue:
            if request.waiting.key == worker_id and request.inquiries is not None:
                request.inquiries.append(answer)
                return True
        return False

    def _refuse(self, request: Request, reason: str, requested: bool = False) -> None:
        exit_ = ExitRecord(reason=reason, requested=requested)
        self._node.worker_table.never_started(request.waiting.key, exit_)
        if isinstance(request.start, StartActor):
            self._node.worker_table.dead.add(pending_row(request.start), exit_)
        request.first = None  # closes the connection: the callers ask, and are told the reason
        if request.answer is not None:
            request.answer(WorkerDiedError(f"{request.what} could not be started: {reason}"))
        for answer in request.inquiries or ():
            answer(exit_)

    # granting

    def serve(self) -> None:
        """Grant what can be granted now; called after each turn of the loop."""
        if not self._changed:
            return
        self._changed = False
        line = self.line
        by_key = {request.waiting.key: request for request in line}
        granted = serve(
            [request.waiting for request in line],
            self._ledger,
            lambda waiting: self._grant(by_key[waiting.key]),
        )
        done = {waiting.key for waiting in granted}
        done.update(key for key, request in by_key.items() if key not in done and self._pass_on(request))
        self._queue = [request for request in self._queue if request.waiting.key not in done]
        for request in (by_key[key] for key in done):
            if request.answer is not None:
                worker = self._node.worker_table.worker(request.waiting.key)
                request.answer(worker is not None and self.patience.lent_out(worker))
        if self.line:
            self.patience.reclaim()
            self.patience.explain_later()

    def _pass_on(self, request: Request) -> bool:
        """Grant a waiting worker one process for what it lends itself, though nothing is free.

        Others may hold it without need, and to ask for that back takes time. So what waits for a task
        does not wait for its resources as well.
        """
        lender = self._node.worker_table.by_serial(request.client)
        if (
            lender is None
            or lender.lent is None
            or lender.passed_on
            or not isinstance(request.start, RequestLease)
        ):
            return False
        wanted = Allocation(units(request.start.placement.resources))
        if lender.ledger_group is not None or request.waiting.group is not None:
            return False
        if any(amount > lender.lent.amounts.get(name, 0) for name, amount in wanted.amounts.items()):
            return False
        lender.passed_on = True
        self._ledger.retake(wanted)
        self._start_or_reuse(request, wanted, None)
        return True

    def _grant(self, request: Request) -> list[str] | None:
        """Carry `request` out; returns the names of what it lacks, or None if it was granted."""
        if request.start is None:
            lacking = self.groups.grant(request.waiting.key)
            self._changed = self._changed or lacking is None  # what waits for this group comes next
            return lacking
        placement = request.start.placement
        taken = self.groups.take(placement)
        if taken is None:
            return self._ledger.lacking(placement.resources)
        self._start_or_reuse(request, *taken)
        return None

    def _start_or_reuse(
        self, request: Request, allocation: Allocation, where: tuple[int, int] | None
    ) -> None:
        if self._reuse(request, allocation, where) is None:
            self._start(request, allocation, where)

    def _reuse(
        self, request: Request, allocation: Allocation, where: tuple[int, int] | None
    ) -> WorkerRecord | None:
        """An idle worker of the same make, given to a task."""
        if not isinstance(request.start, RequestLease) or allocation.gpus or request.first is None:
            return None
        for worker in reversed(self._idle):  # the last one used is still in the CPU's caches
            if _suits(worker, request.start) and not worker.control.closed:
                self._idle.remove(worker)
                self._unused = min(self._unused, len(self._idle))
                worker.allocation, worker.ledger_group, worker.owner = allocation, where, request.client
                self._node.worker_table.rename(worker, request.start.worker_id)
                # If it dies just now, its caller finds the connection closed, and is told by the new id.
                try_send(worker.control, NOTICE, 0, packed(Connect(), [request.first]))
                return worker
        return None

    def _start(self, request: Request, allocation: Allocation, where: tuple[int, int] | None) -> None:
        message = request.start
        if message is None or request.first is None:
            raise TypeError(f"a request without a process cannot be started: {request.what}")
        placement = message.placement
        bundles: Sequence[Bundle] = ()
        group: PlacementGroupId | None = None
        if where is not None:
            bundles = self.groups[where[0]].bundles
            captures = placement.group is not None and placement.group.capture
            group = PlacementGroupId(group=where[0], bundle=where[1], capture=captures)

        cpus = allocation.amounts.get("CPU", 0) / QUANTUM
        gpus = {index: share / QUANTUM for index, share in sorted(allocation.gpus.items())}
        names = [gpu_name(index, self._visible) for index in gpus]
        # Another worker's surroundings hold the session's already, unless it was started with others.
        session = self._spec if request.client == DRIVER else None
        spec = WorkerSpec(
            worker_id=message.worker_id,
            serial=self._node.worker_table.next_serial(),
            name=message.name,
            is_actor=isinstance(message, StartActor),
            cpus=cpus,
            gpus=gpus,
            visible_gpus=names,
            totals=self._totals,
            group=group,
            group_bundles=bundles,
            env={**session.environment, **placement.env} if session else placement.env,
            cwd=placement.cwd or (session and session.working_dir) or message.surroundings.cwd,
            surroundings=message.surroundings,
            resources=placement.resources,
            namespace=self._spec.namespace,
        )
        registration: Registration | None = None
        if isinstance(message, StartActor):
            registration = message.registration
            spec = spec._replace(
                conduct=message.conduct,
                class_name=message.class_name,
                actor_name=(registration.name if registration else None) or "",
            )
        try:
            self._node.worker_table.start(
                spec,
                request.first,
                owner=request.owner,
                placement=placement,
                allocation=allocation,
                ledger_group=where,
                registration=registration,
                class_name=spec.class_name,
            )
        except OSError as error:  # no descriptor left
            ledger = self.groups.ledger_of(where)
            if ledger is not None:
                ledger.give_back(allocation)
            self._refuse(request, str(error))
            request.answer = None

    # giving back

    def return_lease(self, worker_id: int, retire: bool) -> None:
        """Free what a leased worker holds, and keep the process for the next task like its last."""
        worker = self._node.worker_table.worker(worker_id)
        if worker is None:
            return
        # One that had a GPU still has its context there, and the next holder may be another.
        unused_gpus = not (worker.allocation and worker.allocation.gpus)
        reusable = not (retire or worker.ending) and worker.ledger_group is None and unused_gpus
        self.release(worker)
        worker.owner = self._node.worker_table.heir(worker)
        self.patience.unneeded(worker.serial)
        if reusable:
            self._idle.append(worker)
            self._end_surplus_later()
        else:
            try_send(worker.control, NOTICE, 0, packed(EndWorker()))

    def _end_surplus_later(self) -> None:
        """End idle workers beyond one for each CPU, unless they are needed again within moments."""
        if len(self._idle) > self._most_idle() and not self._will_end_surplus:
            self._will_end_surplus = True
            self._unused = len(self._idle)
            self._node.after(_SURPLUS_S, self._end_surplus)

    def _most_idle(self) -> int:
        return max(1, int(self._totals.get("CPU", 1)))

    def _end_surplus(self) -> None:
        self._will_end_surplus = False
        # The first ones were not needed since the last look, as the last are taken first.
        for worker in self._idle[: max(0, min(self._unused, len(self._idle) - self._most_idle()))]:
            self._idle.remove(worker)
            try_send(worker.control, NOTICE, 0, packed(EndWorker()))
        self._end_surplus_later()

    def ended(self, worker: WorkerRecord) -> None:
        """Free what a dead worker held."""
        if worker in self._idle:
            self._idle.remove(worker)
        self.release(worker)

    def bequeath(self, worker: WorkerRecord, heir: int) -> None:
        """Hand on what a worker has asked for that outlives it in order: actors, and groups of a task."""
        for request in list(self._queue):
            if request.client == worker.serial and isinstance(request.start, StartActor):
                request.client = heir
                if not request.ready:  # nobody is left who would say that its arguments have come
                    self._get_in_line(request)
        if not worker.is_actor:
            self.groups.owner_changes(worker.serial, heir)

    def forsake(self, owner: int, reason: str) -> None:
        """Give up what a process asked for that has ended: its requests, and its groups."""
        for request in [request for request in self._queue if request.owner == owner]:
            self._queue.remove(request)
            self._refuse(request, reason, requested=True)
        for request in [request for request in self._queue if request.client == owner and not request.ready]:
            self._get_in_line(request)  # a detached actor, whose constructor is told what became of them
        self.groups.owner_ended(owner)

    def release(self, worker: WorkerRecord) -> None:
        """Free what a worker holds."""
        self.patience.returned(worker)
        held = worker.allocation
        worker.allocation = worker.lent = None
        if held is not None:
            ledger = self.groups.ledger_of(worker.ledger_group)
            if ledger is not None:
                ledger.give_back(held)
        self._changed = True

    def blocked(self, serial: int, waiting: bool) -> None:
        """Lend the CPUs of a worker that waits for others, or take them back."""
        worker = self._node.worker_table.by_serial(serial)
        if worker is None or worker.allocation is None:
            return
        ledger = self.groups.ledger_of(worker.ledger_group)
        if ledger is None:
            return
        if waiting and worker.lent is None:
            worker.passed_on = False
            worker.lent = Allocation({"CPU": worker.allocation.amounts.get("CPU", 0)}, {})
            rest = {name: amount for name, amount in worker.allocation.amounts.items() if name != "CPU"}
            worker.allocation = Allocation(rest, worker.allocation.gpus)
            ledger.give_back(worker.lent)
            self._changed = True
        elif not waiting and worker.lent is not None:
            # At once, though somebody may have it: for that moment more runs than there are CPUs for.
            ledger.retake(worker.lent)
            amounts = {**worker.allocation.amounts, **worker.lent.amounts}
            worker.allocation, worker.lent = Allocation(amounts, worker.allocation.gpus), None
            if worker.ledger_group is None and ledger.free.get("CPU", 0) < 0:
                self.patience.relieve_later()

    @property
    def machine(self) -> Ledger:
        """What is free of the machine."""
        return self._ledger

    def count_available(self, client: int, answer: Callable[[Any], None]) -> None:
        """Answer with what is free, once leases that others keep without need are returned."""
        self.patience.when_returned(client, lambda: answer(self.available()))

    def available(self) -> dict[str, float]:
        """What is free."""
        return self._ledger.amounts()
