"""Population Based Bandits: population based training in which a Gaussian process chooses hyperparameters.

Covariance of (c, x, t) and (c', x', t'), with contexts c (scores before a round), hyperparameters x and
rounds t:

    variance * exp(-|x - x'|^2 / (2 lengthscale^2) - (c - c')^2 / (2 context^2)) * (1 - w)^(|t - t'| / 2)

The next hyperparameters maximise mean + sqrt(beta) * standard deviation of the predicted gain of the score.
The standard deviation does not depend on the gains. So choices whose gain is not known yet also reduce the
standard deviation, and members that choose in the same round choose different values.

Sources: Bogunovic et al., "Time-Varying Gaussian Process Bandit Optimization", AISTATS 2016; with contexts,
Krause and Ong, "Contextual Gaussian Process Bandit Optimization", NIPS 2011; Parker-Holder, Nguyen, Roberts,
"Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits", NeurIPS 2020,
arXiv:2002.02518, Algorithm 1.

"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from trainkit.errors import SpaceError, TuneArgumentError
from trainkit.tune.core.checks import is_finite, is_number, is_whole, load
from trainkit.tune.core.setting_names import setting
from trainkit.tune.schedulers.base import FAR
from trainkit.tune.schedulers.pbt.explore import (
    Operations,
    completed,
    explored_value,
    leaves,
    name_of,
    places,
)
from trainkit.tune.schedulers.pbt.population import Member
from trainkit.tune.schedulers.pbt.scheduler import PopulationBasedTraining
from trainkit.tune.space.domains import Categorical, Domain, Float, Integer
from trainkit.tune.space.transforms import NumberCode, RealCode, StepCode

if TYPE_CHECKING:
    from numpy.random import Generator


Array = NDArray[np.float64]

LOWEST = (0.05, 0.05, 0.05, 1e-5, 1e-4)
HIGHEST = (20.0, 5.0, 20.0, 0.5, 1.0)
"""Bounds of the kernel's five fitted hyperparameters, for data with mean 0 and standard deviation 1."""


@dataclass(frozen=True)
class Kernel:
    """Hyperparameters of the kernel of a Gaussian process, which models the gain as a function of points.

    Attributes:
        variance: prior variance of the modelled function.
        lengthscale: distance of hyperparameters over which function values are correlated, in units of a
            hyperparameter's whole range.
        context: distance of contexts over which function values are correlated.
        forgetting: w in the covariance formula; 0: the function never changes over time.
        noise: variance of observations around the modelled function.
    """

    variance: float = 1.0
    lengthscale: float = 0.5
    context: float = 1.0
    forgetting: float = 0.1
    noise: float = 0.05

    @property
    def theta(self) -> Array:
        """Logarithms of the kernel's five attributes."""
        return np.log(astuple(self))

    @classmethod
    def of(cls, theta: Array) -> Kernel:
        """Return the kernel whose attributes have the logarithms `theta`."""
        return cls(*np.exp(theta).tolist())

    def covariance(self, one: Points, other: Points) -> Array:
        """Return the covariance of each point of `one` with each point of `other`."""
        return self._of(*distances(one, other))

    def _of(self, context: Array, squared: Array, apart: Array) -> Array:
        exponent = squared / (2 * self.lengthscale**2) + context / (2 * self.context**2)
        covariance: Array = self.variance * np.exp(math.log1p(-self.forgetting) * apart / 2 - exponent)
        return covariance

    def with_gradient(self, points: Points) -> tuple[Array, list[Array]]:
        """Return the noise-free covariance of the points with each other, and its derivatives by `theta`."""
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
    """Points at which the gain is modelled or observed.

    Attributes:
        context: scaled score before the round of each point, shape (n,).
        x: hyperparameters from 0 to 1, shape (n, d).
        t: number of each point's round, shape (n,).
    """

    context: Array
    x: Array
    t: Array

    def __len__(self) -> int:
        return len(self.t)

    def and_(self, other: Points) -> Points:
        """Return these points followed by the points of `other`."""
        return Points(
            np.append(self.context, other.context), np.vstack((self.x, other.x)), np.append(self.t, other.t)
        )


