"""A Gaussian process that forgets, and the bandit that chooses where its upper bound is largest.

Covariance of (c, x, t) and (c', x', t'), of contexts c, hyperparameters x and rounds t:

    variance * exp(-|x - x'|^2 / (2 lengthscale^2) - (c - c')^2 / (2 context^2)) * (1 - w)^(|t - t'| / 2)

The next hyperparameters are where mean + sqrt(beta) * sd of the expected gain is largest. Choices whose gain
is not known yet enter the standard deviation, which does not depend on the gains. So those of one round
differ.

Sources: Bogunovic et al., "Time-Varying Gaussian Process Bandit Optimization", AISTATS 2016; with contexts,
Krause and Ong, "Contextual Gaussian Process Bandit Optimization", NIPS 2011; Parker-Holder, Nguyen, Roberts,
"Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits", NeurIPS 2020,
arXiv:2002.02518, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from trainkit.tune.core.checks import load

if TYPE_CHECKING:
    from numpy.random import Generator


Array = NDArray[np.float64]

LOWEST = (0.05, 0.05, 0.05, 1e-5, 1e-4)
HIGHEST = (20.0, 5.0, 20.0, 0.5, 1.0)
"""Within which the five numbers of a kernel are learnt; data have mean 0 and standard deviation 1."""


@dataclass(frozen=True)
class Kernel:
    """Assumptions of the Gaussian process.

    Attributes:
        variance: of the function.
        lengthscale: how far its values hang together, in units of a parameter's whole range.
        context: the same for the context.
        forgetting: w; 0: the function never changes.
        noise: variance of what is observed around it.
    """

    variance: float = 1.0
    lengthscale: float = 0.5
    context: float = 1.0
    forgetting: float = 0.1
    noise: float = 0.05

    @property
    def theta(self) -> Array:
        """Logarithms of the five."""
        return np.log(astuple(self))

    @classmethod
    def of(cls, theta: Array) -> Kernel:
        """The kernel with these logarithms."""
        return cls(*np.exp(theta).tolist())

    def covariance(self, one: Points, other: Points) -> Array:
        """Of each point with each other one."""
        return self._of(*distances(one, other))

    def _of(self, context: Array, squared: Array, apart: Array) -> Array:
        exponent = squared / (2 * self.lengthscale**2) + context / (2 * self.context**2)
        covariance: Array = self.variance * np.exp(math.log1p(-self.forgetting) * apart / 2 - exponent)
        return covariance

    def with_gradient(self, points: Points) -> tuple[Array, list[Array]]:
        """The covariance of the points with each other, noise left out, and its derivatives by `theta`."""
        context, squared, apart = distances(points, points)
        covariance = self._of(context, squared, apart)
        return covariance, [
            covariance,
            covariance * squared / self.lengthscale**2,
            covariance * context / self.context**2,
            -covariance * apart / 2 * self.forgetting / (1 - self.forgetting),
            self.noise * np.eye(len(points)),
        ]


@dataclass(frozen=True)
class Points:
    """Where the function is asked about.

    Attributes:
        context: of each, shape (n,).
        x: hyperparameters from 0 to 1, (n, d).
        t: rounds, (n,).
    """

    context: Array
    x: Array
    t: Array

    def __len__(self) -> int:
        return len(self.t)

    def and_(self, other: Points) -> Points:
        """These, then the others."""
        return Points(
            np.append(self.context, other.context), np.vstack((self.x, other.x)), np.append(self.t, other.t)
        )


def distances(one: Points, other: Points) -> tuple[Array, Array, Array]:
    """Of contexts and of hyperparameters squared, and how many rounds lie between."""
    apart = one.x[:, None, :] - other.x[None, :, :]
    squared: Array = np.einsum("ijk,ijk->ij", apart, apart)
    context: Array = (one.context[:, None] - other.context[None, :]) ** 2
    return context, squared, np.abs(one.t[:, None] - other.t[None, :])


class Process:
    """The process given observations.

    Args:
        kernel: see there.
        points: where; may be none.
        y: what was observed there, (n,); only the mean depends on it.
    """

    def __init__(self, kernel: Kernel, points: Points, y: Array) -> None:
        self.kernel = kernel
        self.points = points
        self._linalg = load("scipy.linalg", "PB2's Gaussian processes", "tune")
        covariance = kernel.covariance(points, points) + kernel.noise * np.eye(len(points))
        self._lower = np.linalg.cholesky(covariance)
        self._weights: Array = self._linalg.cho_solve((self._lower, True), y) if len(points) else y

    def mean(self, points: Points) -> Array:
        """The expected value at each point."""
        mean: Array = self.kernel.covariance(points, self.points) @ self._weights
        return mean

    def sd(self, points: Points) -> Array:
        """The standard deviation of the function, without noise, at each point."""
        if not len(self.points):
            return np.full(len(points), math.sqrt(self.kernel.variance))
        across = self.kernel.covariance(self.points, points)
        explained = self._linalg.solve_triangular(self._lower, across, lower=True)
        left: Array = self.kernel.variance - np.einsum("ij,ij->j", explained, explained)
        sd: Array = np.sqrt(np.maximum(left, 0.0))
        return sd


def negative_log_likelihood(theta: Array, points: Points, y: Array) -> tuple[float, Array]:
    """Of the observations `y`, and its gradient by `theta`."""
    linalg = load("scipy.linalg", "PB2's Gaussian processes", "tune")
    kernel = Kernel.of(theta)
    covariance, gradients = kernel.with_gradient(points)
    lower = np.linalg.cholesky(covariance + kernel.noise * np.eye(len(points)))
    inverse = linalg.cho_solve((lower, True), np.eye(len(points)))
    weights = inverse @ y
    value = 0.5 * y @ weights + np.log(np.diag(lower)).sum() + 0.5 * len(y) * math.log(2 * math.pi)
    inner = inverse - np.outer(weights, weights)
    return float(value), np.array([0.5 * np.einsum("ij,ij->", inner, each) for each in gradients])


def fitted(points: Points, y: Array, starts: Iterable[Kernel] = (Kernel(),)) -> Kernel:
    """Return the kernel under which the observations are likeliest, searched from each of `starts`."""
    optimize: Any = load("scipy.optimize", "PB2's Gaussian processes", "tune")
    found = [
        optimize.minimize(
            negative_log_likelihood,
            start.theta,
            args=(points, y),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(np.log(LOWEST), np.log(HIGHEST), strict=True)),
            options={"maxiter": 30},
        )
        for start in starts
    ]
    return Kernel.of(min(found, key=lambda result: float(result.fun)).x)


C1, C2 = 0.2, 0.4
WINDOW = 200
"""The process is fitted to so many of the latest gains; those before are forgotten anyway."""
CLIP = 2.0
CANDIDATES = 512
REFINED = 4


def beta(rounds: float) -> float:
    """How much the standard deviation weighs, squared: c1 + log(c2 t) after t rounds, and at least c1."""
    return C1 + max(0.0, math.log(C2 * rounds)) if rounds > 0 else C1


class Gains:
    """Observed gains: the score before a round, the hyperparameters of the round, and the rise of the score.

    Args:
        dimensions: how many hyperparameters, each from 0 to 1.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self._rows: list[tuple[float, float, float, Array]] = []  # round, score before, gain, hyperparameters

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, choice: Choice, gain: float) -> None:
        """Take in what became of a choice."""
        self._rows.append((choice.round, choice.before, gain, choice.x))

    def latest(self) -> tuple[Array, Array, Array, Array]:
        """The latest by round: rounds, scores before, gains, shape (n,), and hyperparameters, (n, d)."""
        rows = sorted(self._rows, key=lambda row: row[0])[-WINDOW:]
        columns = np.array([row[:3] for row in rows]).reshape(-1, 3).T
        return (
            columns[0],
            columns[1],
            columns[2],
            np.array([row[3] for row in rows]).reshape(-1, self.dimensions),
        )


