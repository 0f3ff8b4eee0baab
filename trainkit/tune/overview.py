"""An experiment as it looks from outside, finished or running: plain values for tables and pages.

What grows with the number of reports is left to SQLite, so that thousands of trials are read in a moment,
beside a program that writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.errors import StoreError
from trainkit.tune.history import ExperimentReader
from trainkit.tune.ownership import owner_of
from trainkit.tune.schema import FILENAME
from trainkit.tune.trial import TrialStatus
from trainkit.tune.values import flatten


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial.

    Attributes:
        config: flattened: {"net/width": 8}.
        reports: how many iterations it has reported.
        last, best: of the metric; None where it was not reported, or never as a finite number.
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
class Overview:
    """One experiment.

    Attributes:
        name: of its folder.
        created: seconds since 1970.
        owner: pid of the program that runs it; None if none does.
        ending: why it ended or is about to; '' while it goes on, or was killed.
        rows: one a trial, in the order suggested.
    """

    name: str
    path: str
    trainable: str
    metric: str | None
    mode: str | None
    created: float
    owner: int | None
    ending: str
    rows: list[TrialRow]

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials by status, in the order of a trial's life."""
        numbers = Counter(row.status for row in self.rows)
        return {str(status): numbers[status] for status in TrialStatus if numbers[status]}

    @property
    def best(self) -> TrialRow | None:
        """The trial with the best value that was reported at any time; the first of equals."""
        ranked = [row for row in self.rows if row.best is not None]
        if not ranked:
            return None
        sign = -1 if self.mode == "min" else 1
        return max(ranked, key=lambda row: sign * (row.best or 0.0))


def experiments(root: Path) -> Iterator[Path]:
    """Yield the folders of experiments in `root`, or `root` itself if it is one; the latest first."""
    if (root / FILENAME).exists():
        yield root
        return
    found = [path.parent for path in root.glob(f"*/{FILENAME}")]
    yield from sorted(found, key=lambda folder: (folder / FILENAME).stat().st_mtime, reverse=True)


def overview(folder: Path) -> Overview:
    """Read the experiment in `folder`.

    Raises:
        StoreError: there is none, or its file is damaged or foreign.
    """
    if not folder.is_dir():
        raise StoreError(f"there is no folder {folder}")
    with ExperimentReader(folder) as reader:
        facts = reader.facts()
        metric, mode = facts["tune_config"]["metric"], facts["tune_config"]["mode"]
        numbers = reader.metric_numbers(metric, best=mode or "max") if metric else {}
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
            for trial in reader.trials()
        ]
        return Overview(
            name=folder.name,
            path=str(folder),
            trainable=facts["trainable"],
            metric=metric,
            mode=mode,
            created=facts["created"],
            owner=owner_of(folder),
            ending=reader.ending(),
            rows=rows,
        )
