"""Pool of idle processes of ended trials, in which other trials can run."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.resources import PlacementGroupFactory

IDLE_S = 1.0
"""Seconds that an idle process waits for another trial."""


P = TypeVar("P")


@dataclass(slots=True)
class _Idle(Generic[P]):
    process: P
    kind: Hashable
    since: float


class ProcessPool(Generic[P]):
    """Idle processes of trials, with a resource ledger of all processes.

    Args:
        existing: total amount of each resource, by name, for all processes together.
    """

    def __init__(self, existing: Mapping[str, float]) -> None:
        self._ledger = ResourceLedger(existing)
        self._idle: dict[str, _Idle[P]] = {}

    def __len__(self) -> int:
        """Return the number of idle processes."""
        return len(self._idle)

    def take(self, request: PlacementGroupFactory) -> P | None:
        """Remove and return the latest idle process with the requested resources, or None."""
        kind = kind_of(request)
        name = next((name for name in reversed(self._idle) if self._idle[name].kind == kind), None)
        return None if name is None else self._idle.pop(name).process

    def admit(self, name: str, request: PlacementGroupFactory) -> list[P]:
        """Reserve resources for a new process; return the idle processes that must end to free these
        resources, oldest first.
        """
        going = []
        while not self._ledger.reserve(name, request) and self._idle:
            first = next(iter(self._idle))
            going.append(self._idle.pop(first).process)
            self._ledger.release(first)
        return going

    def keep(self, name: str, process: P, request: PlacementGroupFactory, now: float) -> None:
        """Keep a process idle for another trial."""
        self._idle[name] = _Idle(process, kind_of(request), now)

    def forget(self, name: str) -> None:
        """Release the resources of a process that has ended or will end."""
        self._idle.pop(name, None)
        self._ledger.release(name)

    def overdue(self, now: float) -> list[P]:
        """Remove and return the processes that have been idle for IDLE_S, and release their resources."""
        late = [name for name, idle in self._idle.items() if now >= idle.since + IDLE_S]
        return self._forget_all(late)

    def take_all(self) -> list[P]:
        """Remove and return all idle processes, and release their resources."""
        return self._forget_all(list(self._idle))

    @property
    def deadline(self) -> float:
        """Time at which the next process has been idle for IDLE_S; infinity without an idle process."""
        # The dictionary is ordered by time, so its first process has been idle for the longest time.
        first = next(iter(self._idle.values()), None)
        return math.inf if first is None else first.since + IDLE_S

    def _forget_all(self, names: list[str]) -> list[P]:
        processes = [self._idle[name].process for name in names]
        for name in names:
            self.forget(name)
        return processes


def kind_of(request: PlacementGroupFactory) -> Hashable:
    """Return a key that is equal for requests that the same process can serve."""
    return request.strategy, tuple(tuple(sorted(bundle.items())) for bundle in request.bundles)
