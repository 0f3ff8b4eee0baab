"""Several objectives: what they are called, which results none beats in all of them; pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.tune.checks import is_name, is_number, require
from trainkit.tune.values import lookup

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
