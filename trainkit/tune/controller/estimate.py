"""Estimate of an experiment's remaining time."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from trainkit.tune.core.trial import Trial

FEW = 2
"""Minimum number of trials with a known duration for an estimate."""
SIMULATED = 1000
"""Maximum number of future trials that are scheduled individually; for more trials, the result is scaled."""
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """Trial that has not ended yet.

    Attributes:
        elapsed_s: seconds that the trial has run, including earlier attempts.
        fraction: completed fraction of the trial's maximum number of reports; None: unknown, or no report
            yet.
    """

    elapsed_s: float
    fraction: float | None = None

    @property
    def full_s(self) -> float | None:
        """Seconds that the trial takes if nothing stops it early."""
        return self.elapsed_s / min(1.0, self.fraction) if self.fraction else None


def remaining_s(
    finished: Sequence[float], running: Sequence[RunningTrial], to_come: int | None
) -> float | None:
    """Return the seconds until the last trial has ended; None if no estimate is possible.

    Trials that have already ended tend to be short. Running trials therefore count as censored observations
    (Kaplan and Meier, 1958), limited by their maximum duration. Future trials are scheduled on as many slots
    as trials run now, with durations spread over the estimated distribution.

    Args:
        finished: durations of ended trials in seconds.
        running: trials that run now. The estimate assumes that the same number of trials run at once in
            future.
        to_come: number of future trials; None: no limit.
    """
    if to_come is None:
        return None
    if not running and not to_come:
        return 0.0
    full = [each.full_s for each in running if each.full_s is not None]
    if len(finished) < FEW and len(finished) + len(full) < max(FEW, len(running)):
        return None
    lengths = _Lengths(finished[-SIMULATED:], [each.elapsed_s for each in running], full)
    free_at = [lengths.rest(each) for each in running] or [0.0]
    laid_out = min(to_come, SIMULATED)
    skipped_s = (to_come - laid_out) * lengths.mean / len(free_at)
    free_at = [at + skipped_s for at in free_at]
    heapq.heapify(free_at)
    for number in range(laid_out):
        # Multiples of the golden ratio modulo 1 are evenly spread but not sorted, so they are used in place
        # of random numbers.
        heapq.heapreplace(free_at, free_at[0] + lengths.quantile((number + 0.5) * _GOLDEN % 1.0))
    return max(free_at)


class _Lengths:
    """Distribution of a trial's duration in seconds, as the steps of a survival curve."""

    def __init__(self, finished: Sequence[float], elapsed: Sequence[float], full: Sequence[float]) -> None:
        at_risk = len(finished) + len(elapsed)
        survival = 1.0
        self._steps: list[tuple[float, float]] = []
        """Pairs of a duration and the fraction of trials that last longer, sorted by duration."""
        for length, ended in sorted([*((s, 0) for s in finished), *((s, 1) for s in elapsed)]):
            if ended == 0:
                survival *= 1 - 1 / at_risk
                self._steps.append((length, survival))
            at_risk -= 1
        if survival > 1e-9:  # if the longest trial is still running, its end is only a guess
            last = max([*finished, *elapsed])
            end = max(last, median_high(full)) if full else last + (self._area(last) if self._steps else last)
            self._steps.append((end, 0.0))
        self.mean = self._area(math.inf)

    def _area(self, until: float) -> float:
        area = before = 0.0
        survival = 1.0
        for length, after in self._steps:
            area += (min(length, until) - before) * survival
            before, survival = min(length, until), after
        return area

    def quantile(self, share: float) -> float:
        """Return the duration after which the fraction `share` of trials has ended."""
        place = bisect_right(self._steps, share, key=lambda step: 1 - step[1])
        return self._steps[min(place, len(self._steps) - 1)][0]

    def rest(self, running: RunningTrial) -> float:
        """Return the expected remaining seconds of a trial, given the time that it has run."""
        survival_now = next(
            (after for length, after in reversed(self._steps) if length <= running.elapsed_s), 1.0
        )
        full = running.full_s
        if survival_now <= 1e-9:
            return max(0.0, full - running.elapsed_s) if full is not None else 0.0
        rest, before, survival = 0.0, running.elapsed_s, survival_now
        for length, after in self._steps:
            if length > running.elapsed_s:
                rest += (length - before) * survival
                before, survival = length, after
        rest /= survival_now
        return rest if full is None else min(rest, full - running.elapsed_s)


class TimeEstimate:
    """Durations of an experiment's trials, with an estimate of the remaining time.

    Args:
        max_iteration: maximum number of reports of a trial; None: unknown.
    """

    def __init__(self, max_iteration: float | None = None) -> None:
        self._max_iteration = max_iteration
        self._finished: list[float] = []
        self._spent: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def started(self, trial_id: str, time: float) -> None:
        """Record the start of an attempt."""
        self._since[trial_id] = time

    def stopped(self, trial_id: str, time: float) -> None:
        """Record the end of an attempt; another attempt may follow."""
        self._spent[trial_id] = self._spent.get(trial_id, 0.0) + time - self._since.pop(trial_id)

    def ended(self, trial_id: str) -> None:
        """Record the end of a trial; a trial that never ran has no duration."""
        spent = self._spent.pop(trial_id, None)
        if spent is not None:
            self._finished.append(spent)

    def remaining_s(self, running: Sequence[Trial], to_come: int | None, time: float) -> float | None:
        """Return the seconds until the running and the future trials have ended; None: unknown."""
        return remaining_s(self._finished, [self._running(trial, time) for trial in running], to_come)

    def _running(self, trial: Trial, time: float) -> RunningTrial:
        elapsed_s = self._spent.get(trial.trial_id, 0.0) + time - self._since[trial.trial_id]
        limit = self._max_iteration
        return RunningTrial(elapsed_s, trial.iteration / limit if limit and trial.iteration else None)
