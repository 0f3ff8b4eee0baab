"""Rules of other libraries at rungs: their own classes, with the same reports as ours.

Each peer reports the values at its rungs and the rule that it follows. So a decision that differs from ours
can be traced to the rule or to these values.
"""

from __future__ import annotations

import datetime
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import ray_schedulers
from benchmarks.decision_streams import MAX_T

Rungs = dict[int, dict[str, float]]
"""Recorded value of each trial, by level."""


class RungPeer(ABC):
    """A library's asynchronous successive halving, which maximises the metric.

    Attributes:
        name: name of the library's rule.
        kinds: kinds of streams for which the library defines a behaviour.
        eta: reduction factor.
        rule_words: description of how its rule at a rung differs from ours; None if it does not differ.
        tie_words: description of its treatment of equal scores.
    """

    name: str
    kinds: Sequence[str]
    rule_words: str | None
    tie_words: str

    def __init__(self, eta: int) -> None:
        self.eta = eta

    @abstractmethod
    def add(self, trial: str) -> None:
        """Begin a trial."""

    @abstractmethod
    def stops(self, trial: str, t: int, value: float | None) -> bool:
        """Pass a report to the peer; return True if the peer stops the trial."""

    @abstractmethod
    def rungs(self) -> Rungs:
        """Return the values that the peer has recorded at its rungs."""

    @abstractmethod
    def rule(self, before: Sequence[float], value: float) -> bool:
        """Return True if a trial with `value` stops at a rung with the values `before`, by `rule_words`."""

    def ended(self, trial: str) -> None:
        """End a trial."""
        del trial


class Ray(RungPeer):
    """Ray's AsyncHyperBandScheduler."""

    name = "Ray ASHA"
    kinds = ("plain", "ties", "NaN", "jumps", "back", "late", "no metric")
    rule_words = "an interpolated percentile of those before, not whole places among all"
    tie_words = "equal scores all go on"

    def __init__(self, eta: int) -> None:
        super().__init__(eta)
        module = ray_schedulers.load("async_hyperband")
        self._scheduler = module.AsyncHyperBandScheduler(
            metric="u", mode="max", max_t=MAX_T, reduction_factor=eta
        )
        self._trials: dict[str, ray_schedulers.Trial] = {}

    def add(self, trial: str) -> None:
        self._trials[trial] = ray_schedulers.Trial(trial)
        self._scheduler.on_trial_add(None, self._trials[trial])

    def stops(self, trial: str, t: int, value: float | None) -> bool:
        result = {"training_iteration": t} | ({} if value is None else {"u": value})
        return str(self._scheduler.on_trial_result(None, self._trials[trial], result)) == "STOP"

    def rungs(self) -> Rungs:
        (bracket,) = self._scheduler._brackets
        return {int(level): dict(recorded) for level, recorded in bracket._rungs}

    def rule(self, before: Sequence[float], value: float) -> bool:
        finite = [each for each in before if not math.isnan(each)]
        if not finite:
            return False
        return bool(value < np.percentile(finite, (1 - 1 / self.eta) * 100))


class SyneTune(RungPeer):
    """Syne Tune's AsynchronousSuccessiveHalving."""

    name = "Syne Tune ASHA"
    kinds = ("plain", "ties", "jumps", "back")  # Syne Tune defines no behaviour for the other kinds
    rule_words = "floor(n/eta) + 1 places"
    tie_words = "equal scores all go on"

    def __init__(self, eta: int) -> None:
        super().__init__(eta)
        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        from syne_tune.config_space import uniform
        from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

        self._scheduler = AsynchronousSuccessiveHalving(
            {"x": uniform(0, 1)},
            "u",
            do_minimize=False,
            max_t=MAX_T,
            reduction_factor=eta,
            random_seed=0,
        )
        self._trials: dict[str, Any] = {}

    def add(self, trial: str) -> None:
        from syne_tune.backend.trial_status import Trial

        self._trials[trial] = Trial(int(trial), {"x": 0.5}, datetime.datetime.now())
        self._scheduler.on_trial_add(self._trials[trial])

    def stops(self, trial: str, t: int, value: float | None) -> bool:
        result = {"training_iteration": t, "u": value}
        return str(self._scheduler.on_trial_result(self._trials[trial], result)) == "STOP"

    def rungs(self) -> Rungs:
        (bracket,) = self._scheduler.brackets
        return {
            int(level): {str(trial): -metrics["u"] for trial, metrics in recorded.items()}
            for level, recorded in bracket.rungs
        }

    def rule(self, before: Sequence[float], value: float) -> bool:
        better = sum(each > value for each in before)
        return better / (len(before) + 1) > 1 / self.eta


class Optuna(RungPeer):
    """Optuna's SuccessiveHalvingPruner."""

    name = "Optuna SuccessiveHalving"
    kinds = ("plain", "ties", "NaN", "jumps")
    rule_words = None
    tie_words = "equal scores all go on"

    def __init__(self, eta: int) -> None:
        super().__init__(eta)
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=eta)
        self._study = optuna.create_study(direction="maximize", pruner=pruner, study_name="decisions")
        self._trials: dict[str, Any] = {}

    def add(self, trial: str) -> None:
        self._trials[trial] = self._study.ask()

    def stops(self, trial: str, t: int, value: float | None) -> bool:
        self._trials[trial].report(value, t)
        return bool(self._trials[trial].should_prune())

    def rungs(self) -> Rungs:
        names = {each.number: trial for trial, each in self._trials.items()}
        found: Rungs = {}
        level = 1
        while level < MAX_T:
            found[level] = {}
            level *= self.eta
        for trial in self._study.get_trials(deepcopy=False):
            for rung, level in enumerate(sorted(found)):
                value = trial.system_attrs.get(f"completed_rung_{rung}")
                if value is not None:
                    found[level][names[trial.number]] = value
        return found

    def rule(self, before: Sequence[float], value: float) -> bool:
        if math.isnan(value):
            return True
        ranked = sorted([*before, value], reverse=True)
        return value < ranked[max(1, len(ranked) // self.eta) - 1]

    def ended(self, trial: str) -> None:
        self._study.tell(self._trials[trial], state=self._optuna.trial.TrialState.PRUNED)


def named(rungs: Mapping[int, Mapping[str, float]], level: int) -> Mapping[str, float]:
    """Return the values at a level; {} if the peer has no such rung."""
    return rungs.get(level, {})
