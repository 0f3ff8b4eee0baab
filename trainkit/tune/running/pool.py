"""Processes of ended trials that wait for the next: which may be taken, and which must go; pure.

A waiting process holds what its trial reserved. So it goes when a new one needs that, and when it has
waited for long: others than trials may want it too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainkit.tune.control.capacity import Ledger
from trainkit.tune.placement import PlacementGroupFactory

IDLE_S = 1.0
"""How long a process waits for a trial that wants it."""

P = TypeVar("P")


@dataclass(slots=True)
class _Idle(Generic[P]):
    process: P
    kind: Hashable
    since: float


class ProcessPool(Generic[P]):
    """Counts all processes of trials, and keeps those that wait.

    Args:
        existing: amounts by resource name that all processes share.
    """

    def __init__(self, existing: Mapping[str, float]) -> None:
        self._ledger = Ledger(existing)
        self._idle: dict[str, _Idle[P]] = {}

    def __len__(self) -> int:
        """How many processes wait."""
        return len(self._idle)

    def take(self, request: PlacementGroupFactory) -> tuple[str, P] | None:
        """Return a waiting process that holds just this, by its name, the latest to come; None: none does."""
        kind = kind_of(request)
        name = next((name for name in reversed(self._idle) if self._idle[name].kind == kind), None)
        return None if name is None else (name, self._idle.pop(name).process)

    def admit(self, name: str, request: PlacementGroupFactory) -> list[P]:
        """Count a new process in; return those that must go for it, the longest waiting first."""
        going = []
        while not self._ledger.reserve(name, request) and self._idle:
            first = next(iter(self._idle))
            going.append(self._idle.pop(first).process)
            self._ledger.release(first)
        return going

    def keep(self, name: str, process: P, request: PlacementGroupFactory, now: float) -> None:
        """Let a process wait for another trial."""
        self._idle[name] = _Idle(process, kind_of(request), now)

    def forget(self, name: str) -> None:
        """A process is gone, or going."""
        self._idle.pop(name, None)
        self._ledger.release(name)

    def overdue(self, now: float) -> list[P]:
        """Forget and return the processes that have waited for long."""
        late = [name for name, idle in self._idle.items() if now >= idle.since + IDLE_S]
        return self._forget_all(late)

    def take_all(self) -> list[P]:
        """Forget and return all that wait."""
        return self._forget_all(list(self._idle))

    @property
    def deadline(self) -> float:
        """When the next of them has waited for long; infinity: none waits."""
        first = next(iter(self._idle.values()), None)  # they came one after the other
        return math.inf if first is None else first.since + IDLE_S

    def _forget_all(self, names: list[str]) -> list[P]:
        processes = [self._idle[name].process for name in names]
        for name in names:
            self.forget(name)
        return processes


def kind_of(request: PlacementGroupFactory) -> Hashable:
    """Equal for requests that the same process meets."""
    return request.strategy, tuple(tuple(sorted(bundle.items())) for bundle in request.bundles)
