"""Several objectives, and which results no other beats in all of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.errors import TuneArgumentError
from trainkit.tune.core.checks import is_finite, is_name, is_number, require, require_one_of
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.trial import Trial, TrialStatus

Point = tuple[float, ...]
"""A value for each objective, larger being better."""


@dataclass(frozen=True)
class Objective:
    """A reported value, and whether less of it is better, "min", or more, "max"."""

    metric: str
    mode: str


def objectives_of(metric: Any, mode: Any) -> tuple[Objective, ...]:
    """The objectives that two lists give; none where neither is a list: one metric is not several.

    Raises:
        ConfigError: they don't fit each other, or hold something else than names and modes.
    """
    if not any(isinstance(each, (list, tuple)) for each in (metric, mode)):
        return ()
    fits = isinstance(metric, (list, tuple)) and isinstance(mode, (list, tuple)) and len(metric) == len(mode)
    require(
        fits and len(metric) > 1 and all(map(is_name, metric)) and len(set(metric)) == len(metric),
        f"metric={metric!r} and mode={mode!r}: for several objectives give two lists of one length, such as "
        "metric=['accuracy', 'latency'], mode=['max', 'min']; for one, a name each",
    )
    for each in mode:
        require(each in ("min", "max"), f"mode={mode!r}: {each!r} is neither 'min' nor 'max'")
    return tuple(map(Objective, metric, mode))


def require_both(metric: str | None, mode: str | None) -> None:
    """Refuse one of the two without the other: no trial would be the best.

    Raises:
        ConfigError: one is missing.
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
    """Where a report is: worst of all in all, with a NaN or infinity; None if it lacks an objective."""
    point = []
    for objective in objectives:
        value = lookup(report, objective.metric)
        if not is_number(value):
            return None
        point.append(-float(value) if objective.mode == "min" else float(value))
    return tuple(point) if all(map(math.isfinite, point)) else (-math.inf,) * len(point)


def dominates(one: Point, other: Point) -> bool:
    """True if `one` is nowhere worse, and somewhere better."""
    return one != other and all(mine >= theirs for mine, theirs in zip(one, other, strict=True))


def front_of(points: Sequence[Point]) -> list[int]:
    """The places of the points that no other dominates, in their order; equal ones are all in."""
    # The best of the first objective come first, so that most others meet one that dominates them soon.
    order = sorted(range(len(points)), key=lambda place: [-value for value in points[place]])
    front: list[int] = []
    for place in order:
        # What comes later in this order dominates nothing that came before.
        if not any(dominates(points[other], points[place]) for other in front):
            front.append(place)
    return sorted(front)


class ParetoRanking:
    """Points ranked as they come: by fronts, each without the ones before, and spread out inside a front.

    Non-dominated sorting, and inside a front the order in which a greedy epsilon-net takes the points: the
    earliest, then whatever is farthest from those taken. R. Schmucker, M. Donini, M. B. Zafar, D. Salinas and
    C. Archambeau, "Multi-objective Asynchronous Successive Halving" (arXiv 2106.12639), section 4.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._fronts: list[list[int]] = []
        """Places of points, in the order in which they came."""

    def __len__(self) -> int:
        return len(self._points)

    def add(self, point: Point) -> int:
        """Take a point in; return its rank, from 1, among all that came so far."""
        place, points = len(self._points), self._points
        points.append(point)
        # What a front has somebody to dominate it with, all fronts before that have too.
        own = bisect_left(self._fronts, True, key=lambda front: not self._dominated(point, front))
        moving, number = [place], own
        while number < len(self._fronts):  # who is dominated now goes into the next front
            front = self._fronts[number]
            pushed = [each for each in front if self._dominated(points[each], moving)]
            if len(pushed) == len(front):  # and takes all of the further ones along
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
        """A front in the order of a greedy epsilon-net; distances are in shares of the front's extent."""
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


SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")
NONE_BEST = "none, all trials have failed"
"""In place of the best trial, where `all_failed` holds."""


def what_is_best(
    metric: str | None,
    mode: str | None,
    usual: tuple[str | None, str | None],
    objectives: Sequence[Objective] = (),
) -> tuple[str, str]:
    """Return the metric and the mode that a question about the best trial means.

    Args:
        metric: asked for; None: the experiment's.
        mode: the same.
        usual: the experiment's own two, where it has one objective.
        objectives: where it has several.

    Raises:
        ConfigError: it can't be told, or the mode is neither "min" nor "max".
    """
    modes = {each.metric: each.mode for each in objectives}
    mode = mode or modes.get(metric or "") or usual[1]
    metric = metric or usual[0]
    if objectives and (metric is None or mode is None):
        raise TuneArgumentError(
            f"the objectives are {list(modes)}, and none of them alone says what is best: give one as "
            "metric, or look at pareto_front()"
        )
    if metric is None or mode is None:
        raise TuneArgumentError(
            "which trial is best? Give metric and mode here, or in TuneConfig(metric='loss', mode='min')"
        )
    require_one_of("mode", mode, ("min", "max"))
    return metric, mode


def all_failed(trials: Sequence[Trial]) -> bool:
    """Return whether there are trials and each of them has failed: no display names one of them the best."""
    return bool(trials) and all(trial.status is TrialStatus.ERROR for trial in trials)


def best_last(trials: Sequence[Trial], metric: str | None, mode: str | None) -> Trial | None:
    """Return the trial whose last report is best, the first of equals.

    None: there is no metric, no last report has it as a finite number, or all trials have failed.
    """
    if metric is None or all_failed(trials):
        return None
    sign = -1 if mode == "min" else 1
    rated = [trial for trial in trials if is_finite(lookup(trial.last_result, metric))]
    return max(rated, key=lambda trial: sign * lookup(trial.last_result, metric), default=None)


def best_row(reports: Sequence[Mapping[str, Any]], metric: str, mode: str) -> dict[str, Any] | None:
    """Return the report with the best finite `metric`, the earliest of equals; None if there is none."""
    best: Mapping[str, Any] | None = None
    best_score = -math.inf
    for report in reports:
        value = lookup(report, metric)
        if is_number(value) and math.isfinite(value):
            score = -value if mode == "min" else value
            if best is None or score > best_score:
                best, best_score = report, score
    return best  # type: ignore[return-value]  # reports are dictionaries; Mapping lets callers pass any


def trial_score(
    history: Sequence[Mapping[str, Any]], metric: str, mode: str, scope: str, *, keep_all: bool
) -> float | None:
    """Return the number that stands for a trial, larger is better; None: it has none.

    Args:
        history: its reports, oldest first.
        metric: name of the value to compare.
        mode: "min" or "max".
        scope: one of SCOPES.
        keep_all: let NaN and infinities stand; NaN is then worst.

    Raises:
        ConfigError: `scope` is none of SCOPES.
    """
    require_one_of("scope", scope, SCOPES)
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
    """Return, for each number that was reported: max, min, avg, last, last-5-avg and last-10-avg.

    Args:
        reports: flat ones, oldest first.
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
    """Those that are not NaN, which is neither more nor less than anything; all, if all are."""
    return [value for value in values if value == value] or values


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
