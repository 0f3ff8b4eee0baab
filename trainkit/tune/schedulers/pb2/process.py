"""A Gaussian process over hyperparameters that forgets: what was seen some rounds ago counts less.

Covariance of (c, x, t) and (c', x', t'), of contexts c, hyperparameters x and rounds t:

    variance * exp(-|x - x'|^2 / (2 lengthscale^2) - (c - c')^2 / (2 context^2)) * (1 - w)^(|t - t'| / 2)

Source: Bogunovic et al., "Time-Varying Gaussian Process Bandit Optimization", AISTATS 2016; with contexts,
Krause and Ong, "Contextual Gaussian Process Bandit Optimization", NIPS 2011.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.tune.optional import load

Array = NDArray[np.float64]

LOWEST = (0.05, 0.05, 0.05, 1e-5, 1e-4)
HIGHEST = (20.0, 5.0, 20.0, 0.5, 1.0)
"""Within which the five numbers of a kernel are learnt; data have mean 0 and standard deviation 1."""


@dataclass(frozen=True)
class Kernel:
    """What the process assumes.

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
