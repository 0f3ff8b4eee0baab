"""Rungs and brackets of successive halving, counted in whole numbers.

No logarithm is taken: log(243)/log(3) is 4.999..., and a rung would be lost.

Source: Jamieson and Talwalkar 2016 (SHA); Li et al. 2018, JMLR 18(185) (Hyperband's bracket sizes).
"""

from __future__ import annotations

from bisect import bisect_left, insort


def rung_levels(minimum: float, maximum: float, factor: float, bracket: int = 0) -> list[float]:
    """Return minimum * factor**(bracket + k) for k = 0, 1, ... while below `maximum`, then `maximum`."""
    level = minimum
    for _ in range(bracket):
        level *= factor
    levels = []
    while level < maximum:
        levels.append(level)
        level *= factor
    return [*levels, maximum]


def bracket_count(minimum: float, maximum: float, factor: float) -> int:
    """How many brackets differ: those whose first level is not above `maximum`."""
    count, level = 0, minimum
    while level <= maximum:
        count += 1
        level *= factor
    return count


def bracket_sizes(minimum: float, maximum: float, factor: float) -> list[int]:
    """Hyperband's number of configurations for each bracket, bracket 0 (stops earliest) first.

    For 1, 81, 3: [81, 34, 15, 8, 5].
    """
    count = bracket_count(minimum, maximum, factor)
    sizes = []
    for bracket in range(count):
        halvings = count - 1 - bracket
        configurations: float = count
        for _ in range(halvings):
            configurations *= factor
        sizes.append(int(-(-configurations // (halvings + 1))))  # rounded up
    return sizes


class Rung:
    """The scores recorded at one level, larger is better.

    A record costs one binary search and one move of memory: microseconds with 10,000 entries.
    """

    def __init__(self, level: float) -> None:
        self.level = level
        self._ascending: list[float] = []

    def __len__(self) -> int:
        return len(self._ascending)

    def record(self, score: float) -> int:
        """Add `score`; return its rank from 1, where equal scores that came earlier rank before it."""
        rank = len(self._ascending) - bisect_left(self._ascending, score) + 1
        insort(self._ascending, score)
        return rank

    def places(self, factor: float) -> int:
        """How many of the entries so far may go on: their floor(n / factor) best, and always one."""
        return max(1, int(len(self._ascending) // factor))

    def cutoff(self, factor: float) -> float:
        """The score at the last of these places."""
        return self._ascending[-self.places(factor)]
