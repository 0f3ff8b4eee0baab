"""Facts of an experiment for the pages, read while another process writes it.

What grows with the number of reports is left to SQLite, so that thousands of trials are read in a moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.tune.core.metrics import flatten
from trainkit.tune.core.objectives import all_failed
from trainkit.tune.core.trial import TrialStatus
from trainkit.tune.results.overview import FINITE, VALUE, LogReader, Overview, paths
from trainkit.tune.store.schema import FILENAME


@dataclass(frozen=True, slots=True)
class TrialRow:
    """Row of a trial.

    Attributes:
        config: flattened, as {"net/width": 8}.
        reports: number of reports.
        last, best: values of the metric; None if it was never reported as a finite number.
    """

    trial_id: str
    index: int
    status: TrialStatus
    reason: str
    config: dict[str, Any]
    reports: int
    last: float | None
    best: float | None


@dataclass(frozen=True, slots=True)
class View:
    """View of an experiment: an overview, and a row for each trial in the order suggested."""

    overview: Overview
    rows: list[TrialRow]

    @classmethod
    def of(cls, folder: Path, now: float) -> View:
        """Read the experiment in `folder`.

        Raises:
            StoreError: there is none, or its file is damaged or foreign.
        """
        overview = Overview.of(folder, now)
        numbers: dict[str, tuple[float | None, float | None]] = {}
        if overview.metric is not None:
            with MetricReader(folder) as reader:
                numbers = reader.last_and_best(overview.metric, overview.mode or "max")
        rows = [
            TrialRow(
                trial.trial_id,
                trial.index,
                trial.status,
                trial.reason,
                flatten(trial.config),
                trial.iteration,
                *numbers.get(trial.trial_id, (None, None)),
            )
            for trial in overview.trials
        ]
        return cls(overview, rows)

    @property
    def name(self) -> str:
        """Name of the experiment's folder."""
        return self.overview.folder.name

    @property
    def best(self) -> TrialRow | None:
        """Trial with the best last report, the first of equals; None if all have failed."""
        return None if all_failed(self.overview.trials) else next(iter(self.ranked), None)

    @property
    def ranked(self) -> list[TrialRow]:
        """Trials with a value in the last report, the best first."""
        sign = 1 if self.overview.mode == "min" else -1
        there = [row for row in self.rows if row.last is not None]
        return sorted(there, key=lambda row: sign * (row.last or 0.0))


class MetricReader(LogReader):
    """Reader of one metric in many reports."""

    def last_and_best(self, metric: str, mode: str) -> dict[str, tuple[float | None, float | None]]:
        """By trial, the last and the best value of `metric`; None where there is no finite number.

        Args:
            metric: its name, or a path such as "eval/loss".
            mode: "min" or "max".
        """
        best = {"min": "min", "max": "max"}[mode]
        last = self.last_values(metric)
        return {
            trial_id: (last.get(trial_id), value)
            for trial_id, value in self._rows(
                f"SELECT trial_id, {best}({FINITE}) FROM "
                f"(SELECT trial_id, {VALUE} AS value FROM history) GROUP BY trial_id",
                *paths(metric),
            )
        }

    def curve(self, trial_id: str, metric: str) -> list[tuple[int, float]]:
        """(iteration, value) of each report of the trial with a finite number as `metric`."""
        return [
            (iteration, value)
            for iteration, value in self._rows(
                f"SELECT iteration, {VALUE} FROM history WHERE trial_id = ? ORDER BY iteration",
                *paths(metric),
                trial_id,
            )
            if isinstance(value, (int, float))
        ]


def experiments(root: Path) -> Iterator[Path]:
    """Yield the folders of experiments in `root`, or `root` itself if it is one; the latest first."""
    if (root / FILENAME).exists():
        yield root
        return
    found = {}
    for path in root.glob(f"*/{FILENAME}"):
        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
            found[path.parent] = path.stat().st_mtime
    yield from sorted(found, key=found.__getitem__, reverse=True)
