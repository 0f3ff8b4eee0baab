"""Judgement of trials: decisions of the scheduler, then of the stop rules, and their effects.

A decision on a report sets the outcome of the report's trial. A decision on a waiting trial takes effect at
once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError, MetricError, did_you_mean, message_of
from trainkit.tune.controller import events as ev
from trainkit.tune.controller import paused
from trainkit.tune.controller.attempt import FINISHED, ActiveAttempt, drop_checkpoints, set_status
from trainkit.tune.controller.ending import end_experiment, end_if_due, guarded
from trainkit.tune.controller.rules import WRONG_CONSTRAINT
from trainkit.tune.controller.run_queue import would_go_on_at_once
from trainkit.tune.controller.state import ControllerState
from trainkit.tune.core.constraints import VIOLATION
from trainkit.tune.core.metrics import keep_added, lookup, number_of
from trainkit.tune.core.setting_names import setting
from trainkit.tune.core.stoppers import ALIKE, misspelt, reported_names
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers.base import BY_COMMAND, Decision, Verdict, words_for

# The following module constants save time, because every report is compared with them, and an attribute of an
# enumeration is slow to read.
PAUSED, TERMINATED, ERROR = TrialStatus.PAUSED, TrialStatus.TERMINATED, TrialStatus.ERROR


def judge(state: ControllerState, active: ActiveAttempt, result: dict[str, Any], event: ev.Reported) -> None:
    """Judge a report: set the outcome of its trial, and end the experiment if a rule requires it."""
    if state.source.hears_results:
        guarded(state, event.time, state.source.on_trial_result, active.trial.trial_id, result)
    # The trial is judged before the experiment, because the decision on a trial takes precedence over an end
    # of the whole experiment.
    guarded(state, event.time, _decide, state, active, result, event)
    if not state.has_reports:
        guarded(state, event.time, _require_metric, state, result, event.time)
    end_if_due(state, event.time)
    result["done"] = active.outcome is not None and active.outcome[0] in (TERMINATED, ERROR)


def _decide(
    state: ControllerState, active: ActiveAttempt, result: dict[str, Any], event: ev.Reported
) -> None:
    active.outcome = FINISHED if event.done else active.outcome
    decision = _decision(state, result, event)
    if isinstance(decision, Failure):
        active.outcome, active.failure = (ERROR, ""), decision
    else:
        _take_decision(state, active, decision, event.time)


def _decision(state: ControllerState, result: dict[str, Any], event: ev.Reported) -> Decision | Failure:
    """Return the decision on a report, or the failure if the report is invalid or a stop rule raises.

    Values that a stop rule adds to `result` are copied to the event's metrics, so that these values are
    stored.
    """
    trial_id, metrics = event.trial_id, event.metrics
    # A report may contain `done` although the user's function has not returned.
    says_done = not event.done and bool(metrics.get("done"))
    # The scheduler receives every report first, even an invalid report, because a replay also passes every
    # report to the scheduler.
    decision = state.scheduler.on_result(trial_id, result)
    if state.source.hears_decisions and (decision.reason or decision.verdict is not Verdict.CONTINUE):
        state.source.on_trial_decision(trial_id, result, decision)
    try:
        _check_metric(state, trial_id, result)
        known = frozenset(result)
        reached = state.stop.on_report(trial_id, result)
        keep_added(metrics, result, known, state.left_out)
    except MetricError as error:
        return Failure("MetricError", str(error), retry=False)
    except Exception as error:  # the user's stop function or stopper raised this error
        message = f"{message_of(error)} (raised by the rule in {setting('stop', 'RunConfig')})"
        return Failure.raised(error, message)
    if reached is None and says_done:
        reached = {"stop": "reported done=True"}
    if reached is not None:
        # A stop rule overrides the scheduler's decision, and cancels a takeover of a donor's state. The facts
        # of the scheduler's decision are kept to show which decision the stop rule has replaced.
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


def judge_end(state: ControllerState, trial: Trial, time: float) -> Failure | None:
    """Return a failure if a trial has reported but never reported the metric; otherwise None.

    The first such trial ends the experiment if the metric of a constraint is probably a mistake.
    """
    if not state.plan.metrics or trial.trial_id in state.with_metric or not trial.last_result:
        return None
    lacking = [metric for metric in state.plan.metrics if lookup(trial.last_result, metric) is None]
    if not lacking:  # a stop rule has added the metrics to the last report, too late for constraints
        if not math.isnan(trial.last_result.get(VIOLATION, 0.0)):
            return None
        text = (
            "a stop rule adds the value of a constraint, but constraints read only reported values: report it"
        )
        return Failure("MetricError", text, retry=False)
    metric, last = lacking[0], trial.last_result
    text = state.plan.missing(metric, last)
    if is_limited := state.plan.is_limited(metric):
        is_mistake = bool(did_you_mean(metric, reported_names(last), cutoff=ALIKE))
        if lookup(trial.config, metric) is not None:
            is_mistake = True
            text += f". {metric!r} is a parameter: exclude configurations by tune.forbid(...) in the space"
    if is_limited and is_mistake and not state.with_metric:
        state.error = state.error or MetricError(text)
        end_experiment(state, WRONG_CONSTRAINT, time)
    return Failure("MetricError", text, retry=False)


def _require_metric(state: ControllerState, result: Mapping[str, Any], time: float) -> None:
    """Check the experiment's first report for a misspelt metric.

    Raises:
        MetricError: `result` spells the metric differently; the message gives this spelling.
    """
    state.has_reports = True
    for metric in state.plan.metrics:
        if lookup(result, metric) is None and misspelt(metric, result) is not None:
            if state.plan.is_limited(metric):  # a restore could not correct the constraint
                end_experiment(state, WRONG_CONSTRAINT, time)
            raise MetricError(
                f"{state.plan.missing(metric, result)} "
                "(TuneConfig(strict_metric_checking=False) allows the metric in a later report)"
            )


# --- decisions on reports ---------------------------------------------------------------------


def _take_decision(state: ControllerState, active: ActiveAttempt, decision: Decision, time: float) -> None:
    """Record the decision on a report, and set the outcome of its trial."""
    trial = active.trial
    _require_known_donors(state, trial.trial_id, decision)
    if decision.reason or decision.verdict is not Verdict.CONTINUE:
        state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
    if decision.verdict is Verdict.STOP:
        active.outcome = TERMINATED, words_for(decision, state.scheduler.label)
    elif decision.verdict is Verdict.PAUSE and active.may_pause:
        active.outcome = PAUSED, words_for(decision, state.scheduler.label)
        paused.plan_pause(state, active, decision)
    heed_scheduler(state, time)
    held = state.ending is None and bool(state.steering.who_holds(trial.trial_id))
    if active.is_pausing and state.ending is None and not held and _runs_on(state, active, time):
        active.outcome = None
        heed_scheduler(state, time)
    if held and active.outcome is None:
        _pull(state, active)
    active.saving = decision.save and active.outcome is None


def _runs_on(state: ControllerState, active: ActiveAttempt, time: float) -> bool:
    """Return True if a trial that should pause continues instead, because a pause would gain nothing.

    If the trial continues, the function records that the trial was resumed.
    """
    decision, trial = active.pause, active.trial
    if decision is None or decision.request is not None:
        return False
    if decision.donors:
        among = [state.active.get(donor.trial_id) for donor in decision.donors]
        to_come = state.plan.saves or any(one is not None and one.is_saving for one in among)
        if to_come or paused.may_pause(state, trial, decision):
            return False
        # The trial continues, because no donor has a checkpoint and a restart would gain nothing.
        paused.withdraw(state, trial, decision)
        paused.note_no_exchange(state, trial, decision, time)
        paused.resumed(state, trial)
        return True
    if not state.plan.keeps_processes or not would_go_on_at_once(state, active.trial):
        return False
    paused.resumed(state, active.trial)
    return True


def _pull(state: ControllerState, active: ActiveAttempt) -> None:
    """Pause a trial at its report on a user's command, if the trial has a checkpoint or can save a
    checkpoint.
    """
    trial = active.trial
    if trial.checkpoint is None and not state.plan.saves:
        return
    reason = f"paused by {state.steering.who_holds(trial.trial_id)}"
    decision = Decision(Verdict.PAUSE, {BY_COMMAND: reason})
    paused.plan_pause(state, active, decision)
    active.outcome = PAUSED, reason
    state.steering.pulled.add(trial.trial_id)
    state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))


# --- on trials that wait ----------------------------------------------------------------------


def heed_scheduler(state: ControllerState, time: float) -> None:
    """Carry out the scheduler's new decisions on waiting trials."""
    if not state.scheduler.gives_verdicts:
        return
    verdicts = guarded(state, time, state.scheduler.verdicts)
    if verdicts:
        for trial, reason in guarded(state, time, _applied, state, verdicts, time) or ():
            end_trial(state, trial, time, reason)