def distances(one: Points, other: Points) -> tuple[Array, Array, Array]:
    """Return pairwise squared distances of contexts and of hyperparameters, and distances in rounds."""
    apart = one.x[:, None, :] - other.x[None, :, :]
    squared: Array = np.einsum("ijk,ijk->ij", apart, apart)
    context: Array = (one.context[:, None] - other.context[None, :]) ** 2
    return context, squared, np.abs(one.t[:, None] - other.t[None, :])


class Process:
    """The Gaussian process, conditioned on observations.

    Args:
        kernel: kernel of the process.
        points: points of the observations; may be empty.
        y: observed values, shape (n,); only the predicted mean depends on these values.
    """

    def __init__(self, kernel: Kernel, points: Points, y: Array) -> None:
        self.kernel = kernel
        self.points = points
        self._linalg = load("scipy.linalg", "PB2's Gaussian processes", "tune")
        covariance = kernel.covariance(points, points) + kernel.noise * np.eye(len(points))
        self._lower = np.linalg.cholesky(covariance)
        self._weights: Array = self._linalg.cho_solve((self._lower, True), y) if len(points) else y

    def mean(self, points: Points) -> Array:
        """Return the expected value at each point."""
        mean: Array = self.kernel.covariance(points, self.points) @ self._weights
        return mean

    def sd(self, points: Points) -> Array:
        """Return the standard deviation of the function, without noise, at each point."""
        if not len(self.points):
            return np.full(len(points), math.sqrt(self.kernel.variance))
        across = self.kernel.covariance(self.points, points)
        explained = self._linalg.solve_triangular(self._lower, across, lower=True)
        left: Array = self.kernel.variance - np.einsum("ij,ij->j", explained, explained)
        sd: Array = np.sqrt(np.maximum(left, 0.0))
        return sd


def negative_log_likelihood(theta: Array, points: Points, y: Array) -> tuple[float, Array]:
    """Return the negative log likelihood of the observations `y`, and its gradient by `theta`."""
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
    """Return the kernel with the highest likelihood of the observations, searched from each of `starts`."""
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
"""Number of latest gains to which the Gaussian process is fitted; older gains have little influence."""
CLIP = 2.0
CANDIDATES = 512
REFINED = 4


def beta(rounds: float) -> float:
    """Return beta, the squared weight of the standard deviation: c1 + log(c2 t) at round t, at least c1."""
    return C1 + max(0.0, math.log(C2 * rounds)) if rounds > 0 else C1


@dataclass(frozen=True)
class Choice:
    """Hyperparameters chosen for one round of training.

    Attributes:
        round: number of the round, from 0; may be fractional.
        before: the score at the beginning of the round, larger is better.
        x: hyperparameters from 0 to 1, shape (d,).
    """

    round: float
    before: float
    x: Array


def standardized(gains: Array) -> Array:
    """Return gains scaled to mean 0 and standard deviation 1, clipped to +-2; all 0 if gains are equal."""
    spread = float(gains.std()) if len(gains) else 0.0
    if not 1e-12 * float(np.abs(gains).max(initial=0.0)) < spread < math.inf:
        return np.zeros_like(gains)
    clipped: Array = np.clip((gains - gains.mean()) / spread, -CLIP, CLIP)
    return clipped


class Bandit:
    """A bandit that chooses points in the unit cube.

    Args:
        dimensions: number of dimensions of the cube.

    Attributes:
        gains: choices of hyperparameters with the improvement of the score that each has produced.
    """

    def __init__(self, dimensions: int) -> None:
        self.gains: list[tuple[Choice, float]] = []
        self._dimensions = dimensions
        self._kernel = Kernel()
        self._fitted_to = 0

    def learn(self, choice: Choice, gain: float) -> None:
        """Record the gain that a choice of hyperparameters has produced."""
        self.gains.append((choice, gain))

    def acquisition(self, now: float, before: float, pending: Sequence[Choice] = ()) -> Acquisition:
        """Return the function to maximise for a member with score `before` at round `now`.

        Args:
            now: number of the round for which hyperparameters are chosen.
            before: the score at the beginning of the round.
            pending: choices whose gain is not known yet.
        """
        latest = sorted(self.gains, key=lambda each: each[0].round)[-WINDOW:]
        scores = [choice.before for choice, _ in latest] or [before]
        low, span = min(scores), max(scores) - min(scores)
        span = span if 0 < span < math.inf else 1.0
        known = self._points([choice for choice, _ in latest], low, span)
        y = standardized(np.array([gain for _, gain in latest]))
        if len(self.gains) != self._fitted_to and len(y) > 2:
            self._kernel = fitted(known, y, dict.fromkeys((Kernel(), self._kernel)))
            self._fitted_to = len(self.gains)
        waiting = self._points(pending, low, span)
        return Acquisition(self._kernel, known, y, waiting, now, (before - low) / span)

    def _points(self, choices: Sequence[Choice], low: float, span: float) -> Points:
        return Points(
            np.array([(choice.before - low) / span for choice in choices]),
            np.array([choice.x for choice in choices]).reshape(-1, self._dimensions),
            np.array([choice.round for choice in choices], float),
        )

    def choose(self, now: float, before: float, rng: Generator, pending: Sequence[Choice] = ()) -> Choice:
        """Return the choice with the largest acquisition, searched from random points of `rng`."""
        # One thread is enough, because the matrices are so small that more threads would only wait for each
        # other.
        with threadpool_limits(1, "blas"):
            x = maximised(self.acquisition(now, before, pending), self._dimensions, rng)
        return Choice(now, before, x)


