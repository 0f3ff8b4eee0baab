"""Rules of an experiment: its plan, the reasons for an early end, and the stop rules."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from trainkit.errors import MetricError
from trainkit.tune.core import stoppers
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.configs import CheckpointConfig, FailureConfig
from trainkit.tune.core.constraints import Constraint
from trainkit.tune.core.metrics import lookup, number_of
from trainkit.tune.core.setting_names import setting
from trainkit.tune.core.stoppers import AUTOMATIC as AUTOMATIC
from trainkit.tune.core.stoppers import (
    DONE,
    CombinedStopper,
    MaximumIterationStopper,
    OneStopRule,
    Stopper,
    StopRule,
)
from trainkit.tune.core.stoppers import missing_metric as missing_metric


@dataclass(frozen=True)
class Ending:
    """Reason why an experiment ends before all its trials have ended.

    Attributes:
        why: readable reason, such as "time budget".
        resumable: True if a restore resumes the unfinished trials; False if these trials have ended for good.
    """

    why: str
    resumable: bool = False


INTERRUPTED = Ending("interrupted", resumable=True)
BY_SIGTERM = Ending(f"{INTERRUPTED.why} by SIGTERM", resumable=True)
TIME_BUDGET = Ending("time budget")
FAIL_FAST = Ending("fail fast")
FAILED_TRIALS = Ending("too many failed trials", resumable=True)
BROKEN = Ending("an error", resumable=True)
WRONG_CONSTRAINT = Ending("a constraint on a value that trials do not report")

MOST_AT_ONCE = 1000
"""Maximum number of trials to start in one step, so that time limits are checked between two steps."""


@dataclass(frozen=True)
class Plan:
    """Rules of an experiment for its trials.

    Attributes:
        metrics: metrics that one report of every trial must have before the trial ends.
        constraints: constraints by which each report gets its violation.
        stop: stop rules for single trials or for the experiment.
        time_budget_s: seconds from the start of the run after which every trial ends at its next report.
        trial_timeout_s: maximum seconds of each attempt, counted once the attempt has its resources; an
            attempt that takes longer is killed and counts as failed.
        max_iteration: maximum number of reports of a trial, if known; used for estimates.
        failure, checkpoints: RunConfig's settings for failures and for checkpoints.
        grace_s: seconds that a trial has to reach its next report after a request to end.
        cleanup_s: seconds that a trial has to end once its last report has been judged.
        saves: True if trials can save a checkpoint at any report, as a class with save_checkpoint() can.
        keeps_processes: True if a trial that should pause but would be resumed at once continues in its
            process.
    """

    metrics: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    stop: StopRule | None = None
    time_budget_s: float | None = None
    trial_timeout_s: float | None = None
    max_iteration: float | None = None
    failure: FailureConfig = field(default_factory=FailureConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    grace_s: float = 5.0
    cleanup_s: float = 60.0
    keeps_processes: bool = True
    saves: bool = False

    def is_limited(self, metric: str) -> bool:
        """Return True if a constraint names the metric."""
        return any(each.metric == metric for each in self.constraints)

    def missing(self, metric: str, result: Mapping[str, Any]) -> str:
        """Return a text about a metric that a report lacks, and about the setting that requires it."""
        who = "a constraint names" if self.is_limited(metric) else f"{setting('metric', 'TuneConfig')} is"
        return f"{who} {missing_metric(metric, [result])}"


class StopRules:
    """Stop rules of an experiment. Each rule receives every report; the first rule that ends a trial counts.

    Args:
        rules: the stop rules, in the order in which they are checked.
    """

    def __init__(self, rules: Sequence[OneStopRule]) -> None:
        self._rules = rules
        self._judges = list(map(_judge_of, rules))
        self._stoppers = [rule for rule in rules if isinstance(rule, Stopper)]
        self._timed = [each for each in self._stoppers if _looks_at_time(each)]
        self.ends_none = not self._stoppers
        """True if no rule can end the experiment; cached, because every report needs this value."""

    @classmethod
    def of(cls, rule: StopRule | None) -> StopRules:
        """Return the stop rules in `rule`; stoppers are copied, so that the user's objects stay unchanged."""
        rules: list[OneStopRule] = []
        if isinstance(rule, (list, tuple)):
            rules += rule
        elif rule is not None:
            rules.append(cast("OneStopRule", rule))
        return cls([copy.deepcopy(each) if isinstance(each, Stopper) else each for each in rules])

    def begin(self, *experiment: Any) -> None:
        """Pass the experiment's search space, metric, mode, constraints and seed to the stoppers."""
        stoppers.begin_all(self._stoppers, *experiment)

    def on_report(self, trial_id: str, result: dict[str, Any]) -> dict[str, Any] | None:
        """Return facts about the rule that ends the trial, with a text as `stop`; None if no rule does.

        Raises:
            MetricError: a rule names a value that the result lacks.
        """
        found = None
        for judge in self._judges:  # the loop has no early exit, because every stopper must see every report
            reason = judge(trial_id, result)
            found = reason if found is None else found
        return found

    def told_again(self, trial_id: str, result: dict[str, Any]) -> None:
        """Replay a report that was made before a restore."""
        try:
            self.on_report(trial_id, result)
        except Exception:  # the same error has already failed this trial and is recorded
            return

    def end(self, elapsed_s: float) -> str:
        """Return why the experiment must end after `elapsed_s` seconds of running; '' if it may continue."""
        for stopper in self._timed:
            stoppers.tell_time(stopper, elapsed_s)
        for stopper in self._stoppers:
            if stopper.stop_all():
                return words_of(stopper)
        return ""

    @property
    def deadline_s(self) -> float:
        """Running time in seconds after which `end` must be called even without a report."""
        return min(map(stoppers.deadline_of, self._timed)) if self._timed else math.inf

    @property
    def max_iteration(self) -> float | None:
        """The smallest limit on a trial's number of reports among the rules, or None."""
        return min(filter(None, map(_max_iteration, self._rules)), default=None)


