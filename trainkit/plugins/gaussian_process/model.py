"""Gaussian process over rows of an encoding, with a Matern 5/2 kernel that has a length for each column.

The squared distance of two rows is a sum over their columns: the square of the difference of two positions,
or 1 for two different indices, divided by the square of the column's length. The lengths, the variance and
the noise have their most probable values (MAP). The logarithms of these values have normal priors. The prior
of a length grows with the square root of the number of active parameters, so that a model of many parameters
begins as smooth as a model of few parameters.

If trials have ended at different resources, the rows of the results have a last column: the binary logarithm
of the share of the training that is missing, which is 0 for a complete trial. Its length tells how far an
early result agrees with a result at the end. Rows without this column are rows of complete trials.

Source: Rasmussen, Williams, "Gaussian Processes for Machine Learning", 2006, chapters 2, 4 and 5; Hvarfner,
Hellsten, Nardi, "Vanilla Bayesian Optimization Performs Great in High Dimensions", ICML 2024, for the priors;
Yeo, Johnson, "A new family of power transformations to improve normality or symmetry", Biometrika 87(4),
2000, for the scale of losses; Swersky, Snoek, Adams, "Multi-Task Bayesian Optimization", NeurIPS 2013, for a
kernel of the configuration and the resource.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trainkit.plugins.gaussian_process.curves import EarlyReports
from trainkit.plugins.gaussian_process.encoding import Encoding, Flags, Floats
from trainkit.plugins.gaussian_process.minimize import minimize

if TYPE_CHECKING:
    from numpy.typing import NDArray

IN_MODEL = 150
"""Maximum number of results in the model."""
IN_FIT = 64
"""Maximum number of results from which the kernel's parameters are fitted."""
ROOT5 = math.sqrt(5)
_POWERS = np.linspace(-2.0, 3.0, 26)
_DEEPEST = 5.0
"""Largest distance of the best loss from the median, in the unit of the power transform."""
_LARGEST = 1e150
"""Largest loss whose square is finite."""
_FARTHEST = 1e3
"""Largest distance from the median, in quartiles, of the losses that the power transform receives."""
JITTER = 1e-6
"""Share of the variance that is added to the noise, so that the covariance matrix of equal rows can be
inverted.
"""


@dataclass(frozen=True)
class Prior:
    """Means and standard deviations of the normal priors of the logarithms of a kernel's parameters.

    Attributes:
        length: mean for the length of a column, if one parameter is active.
        branch: mean for the length of a column that decides about other parameters. The mean for such a
            column is small, because the results of one branch say little about the results of another branch.
        length_deviation: deviation for lengths.
        resource: mean for the length of the column with the missing share of the training.
        noise: mean for the variance of the noise, for losses with variance 1.
        noise_deviation: deviation for the noise.
    """

    length: float = -1.0
    branch: float = -0.36
    resource: float = 0.69
    length_deviation: float = 1.0
    noise: float = -6.0
    noise_deviation: float = 1.5


SMOOTH = Prior(length=-0.2)
"""Prior with longer lengths, for functions other than the losses of a search."""


@dataclass(frozen=True)
class Kernel:
    """A kernel with its parameters.

    Attributes:
        listed: True for columns with indices, shape (d,).
        weights: 1 / length**2 of each column, shape (d,).
        variance: value of the kernel at distance 0.
        noise: variance of a result's noise.
    """

    listed: Flags
    weights: Floats
    variance: float
    noise: float

    def __call__(self, rows: Floats, others: Floats) -> Floats:
        """Return the covariance of each of `rows`, shape (m, d), with each of `others`, shape (n, d).

        `rows` may lack the last column, which is then 0.
        """
        return self.of_distance(self.distance(rows, others))

    def distance(self, rows: Floats, others: Floats) -> Floats:
        """Return the distances of rows, in units of the columns' lengths; shape (m, n)."""
        roots = np.where(self.listed, 0.0, np.sqrt(self.weights))
        width = rows.shape[1]
        a, b = rows * roots[:width], others * roots
        squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * (a @ b[:, :width].T)
        for place in np.flatnonzero(self.listed):
            squares += self.weights[place] * (rows[:, place, None] != others[:, place])
        found: Floats = np.sqrt(np.maximum(squares, 1e-16))
        return found

    def of_distance(self, distance: Floats) -> Floats:
        """Return the covariance at each distance."""
        scaled = ROOT5 * distance
        return self.variance * (1 + scaled + scaled * scaled / 3) * np.exp(-scaled)

    def slope(self, distance: Floats) -> Floats:
        """Return the derivative of the covariance by half the squared distance, with the opposite sign."""
        scaled = ROOT5 * distance
        return self.variance * 5 / 3 * (1 + scaled) * np.exp(-scaled)