@dataclass(frozen=True)
class Choice:
    """Hyperparameters to train with for a round.

    Attributes:
        round: the number of the round, from 0; need not be whole.
        before: the score at its beginning, larger is better.
        x: from 0 to 1, shape (d,).
    """

    round: float
    before: float
    x: Array


def standardized(gains: Array) -> Array:
    """With mean 0 and standard deviation 1, but none beyond 2; all 0 where they are equal."""
    spread = float(gains.std()) if len(gains) else 0.0
    if not 1e-12 * float(np.abs(gains).max(initial=0.0)) < spread < math.inf:
        return np.zeros_like(gains)
    clipped: Array = np.clip((gains - gains.mean()) / spread, -CLIP, CLIP)
    return clipped


class Bandit:
    """Chooses points in the unit cube.

    Args:
        dimensions: of the cube.
    """

    def __init__(self, dimensions: int) -> None:
        self.gains = Gains(dimensions)
        self._kernel = Kernel()
        self._fitted_to = 0

    def learn(self, choice: Choice, gain: float) -> None:
        """Take in the gain of a choice."""
        self.gains.add(choice, gain)

    def acquisition(self, now: float, before: float, pending: Sequence[Choice] = ()) -> Acquisition:
        """Return the function to maximise for a member with score `before` at round `now`.

        Args:
            now: the round that will be trained.
            before: the score at its beginning.
            pending: choices whose gain is not known yet.
        """
        rounds, scores, gains, x = self.gains.latest()
        low, high = (float(scores.min()), float(scores.max())) if len(scores) else (before, before)
        span = high - low if 0 < high - low < math.inf else 1.0
        known, y = Points((scores - low) / span, x, rounds), standardized(gains)
        if len(self.gains) != self._fitted_to and len(y) > 2:
            self._kernel = fitted(known, y, dict.fromkeys((Kernel(), self._kernel)))
            self._fitted_to = len(self.gains)
        waiting = Points(
            np.array([(choice.before - low) / span for choice in pending]),
            np.array([choice.x for choice in pending]).reshape(-1, self.gains.dimensions),
            np.array([choice.round for choice in pending]),
        )
        return Acquisition(self._kernel, known, y, waiting, now, (before - low) / span)

    def choose(self, now: float, before: float, rng: Generator, pending: Sequence[Choice] = ()) -> Choice:
        """Return the choice with the largest acquisition; `rng` says where the search begins."""
        with threadpool_limits(1, "blas"):  # these matrices are small: threads would only wait for each other
            x = maximised(self.acquisition(now, before, pending), self.gains.dimensions, rng)
        return Choice(now, before, x)


