"""Rules that end candidates see those reports only in which every fold has a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.tune.config import StopRule
from trainkit.tune.control.stopping import StopRules
from trainkit.tune.stoppers import Stopper

STOPPED_BY = "stopped by "
"""What the tuner puts before who has ended something."""


class AfterAllFolds(Stopper):
    """What the user gave as `stopper`, where candidates report before all of their folds are done.

    Args:
        rule: a stopper, a dictionary, a function, or several.
        folds: how many there are.
    """

    def __init__(self, rule: StopRule, folds: int) -> None:
        self._rule, self._folds = rule, folds
        self._rules = StopRules.of(rule)
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
    if "stopper" in facts:
        return facts
    return {"stopper": "stopper" if words.startswith(STOPPED_BY) else f"stopper: {words}"}
