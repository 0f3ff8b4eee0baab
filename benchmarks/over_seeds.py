"""Means over seeds, and verdicts on which side is better, by standard errors of the difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

BETTER, EQUAL, WORSE = "better", "equal", "WORSE"


class Cell(NamedTuple):
    """Mean over `seeds`; `sd` is None if only the mean is known."""

    mean: float
    sd: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Cell:
        """Return the cell for one value per seed."""
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
        return cls(mean, math.sqrt(spread), len(values))

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + (f"±{self.sd:.4f}" if self.sd is not None else "")


@dataclass(frozen=True)
class Comparison:
    """Difference by which our value is lower than theirs, in the problem's units, and its standard error.

    Lower is better. Where more is better, both sides are negated first.
    """

    gain: float
    error: float

    @property
    def verdict(self) -> str:
        """Return the verdict; a difference within two errors, which include rounding to digits, is equal."""
        if abs(self.gain) <= 2 * self.error:
            return EQUAL
        return BETTER if self.gain > 0 else WORSE


def against(ours: Sequence[float], theirs: Cell, digit: float = 5e-5) -> Comparison:
    """Compare with a row of which only mean and deviation are known.

    Args:
        ours: one value per seed.
        theirs: the known row; if it has no deviation, ours is used.
        digit: half a unit of the last printed digit of `theirs`.
    """
    own = Cell.of(ours)
    spread = theirs.sd if theirs.sd is not None else own.sd
    error = math.sqrt((own.sd or 0.0) ** 2 / own.seeds + (spread or 0.0) ** 2 / theirs.seeds)
    return Comparison(theirs.mean - own.mean, error + digit / 2)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare seed by seed, for two sides that ran on the same streams."""
    gains = Cell.of([b - a for a, b in zip(ours, theirs, strict=True)])
    return Comparison(gains.mean, (gains.sd or 0.0) / math.sqrt(gains.seeds))
