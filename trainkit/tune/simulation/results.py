"""Results of a simulation: a ResultGrid, the timeline and the log of events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Failure, SavedCheckpoint, Trial
from trainkit.tune.results.result_grid import MemoryGrid
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.space.encoding import encode_config
from trainkit.tune.store.memory import MemoryStore

_LEFT_OUT = "result"
"""Field of a report that repeats the others."""


def line_of(record: ev.Record) -> str:
    """Return `record` as a line of JSON: its kind, then its fields by name."""
    fields: dict[str, Any] = {
        name: getattr(record, name) for name in type(record).__match_args__ if name != _LEFT_OUT
    }
    if isinstance(record, ev.TrialAdded):
        fields["config"] = encode_config(record.trial.suggested)
    return json.dumps([type(record).__name__, fields], default=_plain)


def _plain(value: Any) -> Any:
    match value:
        case Trial():
            return value.trial_id
        case Decision():
            return [value.verdict, dict(value.reason), [donor.trial_id for donor in value.donors]]
        case Failure():
            return [value.kind, value.message]
        case SavedCheckpoint():
            return [value.number, value.iteration]
    return repr(value)


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
