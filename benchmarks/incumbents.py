"""What a search knows after so much work: its incumbent, and how far that is from the best there is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SLACK = 1e-6
"""Of sums of durations."""


class Seen(NamedTuple):
    """A report: the work done by then, at which resource it was made, what was observed, what is true.

    `observed` and `regret` are the better the smaller; `regret` is without noise, at the largest resource.
    """

    work: float
    resource: float
    observed: float
    regret: float


def regrets(reports: Iterable[Seen], points: Sequence[float]) -> list[float]:
    """The incumbent's regret after each of `points` of work; NaN while nothing was reported.

    The incumbent is the best observed at the largest resource that any trial has come to by then.
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