class Acquisition:
    """mean + sqrt(beta) * sd: the mean from what was observed, the sd from that and what is pending.

    Args:
        kernel: of the process.
        known, y: what was observed.
        pending: what is pending.
        now: the round asked about.
        context: the score before it, scaled as those of `known`.
    """

    def __init__(
        self, kernel: Kernel, known: Points, y: Array, pending: Points, now: float, context: float
    ) -> None:
        self._expected = self._spread = Process(kernel, known, y)
        if len(pending):  # the sd doesn't depend on what will be observed: any numbers do
            self._spread = Process(kernel, known.and_(pending), np.append(y, np.zeros(len(pending))))
        self._now, self._context = now, context
        self._weight = math.sqrt(beta(now))

    def __call__(self, x: Array) -> Array:
        """At each of `x`, shape (m, d)."""
        points = Points(np.full(len(x), self._context), x, np.full(len(x), self._now))
        value: Array = self._expected.mean(points) + self._weight * self._spread.sd(points)
        return value


def maximised(acquisition: Callable[[Array], Array], dimensions: int, rng: Generator) -> Array:
    """Return the point of the unit cube where `acquisition` is largest: the best of many, refined."""
    optimize: Any = load("scipy.optimize", "PB2's choices", "tune")
    candidates = rng.random((CANDIDATES, dimensions))
    values = acquisition(candidates)
    order = np.argsort(-values, kind="stable")
    best, largest = candidates[order[0]], float(values[order[0]])
    for start in candidates[order[:REFINED]]:
        found = optimize.minimize(
            lambda x: -float(acquisition(x[None, :])[0]),
            start,
            method="L-BFGS-B",
            bounds=[(0.0, 1.0)] * dimensions,
            options={"maxiter": 30},
        )
        if -float(found.fun) > largest:
            best, largest = found.x, -float(found.fun)
    inside: Array = np.clip(best, 0.0, 1.0)
    return inside
