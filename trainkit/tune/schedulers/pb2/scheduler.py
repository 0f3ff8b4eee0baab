"""PB2: population based training in which a bandit chooses the hyperparameters.

Source: Parker-Holder, Nguyen, Roberts, "Provably Efficient Online Hyperparameter Optimization with
Population-Based Bandits", NeurIPS 2020, arXiv:2002.02518, Algorithm 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.core.checks import is_finite, is_number, is_whole, load
from trainkit.tune.core.setting_names import setting
from trainkit.tune.schedulers.pb2.gaussian_process import Array, Bandit, Choice
from trainkit.tune.schedulers.pbt.explore import (
    MutationPath,
    Operations,
    completed,
    explored_value,
    leaves,
    name_of,
    node_at,
)
from trainkit.tune.schedulers.pbt.population import Member
from trainkit.tune.schedulers.pbt.scheduler import PopulationBasedTraining
from trainkit.tune.space.codec import NumberCode, RealCode, StepCode
from trainkit.tune.space.domains import Categorical, Domain, Float, Integer

Bounded = Float | Integer


def checked_bounds(bounds: Mapping[str, Any] | None, at: str = "hyperparam_bounds") -> dict[str, Any]:
    """Return `bounds` with a domain for each pair of numbers.

    Raises:
        ConfigError: there are none, or one is neither a pair in order nor such a domain; it is named.
    """
    if not isinstance(bounds, Mapping) or not bounds:
        raise ConfigError(f"{at}={bounds!r}: give the bounds of each value, such as {{'lr': [1e-4, 1e-1]}}")
    return {key: _checked(value, f"{at}[{key!r}]") for key, value in bounds.items()}


def _checked(value: Any, at: str) -> Any:
    if isinstance(value, Mapping):
        return checked_bounds(value, at)
    if isinstance(value, (Float, Integer, Categorical)):
        return value
    pair = list(value) if isinstance(value, (list, tuple)) else []
    if len(pair) != 2 or not all(is_finite(bound) or is_whole(bound) for bound in pair):
        raise ConfigError(
            f"{at}={value!r}: give [smallest, largest], or a domain such as tune.loguniform(1e-4, 1e-1), "
            "tune.randint(1, 9) or tune.choice(['a', 'b'])"
        )
    if not pair[0] < pair[1]:
        raise ConfigError(f"{at}={value!r}: the smallest value comes first, and the two differ")
    return Float(float(pair[0]), float(pair[1]))


def fitting(bounds: Mapping[str, Any], space: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `bounds` in the way of `space`: logarithmic or whole numbers where that draws such.

    Args:
        bounds: checked.
        space: the search space.
        given: what `bounds` was made of: what is a domain there stays as it is.
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
        raise ConfigError(
            f"hyperparam_bounds[{key!r}]=[{bound.lower:g}, {bound.upper:g}] doesn't fit {there} of "
            f"{setting('param_space')}: {error}"
        ) from error


def to_unit(value: Any, domain: Bounded) -> float | None:
    """Where a value lies between the bounds, 0 to 1, or a little beyond; None for what is no number."""
    if not is_number(value) or not math.isfinite(value):
        return None
    return min(max(_code(domain).to_unit(value), -1.0), 2.0)


def from_unit(share: float, domain: Bounded, like: Any = None) -> float:
    """Return the value at a place between the bounds.

    Args:
        share: 0 to 1.
        domain: of the value.
        like: the value of before; a whole number gives one, whatever the domain says.
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


__all__ = ["PB2"]

RESAMPLE_PROBABILITY = 0.25
"""Of values that have no order, which the bandit can't choose among."""


