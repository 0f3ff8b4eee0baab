"""Ranks of points with several objectives."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tests.tune.test_objectives import numbers
from trainkit.plugins.pareto.scheduler import ParetoRanking
from trainkit.tune.core.objectives import front_of


def ranked(points):
    """All places, best first, worked out anew from the words of `ParetoRanking`."""
    order, left = [], list(range(len(points)))
    while left:
        front = [left[place] for place in front_of([points[place] for place in left])]
        left = [place for place in left if place not in front]
        order += spread(points, front)
    return order


def spread(points, front):
    """The earliest first, then whatever is farthest from those before it, in shares of the front's extent."""
    where = {place: [] for place in front}
    for values in zip(*(points[place] for place in front), strict=True):
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        width = (max(finite) - min(finite)) or 1.0
        for place, value in zip(front, values, strict=True):
            where[place].append((value - min(finite)) / width if math.isfinite(value) else -1.0)
    taken, left = front[:1], front[1:]
    while left:
        far = [min(math.dist(where[each], where[other]) for other in taken) for each in left]
        taken.append(left.pop(far.index(max(far))))
    return taken


def ranks(points):
    """Of each point, when it came."""
    ranking = ParetoRanking()
    return [ranking.add(point) for point in points]


@given(st.lists(st.tuples(numbers, numbers, st.integers(0, 2)), min_size=1, max_size=25))
def test_points_are_ranked_as_they_come(points):
    """The rank of each is its place in the order of all that came so far."""
    expected = [ranked(points[:number]).index(number - 1) + 1 for number in range(1, len(points) + 1)]
    assert ranks(points) == expected


def test_inside_a_front_the_far_ones_come_first():
    points = [(0.0, 10.0), (1.0, 9.0), (10.0, 0.0), (5.0, 5.0)]
    for factor in (1, 1000):
        assert ranks([(x * factor, y) for x, y in points]) == [1, 2, 2, 3]
