"""Losses at the end of training, estimated for trials that a scheduler stopped or paused before the end.

Without an estimate, a stopped trial would count as worse than it is, because its training was shorter. The
model would then avoid slow configurations. A stopped trial is expected to change as the complete trials
changed from the same iteration on: by the median of their paired differences.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.metrics import number_of
from trainkit.tune.schedulers.base import Decision, Verdict

RESOURCE = "training_iteration"
"""Reported value by which trials are compared; every report has it."""


@dataclass(slots=True)
class Curve:
    """Reported losses of a trial, at ascending iterations."""

    iterations: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def change_from(self, iteration: float) -> float | None:
        """Return the change of the loss since the first report at or after an iteration; None: no report."""
        place = bisect_left(self.iterations, iteration)
        return self.losses[-1] - self.losses[place] if place < len(self.losses) else None


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
        if value is None or iteration is None or not is_finite(value):
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

    def ends(self, losses: Mapping[str, float]) -> list[float]:
        """Return the loss of each trial at its end, which is an estimate for stopped and paused trials.

        If no trial is complete, the longest trials count as complete. No trial is expected to become better
        than the best complete trial, because only training to the end can show this.

        Args:
            losses: last loss of each trial; NaN: the trial has no result.
        """
        known = self._curves.keys() & losses.keys()
        partial = known & self._partial
        complete = known - partial
        if partial and not complete:
            longest = max(self._curves[each].iterations[-1] for each in partial)
            complete = {each for each in partial if self._curves[each].iterations[-1] == longest}
            partial -= complete
        best = min((losses[each] for each in complete if not math.isnan(losses[each])), default=-math.inf)
        reached = {each: self._curves[each].iterations[-1] for each in partial}
        changes = {iteration: self._change(complete, iteration) for iteration in set(reached.values())}
        return [
            max(loss + changes[reached[each]], best) if each in reached and not math.isnan(loss) else loss
            for each, loss in losses.items()
        ]

    def _change(self, complete: Collection[str], iteration: float) -> float:
        """Return the median change of complete trials from an iteration to their ends."""
        found = [self._curves[each].change_from(iteration) for each in complete]
        changes = [each for each in found if each is not None]
        return median(changes) if changes else 0.0
