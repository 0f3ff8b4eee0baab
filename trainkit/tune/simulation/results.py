"""What came out of a simulation: a `ResultGrid`, with who worked when, and the log of all events."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property

from trainkit.tune.control import events as ev
from trainkit.tune.outcome.in_memory import MemoryGrid
from trainkit.tune.simulation.log import line_of
from trainkit.tune.storing.memory import MemoryStore


class Simulation(MemoryGrid):
    """The results of a simulated experiment.

    Args:
        store: what holds the records.
        metric, mode: what "best" means where a method is given none.
        workers: how many there were.
        ended_s: when it ended, in seconds of its clock, which begins at 0.
        errors: what the objective raised, by trial and attempt.

    Attributes:
        workers, ended_s: the same.
    """

    def __init__(
        self,
        store: MemoryStore,
        metric: str | None,
        mode: str | None,
        *,
        workers: int,
        ended_s: float,
        errors: Mapping[tuple[str, int], BaseException],
    ) -> None:
        super().__init__(store, metric, mode, errors)
        self.workers = workers
        self.ended_s = ended_s

    @property
    def work(self) -> int:
        """How many iterations all trials together have reported; those that were run again count again."""
        return sum(isinstance(record, ev.ResultAdded) for record in self._store.records)

    @property
    def busy_s(self) -> float:
        """How long all workers together had something to do, in seconds."""
        return sum(
            (self.ended_s if span.ended is None else span.ended) - span.started for span in self.timeline
        )

    @property
    def utilisation(self) -> float:
        """The part of their time that workers were busy."""
        return self.busy_s / (self.workers * self.ended_s) if self.ended_s else 0.0

    def log(self) -> Iterator[str]:
        """Everything that happened, in order, a line of JSON each: the same for the same seed."""
        return map(line_of, self._store.records)

    @cached_property
    def log_hash(self) -> str:
        """Of the log: whether two simulations went the same way."""
        digest = hashlib.sha256()
        for line in self.log():
            digest.update(line.encode())
            digest.update(b"\n")
        return digest.hexdigest()
