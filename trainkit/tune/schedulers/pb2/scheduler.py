"""PB2: population based training in which a bandit, and not chance, chooses the hyperparameters.

Source: Parker-Holder, Nguyen, Roberts, "Provably Efficient Online Hyperparameter Optimization with
Population-Based Bandits", NeurIPS 2020, arXiv:2002.02518, Algorithm 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from trainkit.tune.domains import Categorical
from trainkit.tune.optional import load
from trainkit.tune.schedulers.pb2.bandit import Bandit, Choice
from trainkit.tune.schedulers.pb2.bounds import Bounded, checked_bounds, fitting, from_unit, to_unit
from trainkit.tune.schedulers.pb2.process import Array
from trainkit.tune.schedulers.pbt.explore import Operations, explored_value, node_at
from trainkit.tune.schedulers.pbt.mutations import Path, completed, leaves, name_of
from trainkit.tune.schedulers.pbt.population import Member
from trainkit.tune.schedulers.pbt.scheduler import PopulationBasedTraining

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
            self._learner.gains.add(Choice(member.intervals, before, x), (score - before) / rounds)
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
    def _numbers(self) -> list[tuple[Path, Bounded]]:
        """What the bandit chooses, in this order."""
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
