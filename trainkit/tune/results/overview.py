"""Overview of an experiment from its folder, also while another process runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.tune.controller import events as ev
from trainkit.tune.controller.estimate import RunningTrial, remaining_s
from trainkit.tune.controller.rules import INTERRUPTED
from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.objectives import NONE_BEST, all_failed
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.core.values import decode, lookup
from trainkit.tune.results.reading import metric_and_mode
from trainkit.tune.schedulers.base import score_of
from trainkit.tune.store.ownership import owner_of
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.records import Report


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Entry of the log with its place in the order of all entries, and its time in seconds since 1970."""

    seq: int
    time: float
    kind: str
    detail: str


class LogReader(ExperimentReader):
    """Reader of the log of an experiment, also while it is written."""

    def events(self, trial_id: str | None = None) -> list[LogEvent]:
        """Return the log of a trial, or with None of the experiment as a whole, in order."""
        rows = self._rows(
            "SELECT seq, time, kind, detail FROM events WHERE trial_id IS ? ORDER BY seq", trial_id
        )
        return [LogEvent(*row) for row in rows]

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


CUT_OFF = f"{INTERRUPTED.why}: the program that ran it is gone"


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Overview of an experiment, also while another process runs it.

    Attributes:
        folder: of the experiment.
        owner: pid of the process that runs it; None if nobody does.
        created: in seconds since 1970.
        metric, mode: what "best" means; None where the experiment named no metric.
        total: how many trials it will have; None: without end, or not known.
        trials: in the order suggested; where nobody runs them, none is RUNNING.
        ending: why its last run ended; '' if it runs, or was killed.
        remaining_s: about how long it will take yet; None where that can't be said.
    """

    folder: Path
    owner: int | None
    created: float
    metric: str | None
    mode: str | None
    total: int | None
    trials: Sequence[Trial]
    ending: str
    remaining_s: float | None

    @classmethod
    def of(cls, folder: Path, now: float) -> Overview:
        """Look at the experiment in `folder`.

        Raises:
            StoreError: there is none, or its file is damaged or foreign.
        """
        owner = owner_of(folder)  # first: of one that ends now, the end is seen
        with LogReader(folder) as reader:
            facts, trials = reader.facts(), reader.trials()
            events, (ended, begun) = reader.events(), reader.lengths()
        if owner is None:
            for trial in trials:
                if trial.status is TrialStatus.RUNNING:  # what ran it was killed before it could say so
                    trial.status, trial.reason = TrialStatus.PENDING, CUT_OFF
        total = facts.get("total_samples")
        metric, mode = metric_and_mode(facts)
        running = [
            RunningTrial(now - begun[trial.trial_id])
            for trial in trials
            if trial.status is TrialStatus.RUNNING and trial.trial_id in begun
        ]
        waiting = sum(trial.status is TrialStatus.PENDING for trial in trials)
        to_come = None if total is None else max(0, total - len(trials)) + waiting
        return cls(
            folder=folder,
            owner=owner,
            created=facts["created"],
            metric=metric,
            mode=mode,
            total=total,
            trials=trials,
            ending="" if owner is not None else _ending(events),
            remaining_s=None if owner is None else remaining_s(ended, running, to_come),
        )

    @property
    def state(self) -> str:
        """Such as 'runs in process 17', 'ended: all trials have ended', 'killed'."""
        if self.owner is not None:
            return f"runs in process {self.owner or 'unknown'}"
        return f"ended: {self.ending}" if self.ending else "killed"

    @property
    def counted(self) -> dict[str, int]:
        """Numbers of trials by status, those that were interrupted apart from the others that are PENDING."""
        numbers = Counter(self._word(trial) for trial in self.trials)
        return {word: numbers[word] for word in (INTERRUPTED.why, *TrialStatus) if numbers[word]}

    def _word(self, trial: Trial) -> str:
        cut_off = self.owner is None and trial.status is TrialStatus.PENDING
        return INTERRUPTED.why if cut_off and trial.reason.startswith(INTERRUPTED.why) else trial.status

    @property
    def counts(self) -> str:
        """Such as '3 RUNNING, 12 TERMINATED', or '3 interrupted, 12 TERMINATED'."""
        return ", ".join(f"{number} {word}" for word, number in self.counted.items())

    @property
    def best(self) -> tuple[Trial, Any] | None:
        """The trial whose last report is best, with its value.

        None: there is no metric, no last report has it as a finite number, or all trials have failed.
        """
        if all_failed(self.trials):
            return None
        values = {
            trial.trial_id: lookup(trial.last_result, self.metric) if self.metric else None
            for trial in self.trials
        }
        rated = [trial for trial in self.trials if is_finite(values[trial.trial_id])]
        if not rated:
            return None
        best = max(rated, key=lambda trial: score_of(values[trial.trial_id], self.mode))
        return best, values[best.trial_id]

    @property
    def best_words(self) -> str:
        """Such as 'loss=0.25 of 5f3a_00007', by last reports; '' where there is no report to go by."""
        if self.best is None:
            return NONE_BEST if self.metric is not None and all_failed(self.trials) else ""
        trial, value = self.best
        return f"{self.metric}={value:.6g} of {trial.trial_id}"


def _ending(events: Sequence[LogEvent]) -> str:
    """Return the message at the end of the last run; '' if the run did not reach its end."""
    for event in reversed(events):
        if event.kind == "ended":
            return event.detail
        if event.kind == ev.BEGAN:
            break
    return ""
