"""Reads what happened in an experiment, in order, for people to look at; also while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainkit.tune.storing.history import ExperimentReader
from trainkit.tune.storing.log import Report
from trainkit.tune.values import decode


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, with its place in the order of all that happened, and when, in seconds since 1970."""

    seq: int
    time: float
    kind: str
    detail: str


class ChronicleReader(ExperimentReader):
    """See the module, and `ExperimentReader`."""

    def events(self, trial_id: str | None = None) -> list[Event]:
        """What happened to a trial, or with None to the experiment as a whole, in order."""
        rows = self._rows(
            "SELECT seq, time, kind, detail FROM events WHERE trial_id IS ? ORDER BY seq", trial_id
        )
        return [Event(*row) for row in rows]

    def lengths(self) -> tuple[list[float], dict[str, float]]:
        """How long the last attempt of each trial took that has ended, and when that of the others began."""
        ended: list[float] = []
        begun: dict[str, float] = {}
        for trial_id, started, end in self._rows(
            "SELECT a.trial_id, a.started, e.ended FROM "
            "(SELECT trial_id, max(started) AS started FROM attempts GROUP BY trial_id) a LEFT JOIN "
            "(SELECT trial_id, max(time) AS ended FROM events WHERE kind IN ('TERMINATED', 'ERROR') "
            "GROUP BY trial_id) e USING (trial_id)"
        ):
            if end is None or end < started:
                begun[trial_id] = started
            else:
                ended.append(end - started)
        return ended, begun

    def reports_after(self, seq: int, trial_id: str | None = None) -> Iterator[tuple[int, Report]]:
        """The reports committed since entry `seq`, each with its own, of one trial or of all."""
        for entry, trial, attempt, iteration, metrics in self._rows(
            "SELECT seq, trial_id, attempt, iteration, metrics FROM results "
            "WHERE seq > ? AND (? IS NULL OR trial_id = ?) ORDER BY seq",
            seq,
            trial_id,
            trial_id,
        ):
            yield entry, Report(trial, attempt, iteration, decode(metrics))
