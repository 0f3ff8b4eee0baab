"""Probability that a configuration satisfies the constraints, from a Gaussian process for each constraint.

Source: Gardner, Kusner, Xu, Weinberger, Cunningham, "Bayesian Optimization with Inequality Constraints", ICML
2014.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainkit.plugins.gaussian_process.encoding import Encoding, Floats
from trainkit.plugins.gaussian_process.model import SMOOTH, GaussianProcess, fitted
from trainkit.tune.core.constraints import Constraint
from trainkit.tune.core.metrics import number_of

_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)
_FAR = -10.0
"""Argument below which the logarithm of the normal distribution comes from a series."""
_LARGEST = 1e150
"""Excess of NaN and infinity, which is far beyond the excesses of numbers."""


def excesses_of(report: Mapping[str, Any], constraints: Sequence[Constraint]) -> list[float]:
    """Return a report's excess over each limit, positive if violated; NaN without the constraint's metric.

    The excess is the logarithm of value / limit where both are positive, and relative to the limit elsewhere,
    beyond a factor of 1 without a jump.
    """
    values = [number_of(report, each.metric) for each in constraints]
    return [
        math.nan if value is None else _excess(each, float(value))
        for each, value in zip(constraints, values, strict=True)
    ]


def _excess(constraint: Constraint, value: float) -> float:
    plain = constraint.excess(value)
    if constraint.limit > 0 and 0 < value < math.inf:
        found = math.log(value) - math.log(constraint.limit)
        found = found if constraint.sense == "<=" else -found
        # The logarithm of two numbers that differ by a hair may be 0.
        return found if (found > 0) == (plain > 0) else plain
    return min(max(plain, -_LARGEST), _LARGEST)


class Feasibility:
    """Probability that all constraints are satisfied, as a function of the configuration.

    Args:
        encoding: encoding of the rows.
        rows: the trials in the order of their suggestions, shape (n, d).
        excesses: the trials' excess over each limit, shape (n, k); NaN if unknown.
    """

    def __init__(self, encoding: Encoding, rows: Floats, excesses: Floats) -> None:
        self._processes = [
            _process_of(encoding, rows[known], column[known])
            for column in excesses.T
            if np.any(known := ~np.isnan(column))
        ]

    def log_probability(self, rows: Floats) -> Floats:
        """Return the logarithm of the probability for each of `rows`."""
        found: Floats = np.zeros(len(rows))
        for process, limit in self._processes:
            mean, deviation = process.predict(rows)
            found += _log_distribution((limit - mean) / deviation)
        return found

    def gradients(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the logarithm of the probability, and its derivatives by each column, shape (m, d)."""
        found, slopes = np.zeros(len(rows)), np.zeros(rows.shape)
        for process, limit in self._processes:
            mean, deviation, by_mean, by_deviation = process.gradients(rows)
            steps = (limit - mean) / deviation
            logs = _log_distribution(steps)
            factors = np.exp(-0.5 * steps * steps - _LOG_ROOT_2PI - logs) / deviation
            found += logs
            slopes -= factors[:, None] * (by_mean + steps[:, None] * by_deviation)
        return found, slopes


def _process_of(encoding: Encoding, rows: Floats, excesses: Floats) -> tuple[GaussianProcess, float]:
    """Return the process of a constraint, and the value of the process at the limit."""
    # NaN and infinity tell the side of the limit, but not the distance.
    finite = excesses[np.abs(excesses) < _LARGEST]
    farthest = np.abs(finite).max(initial=0.0) or 1.0
    excesses = np.clip(excesses, -farthest, finite.max(initial=0.0) or farthest)
    # The inverse hyperbolic sine keeps 0 and the signs, and is the logarithm of large excesses.
    values = np.arcsinh(excesses / (np.median(np.abs(excesses)) or 1.0))
    centre, scale = values.mean(), values.std() or 1.0
    model = fitted(encoding, rows, np.abs(values), (values - centre) / scale, prior=SMOOTH)
    return GaussianProcess(*model), float(-centre / scale)


def distribution(steps: Floats) -> Floats:
    """Return the standard normal distribution function."""
    arguments = (steps / -math.sqrt(2)).ravel().tolist()
    return np.fromiter(map(math.erfc, arguments), float, len(arguments)).reshape(steps.shape) / 2


def _log_distribution(steps: Floats) -> Floats:
    """Return the logarithm of the standard normal distribution function."""
    shares, far = distribution(np.maximum(steps, _FAR)), np.minimum(steps, _FAR)
    squares = far * far
    series = 1 - 1 / squares + 3 / squares**2 - 15 / squares**3
    return np.where(
        steps > _FAR, np.log(shares), -0.5 * squares - _LOG_ROOT_2PI - np.log(-far) + np.log(series)
    )
