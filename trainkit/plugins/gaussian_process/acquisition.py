"""Expected improvement, and the rows (encoded configurations) at which it is largest.

Source: Ament, Daulton, Eriksson, Balandat, Bakshy, "Unexpected Improvements to Expected Improvement for
Bayesian Optimization", NeurIPS 2023, for the logarithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainkit.plugins.gaussian_process.constraints import Feasibility, distribution
from trainkit.plugins.gaussian_process.encoding import Encoding, Floats
from trainkit.plugins.gaussian_process.minimize import minimize
from trainkit.plugins.gaussian_process.model import GaussianProcess

if TYPE_CHECKING:
    from numpy.random import Generator

CANDIDATES = 400
"""Number of the first candidates, of which half are random and half are near good results."""
GOOD = 5
"""Number of good results near which candidates are drawn."""
WIDTHS = (0.3, 0.1, 0.03)
"""Standard deviations of the changes to good results, as shares of a parameter's range."""
REFINED = 4
"""Number of the best candidates that are improved further."""
NEIGHBOURS = 16
"""Number of neighbours of each of the best candidates, for each standard deviation in `CLOSER`."""
CLOSER = (0.1, 0.02)

_ROOT_2PI = math.sqrt(2 * math.pi)
_FAR = -25.0
"""Value of u below which the two terms of h(u) cancel; `_log_gain` defines h."""


def log_improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """Return the logarithm of the expectation of max(best - loss, 0), also where the expectation is tiny.

    Args:
        best: the smallest loss so far, which a new configuration shall improve.
        mean: means of normally distributed losses.
        deviation: standard deviations of the losses.
    """
    return _log_gain((best - mean) / deviation)[0] + np.log(deviation)


def _log_gain(steps: Floats) -> tuple[Floats, Floats]:
    """Return the logarithm of h(u) = density(u) + u * distribution(u), and its derivative."""
    near = np.maximum(steps, _FAR)
    density = np.exp(-0.5 * near * near) / _ROOT_2PI
    shares = distribution(near)
    gain = density + near * shares
    squares = np.minimum(steps, _FAR) ** 2
    # For such small u, the first terms of the asymptotic series are exact to 1e-7.
    series = 1 - 3 / squares + 15 / squares**2
    far = -0.5 * squares - math.log(_ROOT_2PI) - np.log(squares) + np.log(series)
    is_near = steps > _FAR
    slope = np.where(is_near, shares / gain, -np.minimum(steps, _FAR) * (1 + 2 / squares))
    return np.where(is_near, np.log(gain), far), slope


