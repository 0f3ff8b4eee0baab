"""Rules that end candidates: they see those reports only in which every fold has a score, and have names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from trainkit.tune.config import OneStopRule, StopRule
from trainkit.tune.control.stopping import StopRules
from trainkit.tune.stoppers import FunctionStopper, Stopper

STOPPED_BY = "stopped by "
"""What the tuner puts before who has ended something."""


def named(rule: StopRule) -> StopRule:
    """Return `rule` with its functions as rules that are called by the argument they were given as."""
    if isinstance(rule, (list, tuple)):
        return tuple(map(_named, rule))
    return _named(cast("OneStopRule", rule))


def _named(rule: OneStopRule) -> OneStopRule:
    return rule if isinstance(rule, (Mapping, Stopper)) else _NamedFunction(rule)


class _NamedFunction(FunctionStopper):
    def __deepcopy__(self, memo: dict[int, Any]) -> _NamedFunction:
        return self  # functions stay the user's own, also those that keep something

    def reason(self) -> Mapping[str, Any]:
        return {"stopper": "stopper"}


class AfterAllFolds(Stopper):
    """What the user gave as `stopper`, where candidates report before all of their folds are done.

    Args:
        rule: a stopper, a dictionary, a function, or several.
        folds: how many there are.
    """

    def __init__(self, rule: StopRule, folds: int) -> None:
        self._rule, self._folds = rule, folds
        self._rules = StopRules.of(named(rule))
        self._last_fold = f"split{folds - 1}_fit_time"
        self._elapsed_s = 0.0
        self._facts: dict[str, Any] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> AfterAllFolds:
        return AfterAllFolds(self._rule, self._folds)  # whose rules are copies of the user's

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if self._last_fold not in result:
            return False
        found = self._rules.on_report(trial_id, result)
        if found is not None:
            self._facts = _own_facts(found)
        return found is not None

    def stop_all(self) -> bool:
        why = self._rules.end(self._elapsed_s)
        if why:
            self._facts = {"stopper": why.removeprefix(STOPPED_BY)}
        return bool(why)

    def on_time(self, elapsed_s: float) -> None:
        self._elapsed_s = elapsed_s

    @property
    def deadline_s(self) -> float:
        return self._rules.deadline_s

    def reason(self) -> Mapping[str, Any]:
        return self._facts


def _own_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a rule, with who it is as `stopper`: this class only hands them on."""
    facts = dict(found)
    words = facts.pop("stop")
    return facts if "stopper" in facts else {"stopper": f"stopper: {words}"}