class _Posterior:
    """Negative logarithm of the posterior density of a kernel's parameters, given results.

    The parameters are the logarithms of the lengths, of the variance and of the noise.
    """

    def __init__(self, encoding: Encoding, rows: Floats, losses: Floats, prior: Prior) -> None:
        more = rows.shape[1] - len(encoding)
        self._losses, self._listed = losses, np.append(encoding.categories > 0, [False] * more)
        self._places = np.triu_indices(len(rows), 1)
        differences = rows[self._places[0]] - rows[self._places[1]]
        self._squares = np.where(self._listed, differences != 0, differences**2)
        wide = prior.length + 0.5 * math.log(max(encoding.active, 1.0))
        lengths = np.where(encoding.parents & (encoding.categories > 0), prior.branch, wide)
        lengths = np.append(lengths, [prior.resource] * more)
        variance = math.log(max(float(losses.var()), 1e-6))
        self.means = np.concatenate([lengths, [variance, prior.noise]])
        deviations = [prior.length_deviation] * len(lengths)
        self._precisions = np.array([*deviations, 1.0, prior.noise_deviation]) ** -2.0
        self.low, self.high = self.means - 4, self.means + 4
        self.low[-1], self.high[-1] = -12.0, 1.0

    def kernel(self, logs: Floats) -> Kernel:
        return Kernel(self._listed, np.exp(-2 * logs[:-2]), math.exp(logs[-2]), math.exp(logs[-1]))

    def __call__(self, logs: Floats) -> tuple[float, Floats]:
        kernel = self.kernel(logs)
        distance = np.sqrt(self._squares @ kernel.weights + 1e-16)
        above = kernel.of_distance(distance)
        matrix = np.zeros((len(self._losses),) * 2)
        matrix[self._places] = above
        matrix += matrix.T
        noise = kernel.noise + JITTER * kernel.variance
        np.fill_diagonal(matrix, kernel.variance + noise)
        inverse = np.linalg.inv(matrix)
        weighted = inverse @ self._losses
        log_determinant = float(np.linalg.slogdet(matrix)[1])
        residual = inverse - np.outer(weighted, weighted)
        of_pairs, trace = residual[self._places], float(np.trace(residual))
        by_length = ((of_pairs * kernel.slope(distance)) @ self._squares) * kernel.weights
        by_variance = float(of_pairs @ above) + 0.5 * kernel.variance * (1 + JITTER) * trace
        off = logs - self.means
        value = 0.5 * (float(self._losses @ weighted) + log_determinant + float(self._precisions @ off**2))
        gradient = np.concatenate([by_length, [by_variance, 0.5 * kernel.noise * trace]])
        return value, gradient + self._precisions * off


def fitted_kernel(
    encoding: Encoding, rows: Floats, losses: Floats, prior: Prior | None = None, iterations: int = 20
) -> Kernel:
    """Return the most probable kernel, given results.

    Args:
        encoding: encoding of the rows.
        rows: shape (n, d).
        losses: losses with a mean and a variance near 0 and 1, shape (n,).
        prior: priors of the kernel's parameters; None: the defaults.
        iterations: maximum number of steps.
    """
    posterior = _Posterior(encoding, rows, losses, prior or Prior())
    logs = minimize(posterior, posterior.means, posterior.low, posterior.high, iterations)
    return posterior.kernel(logs)


class Expert(Protocol):
    """Expectation of the loss before the first result, as a normal score.

    Attributes:
        best: rows with the smallest expected losses, the best first.
    """

    best: Floats

    def mean(self, rows: Floats) -> Floats:
        """Return the expected score of each of `rows`."""

    def slopes(self, rows: Floats) -> Floats:
        """Return the derivatives of the expected scores by each column, shape (m, d)."""


