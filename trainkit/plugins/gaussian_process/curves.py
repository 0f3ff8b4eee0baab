"""Losses at the end of training, estimated for trials that a scheduler stopped or paused before the end.

Without an estimate, a stopped trial would count as worse than it is, because its training was shorter. The
model would then avoid slow configurations. A stopped trial is expected to change as the complete trials
changed from the same iteration on: by the median of their paired differences. The model learns how good such
estimates are from the complete trials' reports at the same iterations.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.metrics import number_of
from trainkit.tune.schedulers.base import Decision, Verdict

RESOURCE = "training_iteration"
"""Reported value by which trials are compared; every report has it."""
LEVELS = 2
"""Number of iterations at which the reports of all trials are compared with their results. Most trials were
stopped or paused at these iterations.
"""
COMPARED = 150
"""Maximum number of trials, the latest, whose reports at these iterations are compared with their results."""


@dataclass(frozen=True)
class EarlyReports:
    """Reports of trials before the end of the training.

    A report is as far from the end as the binary logarithm of the longest training, divided by the report's
    iteration.

    Attributes:
        missing_at_end: distance of each trial's last report from the end; 0 for a complete trial.
        trials: index of the trial, for each further report.
        missing: distance of each further report from the end.
        losses: loss of each further report, with the change that is expected until the end.
    """

    missing_at_end: Sequence[float]
    trials: Sequence[int]
    missing: Sequence[float]
    losses: Sequence[float]


@dataclass(slots=True)
class Curve:
    """Reported losses of a trial, at ascending iterations."""

    iterations: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def change_from(self, iteration: float) -> float | None:
        """Return the change of the loss since the first report at or after an iteration; None: no report."""
        place = bisect_left(self.iterations, iteration)
        return self.losses[-1] - self.losses[place] if place < len(self.losses) else None

    def loss_from(self, iteration: float) -> float:
        """Return the loss of the first report at or after an iteration, which exists."""
        return self.losses[bisect_left(self.iterations, iteration)]

    def reaches_beyond(self, iteration: float) -> bool:
        """Return True if there are reports after the first report at or after an iteration."""
        return bisect_left(self.iterations, iteration) < len(self.losses) - 1


class Curves:
    """Learning curves of the trials of a search, and the trials that a scheduler ended early.

    Args:
        metric: name of the reported value.
        mode: "min" or "max".
    """

    def __init__(self, metric: str | None, mode: str | None) -> None:
        self._metric, self._sign = metric or "", -1.0 if mode == "max" else 1.0
        self._curves: dict[str, Curve] = {}
        self._partial: set[str] = set()

    def add(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Add a report, which replaces earlier reports of the same iteration or a later iteration."""
        value, iteration = number_of(result, self._metric), number_of(result, RESOURCE)
        if value is None or not is_finite(value) or iteration is None or iteration <= 0:
            return
        curve = self._curves.setdefault(trial_id, Curve())
        place = bisect_left(curve.iterations, iteration)
        curve.iterations[place:] = [float(iteration)]
        curve.losses[place:] = [self._sign * float(value)]

    def decide(self, trial_id: str, decision: Decision) -> None:
        """Note a scheduler's decision on the last report of a trial; at `max_t` a trial is complete."""
        early = decision.verdict is not Verdict.CONTINUE and decision.reason.get("rule") != "max_t"
        (self._partial.add if early else self._partial.discard)(trial_id)

    def resume(self, trial_id: str) -> None:
        """Note that a paused trial runs again."""
        self._partial.discard(trial_id)

    def count_as_partial(self, share: float) -> None:
        """Count trials as ended early if they are not longer than a share of the longest trial."""
        reached = {name: curve.iterations[-1] for name, curve in self._curves.items()}
        longest = max(reached.values(), default=0.0)
        self._partial = {name for name, iteration in reached.items() if iteration <= share * longest}

    def ends(self, losses: Mapping[str, float]) -> list[float]:
        """Return the loss of each trial at its end, which is an estimate for stopped and paused trials.

        If no trial is complete, the longest trials count as complete. No trial is expected to become better
        than the best complete trial, because only training to the end can show this.

        Args:
            losses: last loss of each trial; NaN: the trial has no result.
        """
        complete, reached = self._divided(losses)
        best = min((losses[each] for each in complete if not math.isnan(losses[each])), default=-math.inf)
        changes = {iteration: self._change(complete, iteration) for iteration in set(reached.values())}
        return [
            max(loss + changes[reached[each]], best) if each in reached and not math.isnan(loss) else loss
            for each, loss in losses.items()
        ]

    def early_reports(self, losses: Mapping[str, float]) -> EarlyReports | None:
        """Return the reports before the end; None: all trials have ended at the same iteration, or by
        themselves.

        Args:
            losses: last loss of each trial; NaN: the trial has no result.
        """
        complete, reached = self._divided(losses)
        if not reached:
            return None
        longest = max(self._curves[each].iterations[-1] for each in complete | reached.keys())
        counts = Counter(reached.values())
        found: list[tuple[int, float, float]] = []
        latest = list(enumerate(losses.items()))[-COMPARED:]
        for level in sorted(counts, key=lambda level: (-counts[level], level))[:LEVELS]:
            change, missing = self._change(complete, level), math.log2(longest / level)
            for place, (name, loss) in latest:
                curve = self._curves.get(name)
                if curve is not None and curve.reaches_beyond(level) and not math.isnan(loss):
                    found.append((place, missing, curve.loss_from(level) + change))
        missing_at_end = [math.log2(longest / reached.get(each, longest)) for each in losses]
        trials, missing_before, values = zip(*found, strict=True) if found else ((), (), ())
        return EarlyReports(missing_at_end, list(trials), missing_before, values)

    def _divided(self, losses: Mapping[str, float]) -> tuple[set[str], dict[str, float]]:
        """Return the complete trials, and the last iteration of the trials that ended early."""
        reached = {each: self._curves[each].iterations[-1] for each in self._curves.keys() & losses.keys()}
        complete = reached.keys() - self._partial
        if reached and not complete:
            longest = max(reached.values())
            complete = {each for each, iteration in reached.items() if iteration == longest}
        return complete, {each: reached[each] for each in reached.keys() - complete}

    def _change(self, complete: Collection[str], iteration: float) -> float:
        """Return the median change of complete trials from an iteration to their ends."""
        found = [self._curves[each].change_from(iteration) for each in complete]
        changes = [each for each in found if each is not None]
        return median(changes) if changes else 0.0