class PB2(PopulationBasedTraining):
    """Let a population train at once; its worst go on from a best one's state, as a bandit chooses.

    As `PopulationBasedTraining`, but for the exploration: a Gaussian process over hyperparameters, time and
    score learns how much a score rises in an interval, and a member that exploits goes on with the
    hyperparameters for which the expected rise, plus what is not known of it, is largest.

    Args:
        time_attr: reported value that counts the resource; must not fall.
        metric: reported value to judge by; None: the TuneConfig's.
        mode: "min" or "max"; None: the TuneConfig's.
        perturbation_interval: in units of `time_attr`.
        hyperparam_bounds: by name [smallest, largest], a domain with bounds, a `tune.choice`, or a
            dictionary of these. A pair is searched as `param_space` draws the value: in its logarithm for
            `tune.loguniform`, in whole numbers for `tune.randint`. What `param_space` lacks of it is drawn
            within the bounds at the start. A `tune.choice` is drawn anew in a quarter of the cases.
        quantile_fraction: of the population that exploits, and is exploited; 0 to 0.5. With 0 nobody does.
        log_config: write pbt_global.txt and pbt_policy_<trial id>.txt into the experiment's folder.
        require_attrs: a report without `time_attr` or the metric ends the experiment with an error.
        synch: all members wait at each interval for the last one, and are judged together.
        custom_explore_fn: called with each chosen configuration; returns the one to take.

    Raises:
        ConfigError: a value is out of range, or the bounds are none.
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
        load("scipy.optimize", "PB2's choices", "tune")  # now, and not after the first interval
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
        self._bandit: Bandit | None = None
        self._begun: dict[str, tuple[float, Array] | None] = {}
        """By member: from which score it trains, and with what; None: that can't be learnt from."""
        self._refused = False
        self._offers: dict[str, dict[str, Choice]] = {}
        """By member that is to exploit, and by donor: how it goes on, until it is judged."""

    @property
    def arguments(self) -> dict[str, Any]:
        names = (
            "time_attr metric mode perturbation_interval quantile_fraction log_config require_attrs synch "
            "custom_explore_fn"
        )
        arguments = {name: getattr(self, name) for name in names.split()}
        return {**arguments, "hyperparam_bounds": self.hyperparam_mutations}

    def completed_space(self, space: Mapping[str, Any]) -> Mapping[str, Any]:
        self.hyperparam_mutations = fitting(self.hyperparam_mutations, space, self._given)
        return completed(space, self.hyperparam_mutations)

    # --- what is learnt ---------------------------------------------------------------------------

    def judge(self, member: Member, intervals: int, score: float) -> None:
        begun, rounds = self._begun.get(member.trial_id), intervals - member.intervals
        if begun is not None and rounds > 0 and score > -math.inf and self._numbers:
            before, x = begun
            self._learner.learn(Choice(member.intervals, before, x), (score - before) / rounds)
        super().judge(member, intervals, score)
        self._offers.pop(member.trial_id, None)
        x_now = self._point(member.config)
        self._begun[member.trial_id] = None if x_now is None or score == -math.inf else (score, x_now)

    def on_trial_change(self, trial_id: str, config: Mapping[str, Any], donor: str | None = None) -> None:
        super().on_trial_change(trial_id, config, donor)
        taken = self._offers.get(trial_id, {}).get(donor or "")
        self._begun[trial_id] = None if taken is None else (taken.before, taken.x)
        self._offers[trial_id] = {} if taken is None else {donor or "": taken}

    def on_trial_complete(self, trial_id: str) -> None:
        self._offers.pop(trial_id, None)
        super().on_trial_complete(trial_id)

    @property
    def _numbers(self) -> list[tuple[MutationPath, Bounded]]:
        """Return the hyperparameters that the bandit chooses, in order."""
        found = leaves(self.hyperparam_mutations)
        return [(path, domain) for path, domain in found if not isinstance(domain, Categorical)]

    @property
    def _learner(self) -> Bandit:
        if self._bandit is None:
            self._bandit = Bandit(len(self._numbers))
        return self._bandit

    def _point(self, config: Mapping[str, Any]) -> Array | None:
        """Where a configuration lies in the unit cube; None where it lacks a number."""
        nodes = [(node_at(config, path[:-1]) or {}, path[-1], domain) for path, domain in self._numbers]
        shares = [to_unit(node.get(key), domain) for node, key, domain in nodes]
        known = [share for share in shares if share is not None]
        return np.array(known) if len(known) == len(shares) else None

    # --- how a member goes on ---------------------------------------------------------------------

    def explore(self, donor: str, receiver: str) -> tuple[dict[str, Any], Operations]:
        self._refused = False
        config, operations = super().explore(donor, receiver)
        x, score = self._point(config), self._members[donor].score
        if x is not None and score is not None and score > -math.inf:
            offer = Choice(self._members[donor].intervals, score, x)
            self._offers.setdefault(receiver, {})[donor] = offer
        return config, operations

    def changed(self, donor: Member, receiver: str) -> tuple[dict[str, Any], Operations]:
        config: dict[str, Any] = copy.deepcopy(dict(donor.config))
        operations: Operations = {}
        chosen = iter(self._chosen(donor, receiver))
        for path, domain in leaves(self.hyperparam_mutations):
            share = None if isinstance(domain, Categorical) else float(next(chosen))
            node = node_at(config, path[:-1])
            if node is None or path[-1] not in node:
                continue
            old, name = node[path[-1]], name_of(path)
            if share is None:
                node[path[-1]], operations[name] = explored_value(
                    old, domain, self._generator, RESAMPLE_PROBABILITY, self.perturbation_factors, name
                )
            else:
                node[path[-1]], operations[name] = from_unit(share, domain, like=old), "bandit"
        return config, operations

    def _chosen(self, donor: Member, receiver: str) -> Array:
        if not self._numbers:
            return np.empty(0)
        if self._refused:  # the space forbids what it chose, and would choose again
            return self._generator.random(len(self._numbers))
        self._refused = True
        # Of several offers to a member the first is the likeliest to be taken.
        pending = [next(iter(each.values())) for to, each in self._offers.items() if each and to != receiver]
        return self._learner.choose(donor.intervals, donor.score or 0.0, self._generator, pending).x
