"""The chance that a trial becomes the best, learned from the curves of complete trials.

The final scores of complete trials are predicted from two numbers at an earlier time: the rank of a trial's
score, and the rank of its improvement since the time before. The ranks are among all trials at this time. So
the regression notices both if early scores tell the final order, and if trials with bad early scores improve
for longer. Ranks are replaced by normal scores, so that the scale of the metric is of no importance.

The regression is Bayesian: it begins with the belief that a good score remains good, and complete trials
correct this belief. Where few complete trials are similar to a trial, its prediction is uncertain. Its chance
is then not small, and the trial continues. So the rule tries again what it has seen least of.

Source: Bishop, "Pattern Recognition and Machine Learning", 2006, section 3.3, for the regression with unknown
noise. The idea that early scores are believed only as far as they agree with later scores is from Bohdal et
al., "PASHA: Efficient HPO and NAS with Progressive Resource Allocation", ICLR 2023.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

WEIGHTS = np.array([0.0, 0.4, 0.0])
"""Prior means of the weights of the regression: of the constant, the score and the improvement."""
CERTAINTY = np.array([1.0, 1.0, 1.0])
"""Prior precisions of the weights, in units of the precision of a result."""
SHAPE, SCALE = 1.5, 0.6
"""Prior of the noise's variance: parameters of an inverse gamma distribution."""
RUNGS = 6
"""Maximum number of times at which a trial is judged."""
LAST = 2 / 3
"""The last time at which a trial is judged, as a share of a complete trial's length."""

_NORMAL = NormalDist()


def rung_times(length: float) -> list[float]:
    """Return the times at which trials are judged, in ascending order, each twice the time before.

    Args:
        length: time at which a complete trial ends.
    """
    return [length * LAST / 2**k for k in reversed(range(RUNGS))]


def improvement(before: float | None, now: float) -> float:
    """Return the change of a score, which is 0 without an earlier score; minus infinity stands for NaN."""
    if before is None:
        return 0.0
    if now == -math.inf:
        return -math.inf
    return math.inf if before == -math.inf else now - before


def normal_scores(values: Floats, among: Floats) -> Floats:
    """Return the normal scores of the ranks of `values` in `among`; equal values have their mean rank.

    Args:
        values: values that are in `among`, shape (n,).
        among: all values, shape (m,).
    """
    ascending = np.sort(among)
    first = np.searchsorted(ascending, values, side="left")
    last = np.searchsorted(ascending, values, side="right")
    return np.array([_normal_score(int(both), len(among)) for both in first + last + 1])


@cache
def _normal_score(twice_the_rank: int, size: int) -> float:
    return _NORMAL.inv_cdf((twice_the_rank / 2 - 0.375) / (size + 0.25))


def chance_of_new(complete: int) -> float:
    """Return the chance that a new trial becomes the best, if nothing is known of the trial."""
    return 1 / (complete + 1)


def chance_of_best(
    scores: Sequence[float], improvements: Sequence[float], complete: Sequence[int], final: Sequence[float]
) -> float:
    """Return the chance that the last trial becomes better than all complete trials.

    Args:
        scores: score at this time of each trial that has reached it, larger is better; the judged trial is
            the last.
        improvements: improvement of each of these trials since the time before.
        complete: indices of complete trials in `scores`, at least one.
        final: final score of each of `complete`.
    """
    rows = [*complete, len(scores) - 1]
    columns = [np.ones(len(rows))]
    for each in (scores, improvements):
        values = np.array(each, dtype=float)
        columns.append(normal_scores(values[rows], values))
    features = np.stack(columns, axis=1)
    known, judged = features[:-1], features[-1]
    ends = np.array(final, dtype=float)
    targets = normal_scores(ends, ends)
    precision = np.diag(CERTAINTY) + known.T @ known
    weighted = CERTAINTY * WEIGHTS + known.T @ targets
    weights = np.linalg.solve(precision, weighted)
    shape = SHAPE + len(ends) / 2
    rest = targets @ targets + CERTAINTY @ WEIGHTS**2 - weights @ weighted
    variance = (SCALE + rest / 2) / shape * (1 + judged @ np.linalg.solve(precision, judged))
    needed = -_NORMAL.inv_cdf(chance_of_new(len(ends)))
    return 0.5 * math.erfc(float((needed - judged @ weights) / math.sqrt(2 * variance)))


# --- trials at a rung -----------------------------------------------------------------------------


@dataclass(slots=True)
class Curve:
    """Reports of one trial, in ascending order of time.

    Attributes:
        stopped: True once the scheduler has stopped the trial, before or at `max_t`.
        judged: the last time at which the trial was judged.
        due: time of the next rung, at which the trial is judged again.
    """

    times: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    stopped: bool = False
    judged: float = -math.inf
    due: float = math.inf

    def report(self, time: float) -> int:
        """Return the index of the first report at or after `time`, or the number of reports."""
        return bisect_left(self.times, time)


class Rung:
    """All trials that have reached a time, in the order of their arrival.

    Args:
        time: the time.
        before: time of the rung before; None: this is the first rung.

    Attributes:
        scores: score of each trial at its first report at or after `time`.
        places: index of each trial in `scores`.
    """

    def __init__(self, time: float, before: float | None) -> None:
        self.time, self._before = time, before
        self.places: dict[str, int] = {}
        self.scores: list[float] = []
        self._improvements: list[float] = []

    def add(self, trial_id: str, curve: Curve) -> None:
        """Add a trial, if it has reached the rung and is not there."""
        now = curve.report(self.time)
        if now == len(curve.times) or trial_id in self.places:
            return
        before = now if self._before is None else curve.report(self._before)
        self.places[trial_id] = len(self.scores)
        self.scores.append(curve.scores[now])
        # A late first report is the first at both rungs.
        earlier = curve.scores[before] if before < now else None
        self._improvements.append(improvement(earlier, curve.scores[now]))

    def rank(self, trial_id: str) -> int:
        """Return a trial's rank; 1 is the best."""
        score = self.scores[self.places[trial_id]]
        return 1 + sum(each > score for each in self.scores)

    def chance(self, trial_id: str, final: Mapping[str, float]) -> float:
        """Return the chance that a trial becomes better than all complete trials.

        Args:
            trial_id: the trial, which is at this rung.
            final: final score of each complete trial; all are at this rung.
        """
        place = self.places[trial_id]
        return chance_of_best(
            [*self.scores[:place], *self.scores[place + 1 :], self.scores[place]],
            [*self._improvements[:place], *self._improvements[place + 1 :], self._improvements[place]],
            [self.places[each] - (self.places[each] > place) for each in final],
            list(final.values()),
        )
