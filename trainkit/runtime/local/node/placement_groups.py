"""Placement groups of the node: all bundles reserved together or none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.runtime.local.node.records import DRIVER, NOBODY, PlacementGroupRecord, Request
from trainkit.runtime.local.wire.messages import Reserve
from trainkit.runtime.placement import Allocation, Demand, Ledger
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.specs import Placement

if TYPE_CHECKING:
    from trainkit.runtime.local.node.node import Node


class Groups:
    """The living placement groups of the session.

    Args:
        node: whose loop it lives in.
        machine: what the bundles are taken from.
    """

    def __init__(self, node: Node, machine: Ledger) -> None:
        self._node = node
        self._machine = machine
        self._living: dict[int, PlacementGroupRecord] = {}

    def __contains__(self, group_id: int) -> bool:
        return group_id in self._living

    def __getitem__(self, group_id: int) -> PlacementGroupRecord:
        return self._living[group_id]

    def living(self) -> list[tuple[int, PlacementGroupRecord]]:
        """All groups with their ids, reserved or waiting, in the order in which they were asked for."""
        return list(self._living.items())

    def reserve(self, client: int, message: Reserve, answer: Callable[[Any], None]) -> None:
        """Queue a request for bundles; `answer` is told at once whether the name is free."""
        if message.name and self._named(message.name) is not None:
            answer(
                ConfigError(
                    f"there is a placement group {message.name!r} already; remove it, or give another name"
                )
            )
            return
        owner = NOBODY if message.detached else client
        group = PlacementGroupRecord(message.bundles, owner, None, [], [], message.strategy, message.name)
        self._living[message.group_id] = group
        waiting = Demand(message.group_id, message.bundles, None, client != DRIVER)
        self._node.stores.enqueue(Request(waiting, owner, SYSTEM.monotonic(), group.what))
        answer(None)

    def find(self, name: str, answer: Callable[[Any], None]) -> None:
        """Call `answer` with the id and the bundles of the group of that name."""
        group_id = self._named(name)
        if group_id is None:
            names = sorted(group.name for group in self._living.values() if group.name)
            answer(
                ConfigError(f"there is no placement group {name!r}; there are {', '.join(names) or 'none'}")
            )
        else:
            answer((group_id, [dict(bundle) for bundle in self._living[group_id].bundles]))

    def _named(self, name: str) -> int | None:
        return next((gid for gid, group in self._living.items() if group.name == name), None)

    def await_group(self, group_id: int, answer: Callable[[Any], None]) -> None:
        """Call `answer` once the group is reserved, or with an error once it can't be any more."""
        group = self._living.get(group_id)
        if group is None:
            answer(ConfigError("this placement group was removed"))
        elif group.held is not None:
            answer(None)
        else:
            group.waiting.append(answer)

    def grant(self, group_id: int) -> list[str] | None:
        """Hold all bundles of a waiting group; returns the names of what it lacks, or None if it has them."""
        group = self._living[group_id]
        held = self._machine.take_all(group.bundles)
        if held is None:
            return self._machine.lacking_for_all(group.bundles)
        group.held = held
        group.ledgers = [Ledger.of_bundle(allocation) for allocation in held]
        for answer in group.waiting:
            answer(None)
        group.waiting.clear()
        return None

    def take(self, placement: Placement) -> tuple[Allocation, tuple[int, int] | None] | None:
        """Hold what `placement` asks for, and say in which group and bundle; None if it does not fit."""
        if placement.group is None:
            allocation = self._machine.take(placement.resources)
            return None if allocation is None else (allocation, None)
        group = self._living[placement.group.group]
        for index, ledger in enumerate(group.ledgers):
            if placement.group.bundle in (None, index):
                allocation = ledger.take(placement.resources)
                if allocation is not None:
                    return allocation, (placement.group.group, index)
        return None

    def ledger_of(self, where: tuple[int, int] | None) -> Ledger | None:
        """Of a group's bundle, None if the group was removed; of the machine for None."""
        if where is None:
            return self._machine
        group = self._living.get(where[0])
        return None if group is None else group.ledgers[where[1]]

    def owner_ended(self, serial: int) -> None:
        """Release what a process that has ended had reserved."""
        for group_id in [gid for gid, group in self._living.items() if group.owner == serial]:
            self.release(group_id, lambda _: None)

    def has_detached(self) -> bool:
        """Return whether there is a group that outlives its program."""
        return any(group.owner == NOBODY for group in self._living.values())

    def owner_changes(self, serial: int, heir: int) -> None:
        """Hand on what a process had reserved."""
        for group in self._living.values():
            if group.owner == serial:
                group.owner = heir

    def release(self, group_id: int, answer: Callable[[Any], None]) -> None:
        """End what runs in a group; its bundles are free, and `answer` called, once that is dead."""
        group = self._living.pop(group_id, None)
        if group is None:
            answer(None)
            return
        self._node.stores.dismiss(group_id)
        for waiting in group.waiting:
            waiting(ConfigError("this placement group was removed before it was reserved"))
        members = {
            worker.worker_id
            for worker in self._node.worker_table.workers()
            if worker.ledger_group is not None and worker.ledger_group[0] == group_id
        }

        def ended(worker_id: int, _: ExitRecord | None = None) -> None:
            members.discard(worker_id)
            if not members:
                for allocation in group.held or ():
                    self._machine.give_back(allocation)
                self._node.stores.changed()
                answer(None)

        if not members:
            ended(0)
        for worker_id in list(members):
            then = functools.partial(ended, worker_id)
            self._node.worker_table.kill(worker_id, "its placement group was removed", then)
