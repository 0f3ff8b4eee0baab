"""Asynchronous successive halving for several objectives: rungs stop dominated trials."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from trainkit.tune.core.checks import is_number, require, require_whole
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.objectives import Objective, Point, dominates, objectives_of, point_of
from trainkit.tune.schedulers.base import CONTINUE, Decision, TrialScheduler, Verdict
from trainkit.tune.schedulers.halving import rung_levels


class ParetoRanking:
    """Ranking by Pareto front, updated with each new point; within a front, points that are far apart rank
    first.

    The fronts come from non-dominated sorting. A greedy epsilon-net orders each front: the earliest point
    comes first, then always the point that is farthest from the points already taken. R. Schmucker, M.
    Donini, M. B. Zafar, D. Salinas and C. Archambeau, "Multi-objective Asynchronous Successive Halving"
    (arXiv 2106.12639), section 4.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._fronts: list[list[int]] = []
        """Indexes of the points in each front, in order of arrival."""

    def __len__(self) -> int:
        return len(self._points)

    def add(self, point: Point) -> int:
        """Add a point and return its rank among all points so far; the best rank is 1."""
        place, points = len(self._points), self._points
        points.append(point)
        # If a front contains a point that dominates the new point, every earlier front also contains such a
        # point. Bisection therefore finds the first front without a dominating point.
        own = bisect_left(self._fronts, True, key=lambda front: not self._dominated(point, front))
        moving, number = [place], own
        while number < len(self._fronts):  # dominated points move to the next front
            front = self._fronts[number]
            pushed = [each for each in front if self._dominated(points[each], moving)]
            # if the whole front moves, the moving points form a new front before it
            if len(pushed) == len(front):
                break
            gone = set(pushed)
            self._fronts[number] = sorted([*(each for each in front if each not in gone), *moving])
            moving, number = pushed, number + 1
            if not moving:
                break
        if moving:
            self._fronts.insert(number, moving)
        before = sum(map(len, self._fronts[:own]))
        return before + 1 + next(rank for rank, each in enumerate(self._spread(own)) if each == place)

    def _dominated(self, point: Point, by: Sequence[int]) -> bool:
        return any(dominates(self._points[each], point) for each in by)

    def _spread(self, number: int) -> Iterator[int]:
        """Yield a front's points in the order of a greedy epsilon-net, each objective scaled to [0, 1]."""
        front = self._fronts[number]
        columns = zip(*(self._points[place] for place in front), strict=True)
        scaled = list(zip(*map(_shares, columns), strict=True))
        left = dict.fromkeys(range(len(front)), math.inf)
        chosen = 0
        while True:
            del left[chosen]
            yield front[chosen]
            if not left:
                return
            here = scaled[chosen]
            left = {each: min(known, math.dist(scaled[each], here)) for each, known in left.items()}
            chosen = max(left, key=left.__getitem__)


def _shares(values: Sequence[float]) -> list[float]:
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    width = (high - low) or 1.0
    return [(value - low) / width if math.isfinite(value) else -1.0 for value in values]


