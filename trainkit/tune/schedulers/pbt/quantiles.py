"""Who exploits whom in a population: its worst and its best quantile.

Source: Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846, section 4
(truncation selection).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def quantile_size(members: int, fraction: float) -> int:
    """How many members each quantile has: ceil(members * fraction), at most half of them; 0 for one alone.

    A product that is above a whole number by rounding only counts as that number: 10 * 0.3 is 3.
    """
    return min(math.ceil(members * fraction - 1e-9), members // 2) if members > 1 else 0


@dataclass(frozen=True)
class Quantiles:
    """A population that was ranked.

    Attributes:
        ranked: members with a score that counts, best first.
        lower: of these the worst, and then those whose score doesn't count.
        upper: of these the best, best first.
    """

    ranked: tuple[str, ...]
    lower: frozenset[str]
    upper: tuple[str, ...]

    def rank(self, member: str) -> int | None:
        """From 1; None for a member whose score doesn't count."""
        return self.ranked.index(member) + 1 if member in self.ranked else None


def quantiles(scores: Sequence[tuple[str, float]], fraction: float) -> Quantiles:
    """Rank a population.

    Args:
        scores: members with their scores, larger is better; of equal ones the first ranks before. One of
            minus infinity doesn't count: its member is ranked nowhere and is in the lower quantile as soon
            as any other one's counts.
        fraction: of the population that each quantile takes, 0 to 0.5; with 0 both are empty.
    """
    finite = [(member, score) for member, score in scores if score > -math.inf]
    ranked = tuple(member for member, _ in sorted(finite, key=lambda pair: -pair[1]))
    lost = [member for member, score in scores if not score > -math.inf]
    size = quantile_size(len(ranked), fraction)
    if not fraction or not ranked:
        return Quantiles(ranked, frozenset(), ())
    upper = ranked[: max(size, 1)] if lost or size else ()
    return Quantiles(ranked, frozenset([*ranked[len(ranked) - size :], *lost]), upper)