class Acquisition:
    """Function to maximise: mean + sqrt(beta) * standard deviation of the predicted gain.

    The mean depends on the observations. The standard deviation also depends on the pending choices.

    Args:
        kernel: kernel of the Gaussian process.
        known, y: points and values of the observations.
        pending: points of the pending choices.
        now: number of the round for which hyperparameters are chosen.
        context: score of the member at the beginning of the round `now`, on the scale of `Points.context`.
    """

    def __init__(
        self, kernel: Kernel, known: Points, y: Array, pending: Points, now: float, context: float
    ) -> None:
        self._expected = self._spread = Process(kernel, known, y)
        # The standard deviation does not depend on observed values, so zeros can replace the unknown gains of
        # the pending choices.
        if len(pending):
            self._spread = Process(kernel, known.and_(pending), np.append(y, np.zeros(len(pending))))
        self._now, self._context = now, context
        self._weight = math.sqrt(beta(now))

    def __call__(self, x: Array) -> Array:
        """Return the function's value at each row of `x`, shape (m, d)."""
        points = Points(np.full(len(x), self._context), x, np.full(len(x), self._now))
        value: Array = self._expected.mean(points) + self._weight * self._spread.sd(points)
        return value


def maximised(acquisition: Callable[[Array], Array], dimensions: int, rng: Generator) -> Array:
    """Return the point of the unit cube with the largest `acquisition`: the best random point, refined."""
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


Bounded = Float | Integer


def checked_bounds(bounds: Mapping[str, Any] | None, at: str = "hyperparam_bounds") -> dict[str, Any]:
    """Return `bounds` with each pair of numbers replaced by a domain.

    Raises:
        ConfigError: `bounds` is empty, or an entry is neither an ascending pair nor an accepted domain.
    """
    if not isinstance(bounds, Mapping) or not bounds:
        raise TuneArgumentError(f"{at} must be bounds such as {{'lr': [1e-4, 1e-1]}}, not {bounds!r}")
    return {key: _checked(value, f"{at}[{key!r}]") for key, value in bounds.items()}


def _checked(value: Any, at: str) -> Any:
    if isinstance(value, Mapping):
        return checked_bounds(value, at)
    if isinstance(value, (Float, Integer, Categorical)):
        return value
    pair = list(value) if isinstance(value, (list, tuple)) else []
    if len(pair) != 2 or not all(is_finite(bound) or is_whole(bound) for bound in pair):
        raise TuneArgumentError(
            f"{at} must be [smallest, largest], or a domain such as tune.loguniform(1e-4, 1e-1), "
            f"tune.randint(1, 9) or tune.choice(['a', 'b']), not {value!r}"
        )
    if not pair[0] < pair[1]:
        raise TuneArgumentError(f"{at} must be [smallest, largest] with different values, not {value!r}")
    return Float(float(pair[0]), float(pair[1]))


