"""Means over seeds, and whether one side is better: by standard errors of the difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

BETTER, EQUAL, WORSE = "better", "equal", "WORSE"


class Cell(NamedTuple):
    """A mean over `seeds`; `sd` is None where only the mean is known."""

    mean: float
    sd: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Cell:
        """Of one value a seed."""
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
        return cls(mean, math.sqrt(spread), len(values))

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + (f"±{self.sd:.4f}" if self.sd is not None else "")


@dataclass(frozen=True)
class Comparison:
    """How much lower ours is than theirs, in the problem's units, and the standard error of that.

    Lower is better; where more is better both sides are negated before.
    """

    gain: float
    error: float

    @property
    def verdict(self) -> str:
        """Equal is within two standard errors, and what rounding to the digits of a cell may hide."""
        if abs(self.gain) <= 2 * self.error:
            return EQUAL
        return BETTER if self.gain > 0 else WORSE


def against(ours: Sequence[float], theirs: Cell, digit: float = 5e-5) -> Comparison:
    """Compare with a row of which only mean and deviation are known.

    Args:
        ours: one value a seed.
        theirs: where it has no deviation, ours is taken for it.
        digit: half the last digit that `theirs` is given to.
    """
    own = Cell.of(ours)
    spread = theirs.sd if theirs.sd is not None else own.sd
    error = math.sqrt((own.sd or 0.0) ** 2 / own.seeds + (spread or 0.0) ** 2 / theirs.seeds)
    return Comparison(theirs.mean - own.mean, error + digit / 2)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare seed by seed, where both sides were run on the same streams."""
    gains = Cell.of([b - a for a, b in zip(ours, theirs, strict=True)])
    return Comparison(gains.mean, (gains.sd or 0.0) / math.sqrt(gains.seeds))