@dataclass(frozen=True)
class Gain:
    """Logarithm of the expected improvement, times the probability that a row is feasible.

    Attributes:
        process: process of the losses.
        best: the loss to improve; None: no trial is feasible, and only the probability counts.
        feasibility: probability of a feasible row; None: there are no constraints.
    """

    process: GaussianProcess
    best: float | None
    feasibility: Feasibility | None = None

    def __call__(self, rows: Floats) -> Floats:
        """Return the gain of each of `rows`."""
        found: Floats = np.zeros(len(rows))
        if self.best is not None:
            found += log_improvement(self.best, *self.process.predict(rows))
        if self.feasibility is not None:
            found += self.feasibility.log_probability(rows)
        return found

    def gradients(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the gain of each of `rows`, and its derivatives by each column, shape (m, d)."""
        gain, slope = np.zeros(len(rows)), np.zeros(rows.shape)
        if self.best is not None:
            mean, deviation, by_mean, by_deviation = self.process.gradients(rows)
            steps = (self.best - mean) / deviation
            gain, by_steps = _log_gain(steps)
            gain = gain + np.log(deviation)
            factors = (by_steps / deviation)[:, None]
            slope = -factors * (by_mean + steps[:, None] * by_deviation) + by_deviation / deviation[:, None]
        if self.feasibility is not None:
            logs, by_logs = self.feasibility.gradients(rows)
            gain, slope = gain + logs, slope + by_logs
        return gain, slope


def proposals(
    process: GaussianProcess,
    encoding: Encoding,
    rng: Generator,
    feasibility: Feasibility | None = None,
    feasible: Floats | None = None,
    tried: Floats | None = None,
) -> Floats:
    """Return rows of the space, those with the largest gain first; shape (m, d).

    Rows that were tried are left out.

    Args:
        process: process of the losses.
        encoding: encoding of the rows.
        rng: generator of the random candidates.
        feasibility: probability of a feasible row; None: there are no constraints.
        feasible: with constraints, the rows of the feasible trials, shape (k, d).
        tried: rows of all trials, shape (n, d); None: the rows of the process.
    """
    known = process.rows if feasible is None else feasible
    merit = process.mean(known)
    gain = Gain(process, float(merit.min()) if len(known) else None, feasibility)
    if feasibility is not None and not len(known):
        known = process.rows
        merit = -feasibility.log_probability(known)
    good = known[np.argsort(merit, kind="stable")[:GOOD]]
    half = CANDIDATES // 2
    rows = np.concatenate(
        [
            encoding.from_unit(rng.random((half, len(encoding)))),
            neighbours(
                encoding, good[rng.integers(len(good), size=half)], rng.choice(WIDTHS, size=(half, 1)), rng
            ),
        ]
    )
    rows = encoding.snapped(rows)
    gains = gain(rows)
    for width in CLOSER:
        top = rows[np.argsort(-gains, kind="stable")[:REFINED]]
        near = encoding.snapped(neighbours(encoding, np.repeat(top, NEIGHBOURS, axis=0), width, rng))
        rows = np.concatenate([near, rows])
        gains = np.concatenate([gain(near), gains])
    climbed = _climbed(gain, encoding, rows[np.argsort(-gains, kind="stable")[:REFINED]])
    rows = np.concatenate([climbed, rows])
    gains = np.concatenate([gain(climbed), gains])
    rows = rows[np.argsort(-gains, kind="stable")]
    left_out = set(_rounded(process.rows if tried is None else tried))
    return rows[[row not in left_out for row in _rounded(rows)]]


def _rounded(rows: Floats) -> list[bytes]:
    # The row of a suggested configuration may differ from the row that the search found, for example because
    # a domain's upper bound is not a value of the domain.
    return [row.tobytes() for row in rows.round(9)]


def neighbours(encoding: Encoding, rows: Floats, width: Floats | float, rng: Generator) -> Floats:
    """Return a changed copy of each of `rows`, in which at least one column is changed.

    Positions change by normally distributed steps with the standard deviation `width`. Indices change to any
    other index of the list.
    """
    size = rows.shape
    shares = rng.choice([min(1.0, 1.5 / max(encoding.active, 1.0)), 0.5, 1.0], size=(size[0], 1))
    listed = encoding.categories > 0
    # Indices change half as often as positions, because a change of an index is a large step.
    chosen = (rng.random(size) < shares) & (~listed | (rng.random(size) < 0.5))
    chosen[np.arange(size[0]), rng.integers(size[1], size=size[0])] = True
    moved = np.abs(rows + rng.normal(size=size) * width)  # steps beyond a bound are reflected
    moved = np.clip(np.where(moved > 1, 2 - moved, moved), 0.0, 1.0)
    steps = 1 + np.floor(rng.random(size) * (encoding.categories - 1))
    other = (rows + steps) % np.maximum(encoding.categories, 1)
    return np.where(chosen, np.where(listed, other, moved), rows)


def _climbed(gain: Gain, encoding: Encoding, starts: Floats) -> Floats:
    """Return the rows with local maxima of the gain, found by climbing from `starts`."""
    movable = np.flatnonzero((encoding.categories == 0) & ~encoding.parents)
    if not len(movable):
        return starts
    active = encoding.activity(starts)[:, movable]

    def loss(moved: Floats) -> tuple[float, Floats]:
        rows = starts.copy()
        rows[:, movable] = moved.reshape(active.shape)
        gains, slopes = gain.gradients(rows)
        return -float(gains.sum()), -np.where(active, slopes[:, movable], 0.0).ravel()

    first = starts[:, movable].ravel()
    low, high = (np.tile(each[movable], len(starts)) for each in (encoding.low, encoding.high))
    ended = minimize(loss, first, low, high, 15)
    rows = starts.copy()
    rows[:, movable] = ended.reshape(active.shape)
    return encoding.snapped(rows)