def _looks_at_time(stopper: Stopper) -> bool:
    own = type(stopper)
    return own.on_time is not Stopper.on_time or own.deadline_s is not Stopper.deadline_s


def words_of(stopper: Stopper) -> str:
    """Return a stopper's reason as text, such as 'stopped by TimeoutStopper: timeout 60'."""
    facts = dict(stoppers.facts_of(stopper))
    name = facts.pop("stopper", type(stopper).__name__)
    words = ", ".join(
        f"{fact} {value:.6g}" if is_number(value) else f"{fact} {value}" for fact, value in facts.items()
    )
    return f"stopped by {name}: {words}" if words else f"stopped by {name}"


def _judge_of(rule: OneStopRule) -> Callable[[str, dict[str, Any]], dict[str, Any] | None]:
    """Return a function that applies `rule` to a report: facts if the rule ends the trial, otherwise None."""
    if isinstance(rule, Mapping):
        return partial(_reached, rule)
    if isinstance(rule, Stopper):
        return lambda trial_id, result: _facts(rule) if rule(trial_id, result) else None
    facts = {"stop": f"stopped by {setting('stop', 'RunConfig', 'function')}"}
    return lambda trial_id, result: dict(facts) if rule(trial_id, result) else None


def _facts(stopper: Stopper) -> dict[str, Any]:
    return {"stop": words_of(stopper), "stopper": type(stopper).__name__, **stoppers.facts_of(stopper)}


def _reached(bounds: Mapping[str, float], trial_id: str, result: Mapping[str, Any]) -> dict[str, Any] | None:
    for name, bound in bounds.items():
        if name == DONE:  # the key `done` ends a trial even without a rule
            continue
        value = number_of(result, name)
        if value is None and lookup(result, name) is None:
            raise MetricError(f"{setting('stop', 'RunConfig')} waits for {missing_metric(name, [result])}")
        if value is not None and value >= bound:
            return {"stop": f"{name}={value:g} reached {bound:g}"}
    return None


def _max_iteration(rule: OneStopRule) -> float | None:
    match rule:
        case MaximumIterationStopper(max_iter=limit):
            return limit
        case CombinedStopper(stoppers=combined):
            return min(filter(None, map(_max_iteration, combined)), default=None)
        case Mapping():
            return rule.get("training_iteration")
    return None