class ParetoScheduler(TrialScheduler):
    """ASHA for several objectives: each rung stops all but the best `1 / reduction_factor` trials by rank.

    Rungs are at `grace_period * reduction_factor**k` below `max_t`. A trial at a rung is ranked among all
    earlier arrivals by non-dominated sorting. The first front consists of the trials that no other trial
    dominates. The second front consists of the trials that only trials of the first front dominate, and so
    on. Within a front, trials that are far from each other rank first. With n trials at a rung, a trial
    continues if its rank is among the best `max(1, n // reduction_factor)`. R. Schmucker et al.,
    "Multi-objective Asynchronous Successive Halving" (arXiv 2106.12639), section 4.

    A trial with a value that is NaN or infinite ranks worst and is stopped. A report without `time_attr`, or
    without an objective at a rung, is not judged. At `max_t`, even a report without an objective ends the
    trial.

    Args:
        time_attr: name of the reported value that counts the resource spent.
        metric: names of the reported values to judge trials by; None: the TuneConfig's metrics.
        mode: "min" or "max" for each metric; None: the TuneConfig's modes.
        max_t: value of `time_attr` at which every trial ends.
        grace_period: the first rung.
        reduction_factor: eta; one trial in eta continues at a rung.

    Raises:
        ConfigError: a number is out of range.
    """

    label: ClassVar[str] = "the Pareto scheduler"
    several: ClassVar[bool] = True
    needs_metric: ClassVar[bool] = False  # `set_objectives` requires several metrics

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: Sequence[str] | None = None,
        mode: Sequence[str] | None = None,
        max_t: int = 100,
        grace_period: int = 1,
        reduction_factor: int = 3,
    ) -> None:
        super().__init__(time_attr)
        require_whole("grace_period", grace_period, 1)
        words = f"a whole number of {grace_period=} or more"
        require_whole("max_t", max_t, grace_period, words)
        require_whole("reduction_factor", reduction_factor, 2)
        require(
            (metric is None) == (mode is None) and (metric is None or not isinstance(metric, str)),
            f"metric={metric!r} and mode={mode!r}: ParetoScheduler takes lists for both, or neither",
        )
        self.max_t = int(max_t)
        self.grace_period = int(grace_period)
        self.reduction_factor = int(reduction_factor)
        self._own = objectives_of(metric, mode)
        self._objectives: tuple[Objective, ...] = self._own
        levels = rung_levels(self.grace_period, self.max_t, self.reduction_factor)[:-1]
        self._rungs = {level: ParetoRanking() for level in levels}
        self._passed: dict[str, float] = {}
        """Level of the highest rung that has judged each trial, by trial id."""
        self._stopped: set[str] = set()

    @property
    def arguments(self) -> dict[str, Any]:
        metrics, modes = [each.metric for each in self._own], [each.mode for each in self._own]
        return {**super().arguments, "metric": metrics or None, "mode": modes or None}

    @property
    def first_judgement(self) -> float:
        return self.grace_period

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return self._objectives

    def set_objectives(self, objectives: tuple[Objective, ...]) -> None:
        require(
            not self._own or not objectives or self._own == objectives,
            "ParetoScheduler and TuneConfig have different objectives: set them in only one of the two",
        )
        self._objectives = self._own or objectives
        require(
            bool(self._objectives),
            "ParetoScheduler needs several metrics: set TuneConfig(metric=['accuracy', 'loss'], "
            "mode=['max', 'min']) to metrics that the trainable reports, or use ASHAScheduler for one metric",
        )

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        time = lookup(result, self.time_attr)
        if trial_id in self._stopped:
            return Decision(Verdict.STOP, {"rule": "late report"})
        if not is_number(time):
            return CONTINUE
        if time >= self.max_t:
            decision = Decision(Verdict.STOP, {"rule": "max_t", "max_t": self.max_t})
        else:
            decision = self._judged(trial_id, float(time), point_of(result, self._objectives))
        if decision.verdict is Verdict.STOP:
            self._stopped.add(trial_id)
        return decision

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        """Return CONTINUE, because trials are not judged by one score: `on_result` judges by all
        objectives.
        """
        return CONTINUE

    def _judged(self, trial_id: str, time: float, point: Point | None) -> Decision:
        reached = [level for level in self._rungs if self._passed.get(trial_id, 0) < level <= time]
        if point is None or not reached:
            return CONTINUE
        level = reached[-1]
        self._passed[trial_id] = level
        entries = self._rungs[level]
        rank = entries.add(point)
        places = max(1, len(entries) // self.reduction_factor)
        reason = {"rule": "rung", "rung": level, "rank": rank, "entries": len(entries), "places": places}
        goes_on = rank <= places and all(map(math.isfinite, point))
        return Decision(Verdict.CONTINUE if goes_on else Verdict.STOP, reason)
