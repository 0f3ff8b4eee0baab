"""Incumbent of a search after an amount of work, and its distance from the best possible value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SLACK = 1e-6
"""Tolerance for sums of durations."""


class Seen(NamedTuple):
    """A report: the work done by then, the trial's resource, the observed value and the regret.

    `observed` and `regret` are better if smaller. `regret` is the noise-free regret at the largest resource.
    """

    work: float
    resource: float
    observed: float
    regret: float


def regrets(reports: Iterable[Seen], points: Sequence[float]) -> list[float]:
    """Return the incumbent's regret after each amount of work in `points`; NaN before the first report.

    The incumbent is the best observed at the largest resource that any trial has reached by then.
    """
    ordered = sorted(reports, key=lambda seen: seen.work)
    found, best, place = [], None, 0
    for point in points:
        while place < len(ordered) and ordered[place].work <= point + SLACK:
            seen, place = ordered[place], place + 1
            if best is None or (seen.resource, -seen.observed) > (best.resource, -best.observed):
                best = seen
        found.append(math.nan if best is None else best.regret)
    return found