def fitting(bounds: Mapping[str, Any], space: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `bounds` with the scale that each value has in `space`, logarithmic or whole numbers.

    Args:
        bounds: checked bounds.
        space: the search space.
        given: the same bounds as the user gave them; a bound given as a domain stays unchanged.
    """
    made: dict[str, Any] = {}
    for key, bound in bounds.items():
        there, pair = space.get(key), given[key]
        if isinstance(bound, dict):
            made[key] = fitting(bound, there if isinstance(there, Mapping) else {}, pair)
        elif isinstance(pair, Domain) or not isinstance(there, (Float, Integer)):
            made[key] = bound
        else:
            made[key] = _in_the_way_of(there, bound, key)
    return made


def _in_the_way_of(there: Bounded, bound: Float, key: str) -> Bounded:
    try:
        if isinstance(there, Float):
            return Float(bound.lower, bound.upper, log=there.log, q=there.q)
        lower, upper = math.ceil(bound.lower), math.floor(bound.upper)
        return Integer(lower, upper + (there.q == 1), log=there.log, q=there.q)
    except SpaceError as error:
        raise TuneArgumentError(
            f"hyperparam_bounds[{key!r}]=[{bound.lower:g}, {bound.upper:g}] does not match {there} in "
            f"{setting('param_space')}: {error}"
        ) from error


def to_unit(value: Any, domain: Bounded) -> float | None:
    """Return a value's position between the bounds (0 to 1), limited to -1 and 2; None: not a number."""
    if not is_number(value) or not math.isfinite(value):
        return None
    return min(max(_code(domain).to_unit(value), -1.0), 2.0)


def from_unit(share: float, domain: Bounded, like: Any = None) -> float:
    """Return the value at a position between a domain's bounds.

    Args:
        share: position between the bounds, from 0 to 1.
        domain: domain of the value.
        like: the previous value. If the previous value is a whole number, the result is a whole number too,
            even in a domain of real numbers.
    """
    value: float = _code(domain).from_unit(share)
    least, most = math.ceil(domain.bounds[0]), math.floor(domain.bounds[1])
    if domain.q is None and is_whole(like) and least <= most:
        return min(max(math.floor(value + 0.5), least), most)
    return value


def _code(domain: Bounded) -> NumberCode:
    return (
        RealCode(domain, closed=True) if isinstance(domain, Float) and domain.q is None else StepCode(domain)
    )


RESAMPLE_PROBABILITY = 0.25
"""Probability that a `tune.choice` is drawn again; the bandit can't choose values without an order."""


class PB2(PopulationBasedTraining):
    """Population based training in which a bandit chooses the new hyperparameters.

    PB2 differs from `PopulationBasedTraining` in how new hyperparameters are chosen. A Gaussian process over
    hyperparameters, time and score learns how much a score improves in an interval. A member that takes over
    a better member's state continues with the hyperparameters that maximise the expected improvement plus the
    improvement's uncertainty.

    Args:
        time_attr: name of the reported value that counts the resource spent; the value must not decrease.
        metric: name of the reported value to judge trials by; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
        perturbation_interval: time between judgements, in units of `time_attr`.
        hyperparam_bounds: bounds by name: [smallest, largest], a domain with bounds, a `tune.choice`, or a
            nested dictionary of bounds. A pair is searched on the scale of `param_space`: in the logarithm
            for `tune.loguniform`, in whole numbers for `tune.randint`. If `param_space` lacks a value, the
            initial value is drawn within the bounds. A new value of a `tune.choice` is drawn in a quarter of
            the cases.
        quantile_fraction: fraction of the population that takes over a state, and fraction that donates its
            state; 0 to 0.5. With the fraction 0, no trial takes over the state of another trial.
        log_config: True writes pbt_global.txt and pbt_policy_<trial id>.txt into the experiment's folder.
        require_attrs: True: a report without `time_attr` or the metric ends the experiment with an error.
        synch: True: at each interval, members wait until all members have arrived, and are then judged
            together.
        custom_explore_fn: function that receives each chosen configuration and returns the configuration to
            use.

    Raises:
        ConfigError: a value is out of range, or the bounds are invalid.
        MissingDependencyError: SciPy is not installed.
    """

    label: ClassVar[str] = "PB2"

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        # SciPy is loaded here, so that a missing SciPy fails at once, not after the first interval.
        load("scipy.optimize", "PB2's choices", "tune")
        self._given = hyperparam_bounds or {}
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            hyperparam_mutations=checked_bounds(hyperparam_bounds),
            quantile_fraction=quantile_fraction,
            resample_probability=0,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
        )
        # Names of the hyperparameters that the bandit chooses.
        found = leaves(self.hyperparam_mutations)
        self._numbers = [name_of(path) for path, domain in found if not isinstance(domain, Categorical)]
        self._bandit = Bandit(len(self._numbers))
        self._begun: dict[str, tuple[float, Array] | None] = {}
        """Score and point of each member at its last judgement or takeover; None: the member's next gain is
        ignored.
        """
        self._refused = False
        self._offers: dict[str, dict[str, Choice]] = {}
        """Choices that members may take over, by member and donor; kept until the member is judged."""

    @property
    def arguments(self) -> dict[str, Any]:
        return {**super().arguments, "hyperparam_bounds": self.hyperparam_mutations}

    def completed_space(self, space: Mapping[str, Any]) -> Mapping[str, Any]:
        self.hyperparam_mutations = fitting(self.hyperparam_mutations, space, self._given)
        return completed(space, self.hyperparam_mutations)

    # --- what is learnt ---------------------------------------------------------------------------

    def judge(self, member: Member, intervals: int, score: float) -> None:
        begun, rounds = self._begun.get(member.trial_id), intervals - member.intervals
        if begun is not None and rounds > 0 and score > -FAR and self._numbers:
            before, x = begun
            self._bandit.learn(Choice(member.intervals, before, x), (score - before) / rounds)
        super().judge(member, intervals, score)
        self._offers.pop(member.trial_id, None)
        x_now = self._point(member.config)
        self._begun[member.trial_id] = None if x_now is None or score <= -FAR else (score, x_now)

    def on_trial_change(self, trial_id: str, config: Mapping[str, Any], donor: str | None = None) -> None:
        super().on_trial_change(trial_id, config, donor)
        taken = self._offers.get(trial_id, {}).get(donor or "")
        self._begun[trial_id] = None if taken is None else (taken.before, taken.x)
        self._offers[trial_id] = {} if taken is None else {donor or "": taken}

    def on_trial_complete(self, trial_id: str) -> None:
        self._offers.pop(trial_id, None)
        super().on_trial_complete(trial_id)

    def _point(self, config: Mapping[str, Any]) -> Array | None:
        """Return a configuration's point in the bandit's unit cube; None if a hyperparameter is missing."""
        found = places(config, self.hyperparam_mutations)
        shares = [to_unit(node[key], domain) for name, domain, node, key in found if name in self._numbers]
        known = [share for share in shares if share is not None]
        return np.array(known) if len(known) == len(self._numbers) else None

    # --- how a member continues -------------------------------------------------------------------

    def explore(self, donor: str, receiver: str) -> tuple[dict[str, Any], Operations]:
        self._refused = False
        config, operations = super().explore(donor, receiver)
        x, score = self._point(config), self._members[donor].score
        if x is not None and score is not None and score > -FAR:
            offer = Choice(self._members[donor].intervals, score, x)
            self._offers.setdefault(receiver, {})[donor] = offer
        return config, operations

    def changed(self, donor: Member, receiver: str) -> tuple[dict[str, Any], Operations]:
        config: dict[str, Any] = copy.deepcopy(dict(donor.config))
        operations: Operations = {}
        shares = dict(zip(self._numbers, self._chosen(donor, receiver).tolist(), strict=True))
        for name, domain, node, key in places(config, self.hyperparam_mutations):
            if name in shares:
                node[key], operations[name] = from_unit(shares[name], domain, like=node[key]), "bandit"
            else:
                node[key], operations[name] = explored_value(
                    node[key], domain, self._generator, RESAMPLE_PROBABILITY, self.perturbation_factors, name
                )
        return config, operations

    def _chosen(self, donor: Member, receiver: str) -> Array:
        if not self._numbers:
            return np.empty(0)
        # The rules of the search space have forbidden the bandit's choice. The bandit would repeat this
        # choice, so a random choice replaces it.
        if self._refused:
            return self._generator.random(len(self._numbers))
        self._refused = True
        # If a member is offered several choices, only the first choice counts, because the member most likely
        # takes the first.
        pending = [next(iter(each.values())) for to, each in self._offers.items() if each and to != receiver]
        return self._bandit.choose(donor.intervals, donor.score or 0.0, self._generator, pending).x