def _applied(
    state: ControllerState, verdicts: Sequence[tuple[str, Decision]], time: float
) -> list[tuple[Trial, str]]:
    """Carry out the decisions on waiting trials; return the trials to end, with reasons."""
    ended = []
    for trial_id, decision in verdicts:
        if trial_id not in state.by_id:
            raise ConfigError(f"{state.scheduler.name}.verdicts() decided on an unknown trial {trial_id!r}")
        _require_known_donors(state, trial_id, decision)
        trial, active = state.by_id[trial_id], state.active.get(trial_id)
        if trial.status.is_finished or (active is not None and active.is_ending):
            continue
        state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
        stopped = decision.verdict is Verdict.STOP
        reason = words_for(decision, state.scheduler.label)
        if active is not None and stopped:
            active.outcome = TERMINATED, reason
        elif active is not None:
            paused.plan_pause(state, active, decision)
        elif stopped and paused.leave_lines(state, trial):
            ended.append((trial, reason))
        elif trial.status is PAUSED and paused.leave_line(state, trial):
            paused.exchange(state, trial, decision, time)
    return ended


def take_up_owed(state: ControllerState, owed: Mapping[str, Decision], time: float) -> None:
    """Carry out the decisions on paused trials that the previous run made, but did not carry out before its
    end.
    """
    for trial_id, decision in owed.items():
        _require_known_donors(state, trial_id, decision)
        if paused.leave_line(state, state.by_id[trial_id]):
            paused.carry_out(state, state.by_id[trial_id], decision, time)


