"""Who gets what: the ledger, the queue of requests, groups of bundles, and the pool of idle workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, WorkerDiedError
from trainkit.resources import QUANTUM, Bundle, describe, total
from trainkit.runtime.local.channel import NOTICE, Descriptor
from trainkit.runtime.local.children import Worker
from trainkit.runtime.local.loop import try_send
from trainkit.runtime.local.messages import (
    Connect,
    Exit,
    Lease,
    Reclaim,
    StartActor,
    Waits,
    WorkerSpec,
    packed,
)
from trainkit.runtime.local.requests import Group, Request
from trainkit.runtime.placement import Allocation, Ledger, Waiting, blocked_by, order
from trainkit.runtime.specs import Placement, PlacementGroupId, SessionSpec
from trainkit.runtime.supervise import Exit as ExitRecord

if TYPE_CHECKING:
    from trainkit.runtime.local.node import Node

_DRIVER = 1
_PATIENCE_S = 10.0
"""After this long a waiting request is explained to who made it."""


class Quartermaster:
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
        self._groups: dict[int, Group] = {}
        self._idle: list[Worker] = []
        self._changed = False
        self._will_explain = False

    # requests

    def start_actor(self, client: int, message: StartActor, first: Descriptor) -> None:
        self._enqueue_process(client, message, first, None)

    def lease(self, client: int, message: Lease, first: Descriptor, answer: Callable[[Any], None]) -> None:
        self._enqueue_process(client, message, first, answer)

    def _enqueue_process(
        self,
        client: int,
        message: StartActor | Lease,
        first: Descriptor,
        answer: Callable[[Any], None] | None,
    ) -> None:
        placement = message.placement
        group = None if placement.group is None else placement.group.group
        waiting = Waiting(message.worker_id, [placement.resources], group, client != _DRIVER)
        request = Request(waiting, client, SYSTEM.monotonic(), message.name, message, first, answer, [])
        if group is not None and group not in self._groups:
            self._refuse(request, "its placement group was removed")
            return
        self._enqueue(request)

    def reserve(self, client: int, group_id: int, bundles: Sequence[Bundle]) -> None:
        self._groups[group_id] = Group(bundles, client, None, [], [])
        waiting = Waiting(group_id, bundles, None, client != _DRIVER)
        self._enqueue(
            Request(
                waiting,
                client,
                SYSTEM.monotonic(),
                f"a group of {len(bundles)} bundle{'s' * (len(bundles) != 1)}",
            )
        )

    def _enqueue(self, request: Request) -> None:
        self._queue.append(request)
        self._changed = True

    def await_group(self, group_id: int, answer: Callable[[Any], None]) -> None:
        group = self._groups.get(group_id)
        if group is None:
            answer(ConfigError("this placement group was removed"))
        elif group.held is not None:
            answer(None)
        else:
            group.waiting.append(answer)

    def withdraw(self, worker_id: int) -> None:
        """Take a request back whose process was killed before it was started."""
        for request in self._queue:
            if request.waiting.key == worker_id and request.start is not None:
                self._queue.remove(request)
                self._refuse(request, "it was killed before it was started", requested=True)
                return

    def inquire_queued(self, worker_id: int, answer: Callable[[ExitRecord], None]) -> bool:
        """Answer once the request for that worker is refused; False if none waits."""
        for request in self._queue:
            if request.waiting.key == worker_id and request.inquiries is not None:
                request.inquiries.append(answer)
                return True
        return False

    def _refuse(self, request: Request, reason: str, requested: bool = False) -> None:
        exit_ = ExitRecord(reason=reason, requested=requested)
        self._node.census.never_started(request.waiting.key, exit_)
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
        short: set[str] = set()
        by_key = {request.waiting.key: request for request in self._queue}
        for waiting in order([request.waiting for request in self._queue]):
            if waiting.group is None and blocked_by(short, waiting.bundles):
                continue
            request = by_key[waiting.key]
            lacking = self._grant(request)
            if lacking is None:
                self._queue.remove(request)
            elif waiting.group is None:
                short.update(lacking)
        if self._queue:
            if short:
                self._reclaim()
            self._explain_later()

    def _grant(self, request: Request) -> list[str] | None:
        """Carry `request` out; returns the names of what it lacks, or None if it was granted."""
        if request.start is None:
            group = self._groups[request.waiting.key]
            held = self._ledger.take_all(group.bundles)
            if held is None:
                return self._ledger.lacking(total(group.bundles)) or sorted(total(group.bundles))
            group.held = held
            group.ledgers = [Ledger.of_bundle(allocation) for allocation in held]
            for answer in group.waiting:
                answer(None)
            group.waiting.clear()
            self._changed = True  # what waits for this group comes next
            return None
        placement = request.start.placement
        taken = self._take(placement)
        if taken is None:
            return self._ledger.lacking(placement.resources)
        allocation, where = taken
        worker = self._reuse(request, allocation, where)
        if worker is None:
            self._start(request, allocation, where)
        if request.answer is not None:
            request.answer(None)
        return None

    def _take(self, placement: Placement) -> tuple[Allocation, tuple[int, int] | None] | None:
        if placement.group is None:
            allocation = self._ledger.take(placement.resources)
            return None if allocation is None else (allocation, None)
        group = self._groups[placement.group.group]
        for index, ledger in enumerate(group.ledgers):
            if placement.group.bundle in (None, index):
                allocation = ledger.take(placement.resources)
                if allocation is not None:
                    return allocation, (placement.group.group, index)
        return None

    def _reuse(
        self, request: Request, allocation: Allocation, where: tuple[int, int] | None
    ) -> Worker | None:
        """An idle worker of the same make, given to a task."""
        if not isinstance(request.start, Lease) or allocation.gpus or request.first is None:
            return None
        make = (request.start.placement, request.start.surroundings)
        for worker in self._idle:
            if (worker.placement, worker.surroundings) == make and not worker.control.closed:
                self._idle.remove(worker)
                worker.allocation, worker.ledger_group, worker.owner = allocation, where, request.client
                self._node.census.rename(worker, request.start.worker_id)
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
            bundles = self._groups[where[0]].bundles
            group = PlacementGroupId(group=where[0], bundle=where[1])

        cpus = allocation.amounts.get("CPU", 0) / QUANTUM
        gpus = {index: share / QUANTUM for index, share in sorted(allocation.gpus.items())}
        # A GPU that was only declared has no name of its own: its index stands for it.
        names = [self._visible[index] if index < len(self._visible) else str(index) for index in gpus]
        spec = WorkerSpec(
            worker_id=message.worker_id,
            serial=self._node.census.next_serial(),
            name=message.name,
            is_actor=isinstance(message, StartActor),
            cpus=cpus,
            gpus=gpus,
            visible_gpus=names,
            totals=self._totals,
            group=group,
            group_bundles=bundles,
            env={**self._spec.environment, **placement.env},
            cwd=placement.cwd or self._spec.working_dir or message.surroundings.cwd,
            surroundings=message.surroundings,
        )
        try:
            self._node.census.start(
                spec,
                request.first,
                owner=request.owner,
                placement=placement,
                allocation=allocation,
                ledger_group=where,
            )
        except OSError as error:  # no descriptor left
            ledger = self._ledger_of(where)
            if ledger is not None:
                ledger.give_back(allocation)
            self._refuse(request, str(error))

    # giving back

    def return_lease(self, worker_id: int) -> None:
        """Free what a leased worker holds, and keep the process for the next task like its last."""
        worker = self._node.census.worker(worker_id)
        if worker is None:
            return
        # One that had a GPU still has its context there, and the next holder may be another.
        reusable = worker.ledger_group is None and not (worker.allocation and worker.allocation.gpus)
        self._free(worker)
        if reusable and len(self._idle) < max(1, int(self._totals.get("CPU", 1))):
            self._idle.append(worker)
            worker.owner = _DRIVER
        else:
            try_send(worker.control, NOTICE, 0, packed(Exit()))

    def ended(self, worker: Worker) -> None:
        """Free what a dead worker held."""
        if worker in self._idle:
            self._idle.remove(worker)
        self._free(worker)
        self.forsake(worker.serial, f"{worker.name}, which asked for it, has ended")

    def forsake(self, owner: int, reason: str) -> None:
        """Give up what a process asked for that has ended: its requests, and its groups."""
        for request in [request for request in self._queue if request.owner == owner]:
            self._queue.remove(request)
            self._refuse(request, reason, requested=True)
        for group_id in [gid for gid, group in self._groups.items() if group.owner == owner]:
            self.release(group_id, lambda _: None)

    def _free(self, worker: Worker) -> None:
        held = worker.allocation
        worker.allocation = worker.lent = None
        if held is not None:
            ledger = self._ledger_of(worker.ledger_group)
            if ledger is not None:
                ledger.give_back(held)
        self._changed = True

    def _ledger_of(self, where: tuple[int, int] | None) -> Ledger | None:
        if where is None:
            return self._ledger
        group = self._groups.get(where[0])
        return None if group is None else group.ledgers[where[1]]

    def release(self, group_id: int, answer: Callable[[Any], None]) -> None:
        """End what runs in a group; its bundles are free, and `answer` called, once that is dead."""
        group = self._groups.pop(group_id, None)
        if group is None:
            answer(None)
            return
        for request in list(self._queue):
            if request.waiting.key == group_id:
                self._queue.remove(request)
            elif request.waiting.group == group_id:
                self._queue.remove(request)
                self._refuse(request, "its placement group was removed", requested=True)
        for waiting in group.waiting:
            waiting(ConfigError("this placement group was removed before it was reserved"))
        members = {
            worker.worker_id
            for worker in self._node.census.workers()
            if worker.ledger_group is not None and worker.ledger_group[0] == group_id
        }

        def ended(worker_id: int, _: ExitRecord | None = None) -> None:
            members.discard(worker_id)
            if not members:
                for allocation in group.held or ():
                    self._ledger.give_back(allocation)
                self._changed = True
                answer(None)

        if not members:
            ended(0)
        for worker_id in list(members):
            then = functools.partial(ended, worker_id)
            self._node.census.kill(worker_id, "its placement group was removed", then)

    def blocked(self, serial: int, waiting: bool) -> None:
        """Lend the CPUs of a worker that waits for others, or take them back."""
        worker = next((worker for worker in self._node.census.workers() if worker.serial == serial), None)
        if worker is None or worker.allocation is None:
            return
        ledger = self._ledger_of(worker.ledger_group)
        if ledger is None:
            return
        if waiting and worker.lent is None:
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

    def available(self) -> dict[str, float]:
        """What is free."""
        return self._ledger.amounts()

    # patience

    def _reclaim(self) -> None:
        for client in self._node.clients():
            self._node.notify(client, Reclaim())

    def _explain_later(self) -> None:
        waiting = [request.since for request in self._queue if not request.explained]
        if waiting and not self._will_explain:
            self._will_explain = True
            self._node.after(max(0.0, min(waiting) + _PATIENCE_S - SYSTEM.monotonic()), self._explain)

    def _explain(self) -> None:
        self._will_explain = False
        now = SYSTEM.monotonic()
        for request in self._queue:
            if not request.explained and now - request.since >= _PATIENCE_S:
                request.explained = True
                asked = describe(total(request.waiting.bundles))
                self._node.notify(
                    request.client,
                    Waits(
                        f"{request.what} has been waiting {_PATIENCE_S:g} s for {asked}; {self._holders()}"
                    ),
                )

        self._explain_later()

    def _holders(self) -> str:
        holders = [
            f"{worker.name} (pid {worker.pid}) holds {describe(worker.placement.resources)}"
            for worker in self._node.census.workers()
            if worker.allocation is not None and worker.placement.resources
        ]
        groups = [
            f"a group holds {describe(total(group.bundles))}" for group in self._groups.values() if group.held
        ]
        free = describe({name: amount for name, amount in self.available().items() if amount > 0})
        return f"free: {free}; " + "; ".join(holders + groups or ["nobody holds any"])
