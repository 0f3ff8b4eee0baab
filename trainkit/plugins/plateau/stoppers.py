"""Stoppers that end a trial or an experiment whose results have become stable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.tune.core.checks import (
    is_finite,
    require,
    require_mode,
    require_name,
    require_number,
    require_one_of,
    require_whole,
)
from trainkit.tune.core.constraints import is_feasible
from trainkit.tune.core.stoppers import Stopper, reported


def spread(values: Sequence[float]) -> float:
    """Return the population standard deviation of the values; NaN if a value is not finite."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) * (value - mean) for value in values) / len(values))


@dataclass(eq=False)
class TrialPlateauStopper(Stopper):
    """Stopper that ends a trial whose metric is stable: its last reports have a small standard deviation.

    Args:
        metric: reported value to watch.
        std: standard deviation below which the trial ends.
        num_results: number of last reports to consider.
        grace_period: minimum number of iterations of every trial.
        metric_threshold: the trial continues until its metric is at least this good; None: no threshold.
        mode: "min" or "max", the direction of `metric_threshold`.
    """

    metric: str
    std: float = 0.01
    num_results: int = 4
    grace_period: int = 4
    metric_threshold: float | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        require_name("metric", self.metric)
        require_number("std", self.std, "0 or more", least=0)
        require_whole("num_results", self.num_results, 1)
        require_whole("grace_period", self.grace_period, 0)
        require_mode(self.mode)
        require(
            self.metric_threshold is None or (is_finite(self.metric_threshold) and self.mode is not None),
            f"metric_threshold={self.metric_threshold!r} must be a number, "
            "together with mode='min' or mode='max'",
        )
        self._windows: dict[str, list[tuple[float, float]]] = {}
        self._reason: dict[str, Any] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        value = reported(self, self.metric, result)
        iteration = reported(self, "training_iteration", result)
        # A retry repeats the reports that followed its checkpoint, so the earlier entries of the repeated
        # iterations are dropped.
        before = [entry for entry in self._windows.get(trial_id, []) if entry[0] < iteration]
        window = self._windows[trial_id] = [*before, (iteration, value)][-self.num_results :]
        if iteration < self.grace_period or len(window) < self.num_results or self._is_bad(value):
            return False
        std = spread([value for _, value in window])
        self._reason = {"metric": self.metric, "std": std, "below": self.std, "num_results": self.num_results}
        return std < self.std

    def _is_bad(self, value: float) -> bool:
        if self.metric_threshold is None:
            return False
        return value > self.metric_threshold if self.mode == "min" else value < self.metric_threshold

    def reason(self) -> Mapping[str, Any]:
        return self._reason


@dataclass(eq=False)
class ExperimentPlateauStopper(Stopper):
    """Stopper that ends the experiment when its best feasible reports hardly differ any more.

    Args:
        metric: reported value to watch.
        std: maximum standard deviation of the best reports to count as stable.
        top: number of best reports to consider.
        mode: "min" or "max".
        patience: number of consecutive reports during which the best reports must stay stable.
    """

    metric: str
    std: float = 0.001
    top: int = 10
    mode: str = "min"
    patience: int = 0

    def __post_init__(self) -> None:
        require_name("metric", self.metric)
        require_number("std", self.std, "a number above 0", above=0)
        require_whole("top", self.top, 2)
        require_one_of("mode", self.mode, ("min", "max"))
        require_whole("patience", self.patience, 0)
        self._best: list[float] = []
        self._at_rest = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        value = reported(self, self.metric, result)
        # NaN, infinities and infeasible reports can't rank among the best values.
        if math.isfinite(value) and is_feasible(result):
            self._best = sorted([*self._best, value], reverse=self.mode == "max")[: self.top]
        has_plateaued = len(self._best) == self.top and spread(self._best) <= self.std
        self._at_rest = self._at_rest + 1 if has_plateaued else 0
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._at_rest > 0 and self._at_rest >= self.patience

    def reason(self) -> Mapping[str, Any]:
        return {
            "metric": self.metric,
            "std": spread(self._best),
            "at_most": self.std,
            "top": self.top,
            "reports": self._at_rest,
        }
