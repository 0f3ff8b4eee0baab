"""Placement groups of the node. Each bundle has a ledger, which records the bundle's free resources."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.runtime.local.node.records import (
    DRIVER,
    NOBODY,
    Answer,
    Kill,
    PlacementGroupRecord,
    Request,
    RequestQueue,
    WorkerTable,
)
from trainkit.runtime.local.wire.messages import Reserve
from trainkit.runtime.placement import Allocation, Hold, Ledger, is_in_reach
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.specs import Placement


class PlacementGroups:
    """Living placement groups of the session.

    Args:
        machine: ledger (record of the free resources) of the machine, from which bundles are taken.
        queue: the waiting requests.
        table: the living workers.
        kill: `Supervisor.kill`.
    """

    def __init__(self, machine: Ledger, queue: RequestQueue, table: WorkerTable, kill: Kill) -> None:
        self.machine = machine
        self._queue = queue
        self._table = table
        self._kill = kill
        self._living: dict[int, PlacementGroupRecord] = {}

    def __contains__(self, group_id: int) -> bool:
        return group_id in self._living

    def __getitem__(self, group_id: int) -> PlacementGroupRecord:
        return self._living[group_id]

    def living(self) -> list[tuple[int, PlacementGroupRecord]]:
        """Return all reserved and waiting groups with their ids, in the order of their requests."""
        return list(self._living.items())

    def reserve(self, client: int, message: Reserve, answer: Answer) -> None:
        """Queue a request for a group, and answer at once. The answer is an error if the name is taken."""
        if message.name and self._named(message.name) is not None:
            answer(
                ConfigError(f"the placement group {message.name!r} exists: remove it, or choose another name")
            )
            return
        owner = NOBODY if message.detached else client
        group = PlacementGroupRecord(message.bundles, owner, None, [], [], message.strategy, message.name)
        self._living[message.group_id] = group
        self._queue.add(
            Request(message.group_id, message.bundles, nested=client != DRIVER, what=group.what, client=owner)
        )
        answer(None)

    def find(self, name: str, answer: Answer) -> None:
        """Answer with the id and the bundles of the group named `name`."""
        group_id = self._named(name)
        if group_id is None:
            names = sorted(group.name for group in self._living.values() if group.name)
            answer(
                ConfigError(f"placement group {name!r} does not exist; others: {', '.join(names) or 'none'}")
            )
        else:
            answer((group_id, [dict(bundle) for bundle in self._living[group_id].bundles]))

    def _named(self, name: str) -> int | None:
        return next((gid for gid, group in self._living.items() if group.name == name), None)

    def await_group(self, group_id: int, answer: Answer) -> None:
        """Answer when the group is reserved, or with an error when the group is removed."""
        group = self._living.get(group_id)
        if group is None:
            answer(ConfigError("this placement group was removed"))
        elif group.held is not None:
            answer(None)
        else:
            group.waiting.append(answer)

    def grant(self, group_id: int) -> list[str] | None:
        """Reserve all bundles of a waiting group.

        Return None if all bundles were reserved, else the names of the lacking resources.
        """
        group = self._living[group_id]
        held = self.machine.take_all(group.bundles)
        if held is None:
            return self.machine.lacking_for_all(group.bundles)
        group.held, group.held_s = held, SYSTEM.monotonic()
        group.ledgers = [Ledger.of_bundle(allocation) for allocation in held]
        for answer in group.waiting:
            answer(None)
        group.waiting.clear()
        return None

    def take(self, placement: Placement) -> tuple[Allocation, tuple[int, int] | None] | None:
        """Allocate resources for `placement`.

        Return the allocation with its group id and bundle index, or None if the resources are not free.
        """
        if placement.group is None:
            allocation = self.machine.take(placement.resources)
            return None if allocation is None else (allocation, None)
        group = self._living[placement.group.group]
        for index, ledger in enumerate(group.ledgers):
            if placement.group.bundle in (None, index):
                allocation = ledger.take(placement.resources)
                if allocation is not None:
                    return allocation, (placement.group.group, index)
        return None

    def ledger_of(self, where: tuple[int, int] | None) -> Ledger | None:
        """Return the ledger of a bundle, given by group id and index, or the machine's
        ledger if `where` is None.

        Return None for a removed group.
        """
        if where is None:
            return self.machine
        group = self._living.get(where[0])
        return None if group is None else group.ledgers[where[1]]

    def machine_is_overdrawn(self) -> bool:
        """Return True if more CPUs are in use than exist, as CPUs lent by waiting workers were taken back."""
        return self.machine.is_overdrawn("CPU")

    def that_hold_up(self, line: Sequence[Request], leases_end: bool = False) -> list[Request]:
        """Return the requests that block later requests, and also all requests for the same resources as
        these requests.
        """
        oldest = {request.kind: request for request in reversed(line)}
        kinds = {kind for kind, request in oldest.items() if self.holds_up(request, leases_end)}
        return [request for request in line if request.kind in kinds]

    def holds_up(self, request: Request, leases_end: bool = False) -> bool:
        """Return True if a waiting request blocks later requests. A request blocks later requests if the
        resources that it lacks will be free soon.

        Args:
            request: the waiting request.
            leases_end: True to assume that all leases end soon, however long they have lasted.
        """
        group = None if request.group is None else self._living[request.group]
        rooms = [(None, self.machine)] if group is None else list(enumerate(group.ledgers))
        places = [
            (ledger, self._holds(None if index is None else (request.group, index), leases_end))
            for index, ledger in rooms
            if request.bundle in (None, index)
        ]
        return is_in_reach(request, places, SYSTEM.monotonic())

    def _holds(self, where: tuple[int | None, int] | None, leases_end: bool) -> list[Hold]:
        """Return the allocations from a bundle, or from the machine if `where` is None, with the state of the
        workers that use the allocations.
        """
        holds = [
            Hold(
                allocation=worker.allocation,
                since=math.inf if leases_end and not worker.is_actor else worker.held_s,
                is_task=not worker.is_actor,
                waits=worker.lent is not None,
            )
            for worker in self._table.all()
            if worker.allocation is not None and worker.ledger_group == where
        ]
        if where is None:
            for group in self._living.values():
                holds += [Hold(allocation=held, since=group.held_s) for held in group.held or ()]
        return holds

    def owner_ended(self, serial: int) -> None:
        """Release the groups of a process that has ended."""
        for group_id in [gid for gid, group in self._living.items() if group.owner == serial]:
            self.release(group_id, lambda _: None)

    def has_detached(self) -> bool:
        """Return whether a detached group exists."""
        return any(group.owner == NOBODY for group in self._living.values())

    def owner_changes(self, serial: int, heir: int) -> None:
        """Make process `heir` the owner of the groups of process `serial`."""
        for group in self._living.values():
            if group.owner == serial:
                group.owner = heir

    def release(self, group_id: int, answer: Answer) -> None:
        """Kill the workers of a group.

        When the workers are dead, free the group's bundles and call `answer`.
        """
        group = self._living.pop(group_id, None)
        if group is None:
            answer(None)
            return
        self._queue.dismiss(group_id)
        for waiting in group.waiting:
            waiting(ConfigError("this placement group was removed before it was reserved"))
        members = {
            worker.worker_id
            for worker in self._table.all()
            if worker.ledger_group is not None and worker.ledger_group[0] == group_id
        }

        def ended(worker_id: int, _: ExitRecord | None = None) -> None:
            members.discard(worker_id)
            if not members:
                for allocation in group.held or ():
                    self.machine.give_back(allocation)
                self._queue.changed = True
                answer(None)

        if not members:
            ended(0)
        for worker_id in list(members):
            self._kill(worker_id, "its placement group was removed", functools.partial(ended, worker_id))
