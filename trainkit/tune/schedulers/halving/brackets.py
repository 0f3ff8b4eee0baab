"""Hyperband's brackets, counted in whole numbers: how many trials each takes, and where it judges them.

No logarithm is taken: log(243)/log(3) is 4.999..., and the widest bracket would be lost.

Source: Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18(185),
2018, Algorithm 1. For R=81 and eta=3 the paper contradicts itself: its pseudocode gives brackets of
81, 34, 15, 8 and 5 trials, its example table 81, 27, 9, 6 and 5. These are the pseudocode's.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainkit.tune.schedulers.halving.rungs import bracket_count, bracket_sizes


@dataclass(frozen=True)
class BracketPlan:
    """A bracket before any trial is in it.

    Attributes:
        size: how many trials it takes.
        levels: where they are judged, in units of time; at the last, `max_t`, they end.
        lowest: place of the first of these among the levels of all brackets, from 0.
    """

    size: int
    levels: tuple[float, ...]
    lowest: int

    def rounds(self, factor: float) -> list[tuple[float, int]]:
        """Each level, and how many trials reach it if none fails: `size`, and then floor(n / factor)."""
        found, entries = [], self.size
        for level in self.levels:
            found.append((level, entries))
            entries = places(entries, factor)
        return found


def shared_levels(max_t: float, factor: float) -> tuple[float, ...]:
    """Return max_t / factor**k, rounded half up, for all k for which that is 1 at least; `max_t` is last.

    For 81 and 3: 1, 3, 9, 27, 81; for 100 and 3: 1, 4, 11, 33, 100. Every bracket ends at `max_t`, and
    those that begin later have the last ones of the same levels.
    """
    levels, divisor = [max_t], factor
    for _ in range(bracket_count(1, max_t, factor) - 1):
        levels.append(int((2 * max_t + divisor) // (2 * divisor)))
        divisor *= factor
    return tuple(reversed(levels))


def bracket_plans(max_t: float, factor: float) -> list[BracketPlan]:
    """Return the brackets of one turn, the widest first.

    Args:
        max_t: the most that a trial may spend, R in the paper; above 0.
        factor: eta, at least 2.
    """
    levels = shared_levels(max_t, factor)
    sizes = bracket_sizes(1, max(1, max_t), factor)
    return [BracketPlan(size, levels[skipped:], skipped) for skipped, size in enumerate(sizes)]


def places(entries: int, factor: float) -> int:
    """How many of so many go on: floor(entries / factor), and always one."""
    return max(1, int(entries // factor))
