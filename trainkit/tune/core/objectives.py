"""Objectives, Pareto fronts of several objectives, and the best trial for one metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from trainkit.errors import TuneArgumentError
from trainkit.tune.core.checks import is_finite, is_name, is_number, require, require_one_of
from trainkit.tune.core.constraints import is_feasible, violation_in
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.trial import Trial, TrialStatus

Point = tuple[float, ...]
"""Values of the objectives in a report, negated for the mode "min", so that larger is better."""


@dataclass(frozen=True)
class Objective:
    """Metric to optimise, with the mode "min" or "max"."""

    metric: str
    mode: str


def objectives_of(metric: Any, mode: Any) -> tuple[Objective, ...]:
    """Return the objectives given by two lists; () if neither argument is a list.

    Raises:
        ConfigError: the lists don't match, or contain anything but metric names and modes.
    """
    if not any(isinstance(each, (list, tuple)) for each in (metric, mode)):
        return ()
    fits = isinstance(metric, (list, tuple)) and isinstance(mode, (list, tuple)) and len(metric) == len(mode)
    require(
        fits and len(metric) > 1 and all(map(is_name, metric)) and len(set(metric)) == len(metric),
        f"metric={metric!r} and mode={mode!r}: for several objectives give two lists of one length, such as "
        "metric=['accuracy', 'latency'], mode=['max', 'min']; for one objective, give a name and a mode",
    )
    for each in mode:
        require(each in ("min", "max"), f"mode={mode!r}: {each!r} is neither 'min' nor 'max'")
    return tuple(map(Objective, metric, mode))


def require_both(metric: str | None, mode: str | None) -> None:
    """Raise an error if only a metric or only a mode is given, because both define the best trial.

    Raises:
        ConfigError: the metric or the mode is missing.
    """
    require(
        metric is None or mode is not None,
        f"metric={metric!r} is given without a mode: add mode='min', or mode='max' where more is better",
    )
    require(
        mode is None or metric is not None,
        f"mode={mode!r} is given without a metric: add metric=, the name of the reported value to compare",
    )


def point_of(report: Mapping[str, Any], objectives: Sequence[Objective]) -> Point | None:
    """Return the report as a Point; None if a value is missing.

    If a value is not finite, all values of the Point are -inf.
    """
    point = []
    for objective in objectives:
        value = lookup(report, objective.metric)
        if not is_number(value):
            return None
        point.append(-float(value) if objective.mode == "min" else float(value))
    return tuple(point) if all(map(math.isfinite, point)) else (-math.inf,) * len(point)


def replaced(report: Mapping[str, Any], losses: Mapping[Objective, float]) -> dict[str, Any]:
    """Return the report with other losses, which `lookup` finds before nested values."""
    return {**report, **{each.metric: loss if each.mode == "min" else -loss for each, loss in losses.items()}}


def dominates(one: Point, other: Point) -> bool:
    """Return True if `one` is at least as good as `other` in all objectives, and better in at least one
    objective.
    """
    return one != other and all(mine >= theirs for mine, theirs in zip(one, other, strict=True))


def front_of(points: Sequence[Point]) -> list[int]:
    """Return the sorted indexes of the points that no other point dominates, including equal points."""
    # Points that are best in the first objective come first, because they dominate many other points.
    order = sorted(range(len(points)), key=lambda place: [-value for value in points[place]])
    front: list[int] = []
    for place in order:
        # The sort guarantees that a later point never dominates an earlier point.
        if not any(dominates(points[other], points[place]) for other in front):
            front.append(place)
    return sorted(front)


SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")
NONE_BEST = "none, all trials have failed"
"""Text that displays show instead of the best trial if all trials have failed."""
NONE_FEASIBLE = "none, no trial satisfies the constraints"
"""Text that displays show instead of the best trial if no trial with a metric is feasible."""


def what_is_best(
    metric: str | None,
    mode: str | None,
    usual: tuple[str | None, str | None],
    objectives: Sequence[Objective] = (),
) -> tuple[str, str]:
    """Return the metric and mode by which the best trial is chosen.

    Args:
        metric: requested metric; None: the experiment's metric.
        mode: requested mode; None: the experiment's mode.
        usual: the experiment's metric and mode, if the experiment has one objective.
        objectives: the experiment's objectives, if the experiment has several.

    Raises:
        ConfigError: the metric or the mode is missing, or the mode is neither "min" nor "max".
    """
    modes = {each.metric: each.mode for each in objectives}
    mode = mode or modes.get(metric or "") or usual[1]
    metric = metric or usual[0]
    if objectives and (metric is None or mode is None):
        raise TuneArgumentError(
            f"no trial is best by all objectives {list(modes)}: give one as metric, or use pareto_front()"
        )
    if metric is None or mode is None:
        raise TuneArgumentError(
            "the best trial needs a metric and a mode, here or in TuneConfig(metric='loss', mode='min')"
        )
    require_one_of("mode", mode, ("min", "max"))
    return metric, mode


def all_failed(trials: Sequence[Trial]) -> bool:
    """Return True if trials exist and all have failed."""
    return bool(trials) and all(trial.status is TrialStatus.ERROR for trial in trials)


def best_row(reports: Sequence[Mapping[str, Any]], metric: str, mode: str) -> dict[str, Any] | None:
    """Return the earliest report with the best finite `metric`; None if no report has a finite value.

    A feasible report is better than an infeasible report, and a smaller violation is better.
    """
    sign = -1 if mode == "min" else 1
    rated = [
        ((-violation_in([report]), sign * value), report)
        for report in reports
        if is_finite(value := lookup(report, metric))
    ]
    # All reports are dictionaries, but the annotation is Mapping, so that callers can pass lists of any class
    # of dictionaries.
    return max(rated, key=itemgetter(0))[1] if rated else None  # type: ignore[return-value]


def trial_score(
    history: Sequence[Mapping[str, Any]], metric: str, mode: str, scope: str, *, keep_all: bool
) -> float | None:
    """Return a trial's score, larger is better; None if the trial has no score.

    Args:
        history: the trial's reports, oldest first.
        metric: name of the value to compare.
        mode: "min" or "max".
        scope: one of SCOPES.
        keep_all: True keeps infinities, and NaN as the worst score; False ignores infinities and NaN.

    Raises:
        ConfigError: `scope` is not in SCOPES.
    """
    require_one_of("scope", scope, SCOPES)
    if scope == "all":
        history = [report for report in history if is_feasible(report)] or history
    values = [float(value) for report in history if is_number(value := lookup(report, metric))]
    if scope == "last":
        values = values[-1:] if history and is_number(lookup(history[-1], metric)) else []
    elif scope.startswith("last-"):
        values = values[-int(scope.split("-")[1]) :]
    if not keep_all:
        values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    scores = [-value if mode == "min" else value for value in values]
    if scope == "all":
        return max(-math.inf if math.isnan(score) else score for score in scores)
    score = sum(scores) / len(scores)
    return -math.inf if math.isnan(score) else score


def spread_of(reports: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return max, min, avg, last, last-5-avg and last-10-avg of each reported number, by its name.

    Args:
        reports: flattened reports, oldest first.
    """
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            if is_number(value) and not name.startswith("config/"):
                values.setdefault(name, []).append(value)
    return {
        name: {
            "max": max(_comparable(series)),
            "min": min(_comparable(series)),
            "avg": _mean(series),
            "last": series[-1],
            "last-5-avg": _mean(series[-5:]),
            "last-10-avg": _mean(series[-10:]),
        }
        for name, series in values.items()
    }


def _comparable(values: Sequence[float]) -> Sequence[float]:
    """Return the values without NaN, which can't be compared; return all values if all are NaN."""
    return [value for value in values if value == value] or values


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