def _require_known_donors(state: ControllerState, trial_id: str, decision: Decision) -> None:
    """Check that all donors are trials of the experiment.

    Raises:
        ConfigError: a donor's id is unknown.
    """
    for donor in decision.donors:
        if donor.trial_id not in state.by_id:
            raise ConfigError(
                f"{state.scheduler.name} lets trial {trial_id} copy an unknown trial {donor.trial_id!r}: "
                "use the ids that on_trial_add() received"
            )


def end_trial(
    state: ControllerState, trial: Trial, time: float, reason: str, failure: Failure | None = None
) -> None:
    """End a trial that has no process; with a `failure`, its status becomes ERROR."""
    state.estimate.ended(trial.trial_id)
    withdrawn = failure is not None or trial.trial_id in state.steering.withdrawn
    state.steering.forget(trial.trial_id)
    status = TERMINATED if failure is None else ERROR
    set_status(state.step, trial, time, status, reason, failure)
    if trial.checkpoints:
        drop_checkpoints(state.step, state.plan.checkpoints, trial, running=False)
    trial_id, result, failed = trial.trial_id, trial.last_result or None, failure is not None
    # The searcher is notified before the scheduler, because the scheduler may end other trials now, and a
    # replay needs a fixed order.
    guarded(state, time, state.source.on_trial_complete, trial_id, result, failed)
    scheduler = state.scheduler
    guarded(state, time, scheduler.on_trial_error if withdrawn else scheduler.on_trial_complete, trial_id)
    heed_scheduler(state, time)