class GaussianProcess:
    """Gaussian process, conditioned on results.

    Args:
        kernel: the kernel.
        rows: rows with results, shape (n, d).
        losses: losses of the rows, shape (n,), without the experts' expectation; far from all rows, the
            process expects 0.
        missing: binary logarithm of the missing share of the training of each row, as in `EarlyReports`;
            None: all trials are complete.
        experts: weights and experts; the sum of their expectations is the mean function.

    Attributes:
        kernel: the kernel.
        rows: the rows with results; with `missing`, without repetitions.
    """

    def __init__(
        self,
        kernel: Kernel,
        rows: Floats,
        losses: Floats,
        missing: Floats | None = None,
        experts: Sequence[tuple[float, Expert]] = (),
    ) -> None:
        self.kernel, self._results, self._losses, self._missing = kernel, rows, losses, missing
        self._experts = experts
        self.rows = rows if missing is None else np.unique(rows, axis=0)
        self._inputs = rows if missing is None else np.column_stack([rows, missing])
        matrix = kernel(self._inputs, self._inputs)
        matrix[np.diag_indices(len(rows))] = kernel.variance * (1 + JITTER) + kernel.noise
        self._root = np.linalg.inv(np.linalg.cholesky(matrix))
        self._weighted = self._root.T @ (self._root @ losses)

    def predict(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation of the loss without noise, for each of `rows`."""
        covariance = self.kernel(rows, self._inputs)
        scaled = covariance @ self._root.T
        variance = self.kernel.variance - (scaled * scaled).sum(axis=1)
        return covariance @ self._weighted + self._prior(rows), np.sqrt(np.maximum(variance, 1e-10))

    def mean(self, rows: Floats) -> Floats:
        """Return the mean of the loss, for each of `rows`."""
        return self.kernel(rows, self._inputs) @ self._weighted + self._prior(rows)

    def _prior(self, rows: Floats) -> Floats:
        return sum((weight * each.mean(rows) for weight, each in self._experts), np.zeros(len(rows)))

    def gradients(self, rows: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return mean and deviation for each of `rows`, and their derivatives by each column, shape (m, d).

        The derivatives by columns with indices are 0.
        """
        distance = self.kernel.distance(rows, self._inputs)
        covariance, slope = self.kernel.of_distance(distance), self.kernel.slope(distance)
        scaled = covariance @ self._root.T
        deviation = np.sqrt(np.maximum(self.kernel.variance - (scaled * scaled).sum(axis=1), 1e-10))
        weights = np.where(self.kernel.listed, 0.0, self.kernel.weights)[: rows.shape[1]]

        def derivative(factors: Floats) -> Floats:
            found: Floats = (factors @ self._results - factors.sum(axis=1)[:, None] * rows) * weights
            return found

        slopes = (weight * each.slopes(rows) for weight, each in self._experts)
        by_mean = sum(slopes, derivative(slope * self._weighted))
        by_deviation = -derivative(slope * (scaled @ self._root)) / deviation[:, None]
        return covariance @ self._weighted + self._prior(rows), deviation, by_mean, by_deviation

    def with_expected(self, rows: Floats) -> GaussianProcess:
        """Return this process with an additional result for each of `rows`: the result that the process
        expects.
        """
        if not len(rows):
            return self
        losses = np.concatenate([self._losses, self.mean(rows) - self._prior(rows)])
        missing = None if self._missing is None else np.append(self._missing, np.zeros(len(rows)))
        results = np.concatenate([self._results, rows])
        return GaussianProcess(self.kernel, results, losses, missing, self._experts)


# --- from results to a process --------------------------------------------------------------------


def process_of(
    encoding: Encoding, rows: Floats, losses: Sequence[float], early: EarlyReports | None = None
) -> GaussianProcess:
    """Return the process of the results of a search.

    Args:
        encoding: encoding of the rows.
        rows: the trials in the order of their suggestions, shape (n, d).
        losses: losses of the trials; NaN for a trial without a result. At least one is finite.
        early: reports of trials before the end of the training; None: all trials are complete.
    """
    rows, losses, missing = with_early(rows, losses, early)
    scaled = standardized(filled(losses))
    return GaussianProcess(*fitted(encoding, rows, scaled, scaled, missing))


def with_early(
    rows: Floats, losses: Sequence[float], early: EarlyReports | None
) -> tuple[Floats, Sequence[float], Floats | None]:
    """Return rows and losses after the early reports, and the distance of each from the end."""
    if early is None:
        return rows, losses, None
    missing = np.array([*early.missing, *early.missing_at_end])
    return np.concatenate([rows[early.trials], rows]), [*early.losses, *losses], missing


def fitted(
    encoding: Encoding,
    rows: Floats,
    merits: Floats,
    targets: Floats,
    missing: Floats | None = None,
    prior: Prior | None = None,
) -> tuple[Kernel, Floats, Floats, Floats | None]:
    """Return the arguments of a process: a fitted kernel, and the rows, targets and missing shares of the
    selected trials.

    Args:
        encoding: encoding of the rows.
        rows: shape (n, d).
        merits: values by which trials are selected, the smallest first.
        targets: values that the process predicts.
        missing: distance of each result from the end; None: all trials are complete.
        prior: priors of the kernel's parameters; None: the defaults.
    """
    listed = encoding.categories > 0
    chosen = representatives(rows, merits, listed, IN_FIT)
    inputs = rows if missing is None else np.column_stack([rows, missing])
    kernel = fitted_kernel(encoding, inputs[chosen], targets[chosen], prior)
    chosen = representatives(rows, merits, listed, IN_MODEL)
    return kernel, rows[chosen], targets[chosen], None if missing is None else missing[chosen]


def filled(losses: Sequence[float]) -> Floats:
    """Return the losses, with each NaN (a trial without a result) replaced by the worst result."""
    found: Floats = np.clip(np.array(losses, dtype=float), -_LARGEST, _LARGEST)
    found[np.isnan(found)] = np.nanmax(found)
    return found


def standardized(losses: Floats) -> Floats:
    """Return the Yeo-Johnson transform of losses, with mean 0 and variance 1.

    The power is the most likely of 26 powers. The transform makes skewed losses nearly normally distributed,
    but keeps the distances of losses without skew. The transform also keeps good losses apart if most losses
    are nearly equal, as the losses of diverged trials often are.
    """
    low, middle, high = np.quantile(losses, (0.25, 0.5, 0.75))
    scale = max(high - low, (middle - losses.min()) / _DEEPEST) or losses.std() or 1.0
    values = np.clip((losses - middle) / scale, -_FARTHEST, _FARTHEST)
    logs = np.log1p(np.abs(values))
    transformed = np.where(values >= 0, _power(logs, _POWERS[:, None]), -_power(logs, 2 - _POWERS[:, None]))
    jacobian = (np.sign(values) * logs).sum()
    likely = (_POWERS - 1) * jacobian - 0.5 * len(losses) * np.log(transformed.var(axis=1) + 1e-300)
    best = transformed[int(np.argmax(likely))]
    found: Floats = (best - best.mean()) / (best.std() or 1.0)
    return found


def _power(logs: Floats, power: Floats) -> Floats:
    """Return ((1 + a)**power - 1) / power for `logs` = log(1 + a); `logs` itself for the power 0."""
    flat = np.abs(power) < 1e-9
    return np.where(flat, logs, np.expm1(logs * power) / np.where(flat, 1.0, power))


def thinned(losses: Sequence[float], most: int) -> list[int]:
    """Return the indices of at most `most` trials, in order: the best, the latest, and every k-th other.

    This takes less time than `representatives`, which needs the distances of all trials.

    Args:
        losses: losses in the order of the trials; NaN for a trial without a result.
        most: maximum number of trials.
    """
    third, number = most // 3, len(losses)
    best = np.argpartition(np.array(losses), third)[:third]  # NaN is last
    latest = np.arange(number - third, number)
    evenly = np.arange(0, number, -(-number // third))
    return sorted({*best.tolist(), *latest.tolist(), *evenly.tolist()})


def representatives(rows: Floats, losses: Floats, listed: Flags, most: int) -> NDArray[np.intp]:
    """Return the indices of at most `most` trials.

    Half of the selected trials are the best trials, a sixth are the latest trials, and the others are far
    apart.

    Args:
        rows: the trials in the order of their suggestions, shape (n, d).
        losses: losses of the trials, shape (n,).
        listed: True for columns with indices, shape (d,).
        most: maximum number of trials.
    """
    if len(rows) <= most:
        return np.arange(len(rows))
    taken = np.zeros(len(rows), dtype=bool)
    taken[np.argsort(losses, kind="stable")[: most // 2]] = True
    taken[np.flatnonzero(~taken)[-(most // 6) :]] = True
    distance = Kernel(listed, np.ones(rows.shape[1]), 1.0, 0.0).distance
    nearest = distance(rows, rows[taken]).min(axis=1)
    while np.count_nonzero(taken) < most:
        nearest[taken] = -1.0
        farthest = [int(np.argmax(nearest))]
        taken[farthest] = True
        nearest = np.minimum(nearest, distance(rows, rows[farthest])[:, 0])
    return np.flatnonzero(taken)
