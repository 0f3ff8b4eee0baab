"""Judgement of reports and of the experiment: what ends a trial, and what ends all trials early."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trainkit.errors import MetricError, message_of
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.rules import BROKEN, TIME_BUDGET, Ending
from trainkit.tune.controller.state import ControllerState
from trainkit.tune.core.checks import setting
from trainkit.tune.core.metrics import keep_added, lookup, number_of
from trainkit.tune.core.stoppers import missing_metric, misspelt
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, Verdict

T = TypeVar("T")


def begin_budget(state: ControllerState, time: float) -> None:
    """Start the running time and the time budget of the experiment."""
    budget_s = state.plan.time_budget_s
    state.began = time
    state.budget_ends = math.inf if budget_s is None else time + budget_s


def end_deadline(state: ControllerState) -> float:
    """Return the latest time for the next check of the time limits."""
    if state.ending is not None:
        return math.inf
    if state.stop.ends_none:
        return state.budget_ends
    return min(state.budget_ends, state.began + state.stop.deadline_s - state.spent_s)


def end_if_due(state: ControllerState, time: float) -> None:
    """End the experiment if a time limit or a stopper requires it."""
    if state.ending is not None:
        return
    elapsed_s = state.spent_s + time - state.began
    if time >= state.budget_ends:
        end_experiment(state, TIME_BUDGET, time)
    elif not state.stop.ends_none and (why := guarded(state, time, state.stop.end, elapsed_s)):
        end_experiment(state, Ending(why), time)


def guarded(state: ControllerState, time: float, ask: Callable[..., T], *args: Any) -> T | None:
    """Call a searcher, scheduler or stopper; if it raises, record the error and end the experiment."""
    try:
        return ask(*args)
    except Exception as error:
        state.error = state.error or error
        end_experiment(state, BROKEN, time)
        return None


def break_off(state: ControllerState, error: Exception, time: float) -> None:
    """End the experiment with an error, unless it is already ending."""
    if state.ending is None:
        state.error = error
        end_experiment(state, BROKEN, time)


def end_experiment(state: ControllerState, ending: Ending, time: float) -> None:
    """Stop every trial at its next report, and start no more trials."""
    if state.ending is not None:
        return
    state.ending = ending
    state.step.records.append(ev.Noted(time, "ending", ending.why))
    status = TrialStatus.PENDING if ending.resumable else TrialStatus.TERMINATED
    for active in state.active.values():
        active.must_end((status, ending.why), time, state.plan.grace_s)


def require_metric(state: ControllerState, result: Mapping[str, Any]) -> None:
    """Check the experiment's first report for a misspelt metric.

    Raises:
        MetricError: `result` has the metric by another spelling, which the message gives.
    """
    state.has_reports = True
    for metric in state.plan.metrics:
        if lookup(result, metric) is None and misspelt(metric, result) is not None:
            raise MetricError(
                f"{setting('metric', 'TuneConfig')} is {missing_metric(metric, [result])} "
                "(TuneConfig(strict_metric_checking=False) lets it come with a later report)"
            )


def judge_report(
    state: ControllerState,
    trial_id: str,
    result: dict[str, Any],
    metrics: dict[str, Any],
    *,
    done: bool = False,
) -> Decision | Failure:
    """Return the decision on a report, or the failure that the report means.

    Args:
        state: state of the controller.
        trial_id: trial that reports.
        result: the report.
        metrics: metrics of the report for the store; values that a stop rule adds to `result` are copied
            here.
        done: True if the report says that the trial is over although its function has not returned.
    """
    # The scheduler comes first, even for a bad report, because a replay also gives it every report.
    decision = state.scheduler.on_result(trial_id, result)
    if decision.reason and state.source.hears_decisions:
        state.source.on_trial_decision(trial_id, result, decision)
    try:
        _check_metric(state, trial_id, result)
        known = frozenset(result)
        reached = state.stop.on_report(trial_id, result)
        keep_added(metrics, result, known, state.left_out)
    except MetricError as error:
        return Failure("MetricError", str(error), retry=False)
    except Exception as error:  # raised by the user's stop function or stopper
        message = f"{message_of(error)} (raised by what {setting('stop', 'RunConfig')} was given)"
        return Failure.raised(error, message)
    if reached is None and done:
        reached = {"stop": "reported done=True"}
    if reached is not None:
        # A stop overrides the decision; without an exchange, the record must not contain the exchange's
        # facts.
        facts = {"instead_of": decision.reason} if decision.donors else decision.reason
        return Decision(Verdict.STOP, {**facts, **reached})
    return decision


def _check_metric(state: ControllerState, trial_id: str, result: Mapping[str, Any]) -> None:
    complete = True
    for metric in state.plan.metrics:
        if number_of(result, metric) is None:
            complete = False
            if (value := lookup(result, metric)) is not None:
                raise MetricError(f"metric {metric!r} is {value!r}, which is not a number")
    if complete:
        state.with_metric.add(trial_id)


def judge_end(state: ControllerState, trial: Trial) -> Failure | None:
    """Return a failure if a trial has reported but never reported the metric; otherwise None."""
    if not state.plan.metrics or trial.trial_id in state.with_metric or not trial.last_result:
        return None
    lacking = [metric for metric in state.plan.metrics if lookup(trial.last_result, metric) is None]
    if not lacking:  # the last report has all metrics, so the error message would be wrong
        return None
    metric = lacking[0]
    text = f"{setting('metric', 'TuneConfig')} is {missing_metric(metric, [trial.last_result])}"
    return Failure("MetricError", text, retry=False)
