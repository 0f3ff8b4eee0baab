"""Several objectives: what they are called, which results none beats in all of them; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def front_of(points: Sequence[Point], places: Sequence[int] | None = None) -> list[int]:
    """The places of the points that no other dominates, in their order; equal ones are all in.

    Args:
        points: all.
        places: of those that count; None: all.
    """
    counted = range(len(points)) if places is None else places
    # Those that are best by their sum come first, so that most others are met by one that dominates them.
    order = sorted(counted, key=lambda place: [-value for value in points[place]])
    front: list[int] = []
    for place in order:
        # What comes later in this order dominates nothing that came before.
        if not any(dominates(points[other], points[place]) for other in front):
            front.append(place)
    return sorted(front)


def ranked(points: Sequence[Point]) -> list[int]:
    """All places, best first: by fronts, each without the ones before, and spread out inside a front.

    Non-dominated sorting, and inside a front the order in which a greedy epsilon-net takes the points: the
    earliest, then whatever is farthest from those taken. R. Schmucker, M. Donini, M. B. Zafar, D. Salinas and
    C. Archambeau, "Multi-objective Asynchronous Successive Halving" (arXiv 2106.12639), section 4.
    """
    left = list(range(len(points)))
    order: list[int] = []
    while left:
        front = front_of(points, left)
        order += _spread([points[place] for place in front], front)
        taken = set(front)
        left = [place for place in left if place not in taken]
    return order


def _spread(points: Sequence[Point], places: Sequence[int]) -> list[int]:
    """The places in the order of a greedy epsilon-net; distances are in shares of the front's extent."""
    scaled = list(zip(*(_shares(values) for values in zip(*points, strict=True)), strict=True))
    order = [0]
    left = list(range(1, len(places)))
    nearest = [math.dist(each, scaled[0]) for each in scaled]
    while left:
        chosen = left.pop(max(range(len(left)), key=lambda index: nearest[left[index]]))
        order.append(chosen)
        nearest = [
            min(known, math.dist(each, scaled[chosen])) for known, each in zip(nearest, scaled, strict=True)
        ]
    return [places[index] for index in order]


def _shares(values: Sequence[float]) -> list[float]:
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    width = (high - low) or 1.0
    return [(value - low) / width if math.isfinite(value) else -1.0 for value in values]
