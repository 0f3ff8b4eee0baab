"""When RunConfig(stop=...) ends a trial, or the experiment: dictionary, function, stopper, or several."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from trainkit.errors import MetricError
from trainkit.tune.checks import is_number
from trainkit.tune.config import DONE, OneStopRule, StopRule
from trainkit.tune.control.missing import AUTOMATIC as AUTOMATIC
from trainkit.tune.control.missing import missing_metric as missing_metric
from trainkit.tune.stoppers import CombinedStopper, MaximumIterationStopper, Stopper
from trainkit.tune.values import lookup


class StopRules:
    """All rules of an experiment; each sees every report, and the first that ends a trial is named.

    Args:
        rules: in this order.
    """

    def __init__(self, rules: Sequence[OneStopRule]) -> None:
        self._rules = rules
        self._judges = list(map(_judge_of, rules))
        self._stoppers = [rule for rule in rules if isinstance(rule, Stopper)]
        self._timed = [each for each in self._stoppers if _looks_at_time(each)]
        self.ends_none = not self._stoppers
        """True if there is no rule that could end the experiment; asked at every report."""

    @classmethod
    def of(cls, rule: StopRule | None) -> StopRules:
        """Return the rules in `rule`; stoppers as copies, so that the user's stay as they were given."""
        rules: list[OneStopRule] = []
        if isinstance(rule, (list, tuple)):
            rules += rule
        elif rule is not None:
            rules.append(cast("OneStopRule", rule))
        return cls([copy.deepcopy(each) if isinstance(each, Stopper) else each for each in rules])

    def on_report(self, trial_id: str, result: dict[str, Any]) -> dict[str, Any] | None:
        """Say why `result` ends its trial: facts to record, the words under "stop"; None if it doesn't.

        Raises:
            MetricError: a rule names a value that the result lacks.
        """
        found = None
        for judge in self._judges:  # all of them, whichever is named
            reason = judge(trial_id, result)
            found = reason if found is None else found
        return found

    def told_again(self, trial_id: str, result: dict[str, Any]) -> None:
        """Take in a report of before a restore."""
        try:
            self.on_report(trial_id, result)
        except Exception:  # as it did then, which has failed that trial and is recorded: no news
            return

    def end(self, elapsed_s: float) -> str:
        """Say why the experiment ends, `elapsed_s` seconds into its running; '' if it doesn't."""
        for stopper in self._timed:
            stopper.on_time(elapsed_s)
        for stopper in self._stoppers:
            if stopper.stop_all():
                return words_of(stopper)
        return ""

    @property
    def deadline_s(self) -> float:
        """After how many seconds of running `end` is to be asked though nothing was reported."""
        return min([stopper.deadline_s for stopper in self._timed]) if self._timed else math.inf

    @property
    def max_iteration(self) -> float | None:
        """The report that ends every trial, where a rule says so."""
        return min(filter(None, map(_max_iteration, self._rules)), default=None)


def _looks_at_time(stopper: Stopper) -> bool:
    own = type(stopper)
    return own.on_time is not Stopper.on_time or own.deadline_s is not Stopper.deadline_s


def words_of(stopper: Stopper) -> str:
    """Such as 'stopped by TimeoutStopper: timeout 60'."""
    facts = dict(stopper.reason())
    name = facts.pop("stopper", type(stopper).__name__)
    words = ", ".join(
        f"{fact} {value:.6g}" if is_number(value) else f"{fact} {value}" for fact, value in facts.items()
    )
    return f"stopped by {name}: {words}" if words else f"stopped by {name}"


def _judge_of(rule: OneStopRule) -> Callable[[str, dict[str, Any]], dict[str, Any] | None]:
    """What says of a report why `rule` ends the trial by it, as facts; or None."""
    if isinstance(rule, Mapping):
        return lambda trial_id, result: _reached(rule, result)
    if isinstance(rule, Stopper):
        return lambda trial_id, result: _facts(rule) if rule(trial_id, result) else None
    facts = {"stop": "stopped by RunConfig(stop=function)"}
    return lambda trial_id, result: dict(facts) if rule(trial_id, result) else None


def _facts(stopper: Stopper) -> dict[str, Any]:
    return {"stop": words_of(stopper), "stopper": type(stopper).__name__, **stopper.reason()}


def _reached(bounds: Mapping[str, float], result: Mapping[str, Any]) -> dict[str, Any] | None:
    for name, bound in bounds.items():
        if name == DONE:  # which ends a trial without a rule
            continue
        value = lookup(result, name)
        if value is None:
            raise MetricError(f"RunConfig(stop=...) waits for {missing_metric(name, [result])}")
        if is_number(value) and value >= bound:
            return {"stop": f"{name}={value:g} reached {bound:g}"}
    return None


def _max_iteration(rule: OneStopRule) -> float | None:
    match rule:
        case MaximumIterationStopper(max_iter=limit):
            return limit
        case CombinedStopper(stoppers=stoppers):
            return min(filter(None, map(_max_iteration, stoppers)), default=None)
        case Mapping():
            return rule.get("training_iteration")
    return None
