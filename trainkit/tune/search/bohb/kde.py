"""A kernel density over rows of numbers and categories: bandwidths, density, samples; NumPy only.

Each row is the centre of a product of kernels, one a column: for a number a normal distribution, truncated
to the column's bounds and normalised there; for a category the kernel of Aitchison and Aitken, which keeps
the category with probability 1 - h and takes each of the c - 1 others with h / (c - 1).

Bandwidths are the "normal reference" rule 1.06 * spread * n**(-1 / (4 + d)), as BOHB takes them from
statsmodels. The spread of a category is none of its labels', which mean nothing: with shares p it is
sqrt((1 - sum(p**2)) / 2), what the standard deviation of the labels 0 and 1 is for two categories.

Sources: Falkner, Klein, Hutter, "BOHB", ICML 2018, arXiv:1807.01774; Aitchison, Aitken, "Multivariate binary
discrimination by the kernel method", Biometrika 63(3), 1976.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"

FAR = 9.0
"""Standard deviations beyond which nothing of a normal distribution is left in double precision."""

_NORMAL = NormalDist()
_CLOSEST = 2.0**-53
"""To 0 and to 1, of what a normal distribution is asked for the quantile of."""


@dataclass(frozen=True, slots=True)
class Column:
    """One dimension.

    Attributes:
        categories: how many; values are their indices, from 0. None: values are numbers.
        lower: bound of the numbers; may be infinite.
        upper: the same.
    """

    categories: int | None = None
    lower: float = 0.0
    upper: float = 1.0


def bandwidths(data: Floats, columns: Sequence[Column], least: float = 0.0) -> Floats:
    """One bandwidth a column.

    Args:
        data: rows, of shape (n, d).
        columns: d of them.
        least: no bandwidth is smaller.

    Returns:
        Of shape (d,); for c categories at most (c - 1) / c, where the kernel no longer tells them apart.
    """
    number, dimensions = data.shape
    scale = 1.06 * float(number) ** (-1.0 / (4 + dimensions))
    found: Floats = np.maximum(scale * data.std(axis=0), least)
    for place, column in enumerate(columns):
        if column.categories is not None:
            shares = np.bincount(data[:, place].astype(int), minlength=column.categories) / number
            spread = math.sqrt(max(0.0, 1.0 - float(shares @ shares)) / 2)
            most = (column.categories - 1) / column.categories
            found[place] = min(max(scale * spread, least), most)
    return found


class KernelDensity:
    """The density with a kernel at each row.

    Args:
        data: rows without NaN, of shape (n, d), n at least 1.
        columns: d of them.
        least: no bandwidth is smaller; above 0.

    Attributes:
        bandwidths: of shape (d,).
    """

    def __init__(self, data: Floats, columns: Sequence[Column], least: float = 1e-3) -> None:
        self._data = data
        self._columns = columns
        self.bandwidths = bandwidths(data, columns, least)
        self._numeric = [place for place, column in enumerate(columns) if column.categories is None]
        self._scaled = self._in_widths(data)
        # Of every kernel what does not depend on where it is asked for: what it is divided by, its square.
        self._logs = -0.5 * (self._scaled**2).sum(axis=1)
        for place in self._numeric:
            width = self.bandwidths[place]
            below, above = _cut_off(data[:, place], columns[place], width)
            self._logs -= np.log((above - below) * width * math.sqrt(2 * math.pi))

    def _in_widths(self, rows: Floats) -> Floats:
        """The numbers of `rows` from the middle of the data, in bandwidths."""
        if not self._numeric:
            return np.zeros((len(rows), 0))
        middle = self._data[:, self._numeric].mean(axis=0)
        scaled: Floats = (rows[:, self._numeric] - middle) / self.bandwidths[self._numeric]
        return scaled

    def pdf(self, points: Floats) -> Floats:
        """The density at each of `points`, of shape (m, d), which are inside the bounds."""
        # The square of a difference by its parts, as one product of matrices: ten times as fast.
        scaled = self._in_widths(points)
        logs = scaled @ self._scaled.T + self._logs - 0.5 * (scaled**2).sum(axis=1)[:, None]
        for place, column in enumerate(self._columns):
            if column.categories is not None and column.categories > 1:
                width = self.bandwidths[place]
                other = math.log(width / (column.categories - 1))
                equal = points[:, place, None] == self._data[None, :, place]
                logs += other + (math.log(1 - width) - other) * equal
        densities: Floats = np.exp(logs).mean(axis=1)
        return densities

    def sample(self, rng: Generator, number: int, factor: float = 1.0) -> Floats:
        """Draw rows near rows of the data.

        Args:
            rng: all randomness.
            number: of rows.
            factor: times which the bandwidths of numbers are taken. Those of categories stay: they keep
                theirs with probability 1 - h, and otherwise get any of all.
        """
        drawn = self._data[rng.integers(len(self._data), size=number)]
        for place, column in enumerate(self._columns):
            width = self.bandwidths[place]
            if column.categories is not None:
                moved = rng.random(number) < width
                anew = rng.integers(column.categories, size=number)
                drawn[:, place] = np.where(moved, anew, drawn[:, place])
            else:
                drawn[:, place] = _near(drawn[:, place], column, factor * width, rng)
        return drawn


def _near(centres: Floats, column: Column, width: float, rng: Generator) -> Floats:
    """One draw from the truncated normal distribution around each of `centres`."""
    below, above = _cut_off(centres, column, width)
    shares = below + (above - below) * rng.random(len(centres))
    shares = np.clip(shares, _CLOSEST, 1 - _CLOSEST)
    steps = np.array(list(map(_NORMAL.inv_cdf, shares.tolist())))
    return np.clip(centres + width * steps, column.lower, column.upper)


def _cut_off(centres: Floats, column: Column, width: float) -> tuple[Any, Any]:
    """The shares of the normal distributions around `centres` below the lower and below the upper bound."""
    return _shares_below((column.lower - centres) / width), _shares_below((column.upper - centres) / width)


def _shares_below(steps: Floats) -> Floats:
    """The normal distribution function; NumPy has none."""
    shares = (steps > 0).astype(float)
    near = np.abs(steps) < FAR
    arguments = (steps[near] / -math.sqrt(2)).tolist()
    shares[near] = 0.5 * np.fromiter(map(math.erfc, arguments), dtype=float, count=len(arguments))
    return shares
