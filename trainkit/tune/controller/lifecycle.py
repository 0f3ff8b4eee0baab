"""Life of a trial: the transitions between its statuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trainkit.tune.controller import attempt, paused
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import ActiveAttempt
from trainkit.tune.controller.failures import HOPELESS, TIMEOUT, Retry, timeout_words, what_follows
from trainkit.tune.controller.judging import (
    end_experiment,
    end_if_due,
    guarded,
    judge_end,
    judge_report,
    require_metric,
)
from trainkit.tune.controller.rules import BY_SIGTERM, FAIL_FAST, FAILED_TRIALS
from trainkit.tune.controller.state import ControllerState
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, Verdict, words_for

# Module constants, as each report checks a dozen and reading an attribute of an enumeration is slow.
PENDING, RUNNING, PAUSED = TrialStatus.PENDING, TrialStatus.RUNNING, TrialStatus.PAUSED
TERMINATED, ERROR = TrialStatus.TERMINATED, TrialStatus.ERROR

LOST = "the runtime's node died"
"""Reason of a trial that waits because it lost its process with the session."""


def handle_attempt_event(
    state: ControllerState, event: ev.Placed | ev.Started | ev.Reported | ev.Finished | ev.Saved | ev.Failed
) -> None:
    """Handle an event of a trial's process; ignore events from processes of earlier attempts."""
    active = state.active.get(event.trial_id)
    if active is not None and active.trial.attempt == event.attempt:
        _HANDLERS[type(event)](state, active, event)


# --- a trial's events -------------------------------------------------------------------------


def _on_placed(state: ControllerState, active: ActiveAttempt, event: ev.Placed | ev.Started) -> None:
    if state.plan.trial_timeout_s is not None and math.isinf(active.times_out):
        active.times_out = event.time + state.plan.trial_timeout_s
        watch(state, active)


def _on_started(state: ControllerState, active: ActiveAttempt, event: ev.Started) -> None:
    if state.plan.trial_timeout_s is not None:
        _on_placed(state, active, event)  # for executors that send no Placed event
    trial = active.trial
    place = (event.pid, event.hostname, event.node_ip)
    active.origin = attempt.Origin(trial.trial_id, trial.tag, trial.config, *place)
    trial.status, trial.reason = RUNNING, ""
    state.steering.first.pop(trial.trial_id, None)
    state.step.records.append(
        ev.AttemptStarted(trial, trial.attempt, event.time, *place, iteration=trial.iteration)
    )
    _go_on(state, active, event.time)


def _on_reported(state: ControllerState, active: ActiveAttempt, event: ev.Reported) -> None:
    trial, origin = active.trial, active.origin
    if origin is None:
        raise RuntimeError(f"trial {trial.trial_id} reported before it was started")
    result = attempt.full_result(event.metrics, origin, done=event.done)
    trial.iteration, trial.last_result = event.iteration, result
    state.step.records.append(
        ev.ResultAdded(trial, trial.attempt, event.iteration, event.time, event.metrics, result)
    )
    if event.checkpoint is not None or event.problem:
        _take_along(state, active, event)
    if state.source.hears_results:
        guarded(state, event.time, state.source.on_trial_result, trial.trial_id, result)
    # The decision on this report takes precedence over an end of the whole experiment.
    guarded(state, event.time, _decide, state, active, result, event)
    if not state.has_reports:
        guarded(state, event.time, require_metric, state, result)
    end_if_due(state, event.time)
    result["done"] = active.outcome is not None and active.outcome[0] in (TERMINATED, ERROR)
    if event.done:
        _finish(state, active, event.time)
    else:
        _go_on(state, active, event.time)


def _decide(
    state: ControllerState, active: ActiveAttempt, result: dict[str, Any], event: ev.Reported
) -> None:
    """Set the trial's outcome from the decision on this report."""
    trial = active.trial
    active.outcome = attempt.FINISHED if event.done else active.outcome
    says_done = not event.done and bool(event.metrics.get("done"))
    decision = judge_report(state, trial.trial_id, result, event.metrics, done=says_done)
    if isinstance(decision, Failure):
        active.outcome, active.failure = (ERROR, ""), decision
        return
    if decision.donors:
        paused.require_known_donors(state, trial.trial_id, decision)
    if decision.reason or decision.verdict is not Verdict.CONTINUE:
        state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
    if decision.verdict is Verdict.STOP:
        active.outcome = TERMINATED, words_for(decision, state.scheduler.label)
    elif decision.verdict is Verdict.PAUSE and active.may_pause:
        active.outcome = PAUSED, words_for(decision, state.scheduler.label)
        active.pause = decision
    heed_scheduler(state, event.time)
    held = state.ending is None and bool(state.steering.who_holds(trial.trial_id))
    if active.is_pausing and state.ending is None and not held and paused.runs_on(state, active, event.time):
        active.outcome = None
        heed_scheduler(state, event.time)
    if held and active.outcome is None:
        paused.pull(state, active)
    active.saving = decision.save and active.outcome is None


def _go_on(state: ControllerState, active: ActiveAttempt, time: float) -> None:
    """Let the trial run to its next report, or end it at its current report."""
    if active.outcome is None:
        trial_id = active.trial.trial_id
        state.step.actions.append(ev.Save(trial_id) if active.saving else ev.Advance(trial_id))
        return
    active.interrupts, active.deadline = math.inf, time + state.plan.cleanup_s
    watch(state, active)
    goes_on = active.outcome[0] in (PENDING, PAUSED)
    save = bool(state.plan.checkpoints.checkpoint_at_end) or goes_on
    state.step.actions.append(ev.Stop(active.trial.trial_id, save))


def _take_along(state: ControllerState, active: ActiveAttempt, event: ev.Reported | ev.Finished) -> None:
    """Keep the checkpoint and record the problem of an event, if it has them."""
    trial, policy = active.trial, state.plan.checkpoints
    if event.checkpoint is not None:
        attempt.keep_checkpoint(state.step, policy, trial, event.checkpoint, event.iteration)
    if event.problem:  # a failed clean-up is recorded but does not change the trial's outcome
        state.step.records.append(ev.Noted(event.time, "cleanup", event.problem, trial.trial_id))


def _on_saved(state: ControllerState, active: ActiveAttempt, event: ev.Saved) -> None:
    active.saving = False
    if event.checkpoint is not None:
        policy = state.plan.checkpoints
        attempt.keep_checkpoint(state.step, policy, active.trial, event.checkpoint, event.iteration)
    _go_on(state, active, event.time)


def _on_finished(state: ControllerState, active: ActiveAttempt, event: ev.Finished) -> None:
    _take_along(state, active, event)
    active.outcome = active.outcome or attempt.FINISHED
    _finish(state, active, event.time, event.problem)


def _on_failed(state: ControllerState, active: ActiveAttempt, event: ev.Failed) -> None:
    if state.ending is BY_SIGTERM and active.excused:  # SIGTERM may also have hit its subprocesses
        state.step.records.append(
            ev.Noted(event.time, "cleanup", event.failure.message, active.trial.trial_id)
        )
        _finish(state, active, event.time)
        return
    fail(state, active.trial, event.failure, event.time)


# --- ends of a trial --------------------------------------------------------------------------


def _finish(state: ControllerState, active: ActiveAttempt, time: float, problem: str = "") -> None:
    """Settle the end of a trial whose process has nothing more to do, or ended with a problem."""
    trial, (status, reason) = active.trial, active.outcome or attempt.FINISHED
    if active.failure is not None:
        fail(state, trial, active.failure, time)
        return
    must_report = status is TERMINATED and not active.excused
    if must_report and (failure := judge_end(state, trial)):
        fail(state, trial, failure, time)
        return
    _let_go(state, trial, time)
    if status is PAUSED:
        decision = active.pause or Decision(Verdict.PAUSE)
        refused = guarded(state, time, paused.begin_pause, state, trial, decision, time, reason, problem)
        if refused is not None:
            fail(state, trial, refused, time)
    elif status is PENDING:
        trial.attempt += 1
        attempt.set_status(state.step, trial, time, status, reason)
    else:
        terminate(state, trial, time, reason)


def terminate(state: ControllerState, trial: Trial, time: float, reason: str) -> None:
    """End a trial that has no process, without a failure."""
    state.estimate.ended(trial.trial_id)
    state.steering.forget(trial.trial_id)
    attempt.set_status(state.step, trial, time, TERMINATED, reason)
    if trial.checkpoints:
        attempt.drop_checkpoints(state.step, state.plan.checkpoints, trial, running=False)
    trial_id, result = trial.trial_id, trial.last_result or None
    # The searcher comes first: the scheduler may end other trials now, and a replay needs a fixed order.
    guarded(state, time, state.source.on_trial_complete, trial_id, result)
    guarded(state, time, state.scheduler.on_trial_complete, trial_id)
    heed_scheduler(state, time)


def fail(state: ControllerState, trial: Trial, failure: Failure, time: float) -> None:
    """Handle a trial's failure: retry the trial or end it."""
    _let_go(state, trial, time)
    follows = what_follows(trial, failure, state.plan.failure)
    if isinstance(follows, Retry):
        _retry(state, trial, failure, follows, time)
        return
    trial.failures += 1
    trial.failure = follows
    state.estimate.ended(trial.trial_id)
    state.steering.forget(trial.trial_id)
    reason = f"{follows.kind}: {follows.message}"[:200]
    attempt.set_status(state.step, trial, time, ERROR, reason, follows)
    attempt.drop_checkpoints(state.step, state.plan.checkpoints, trial, running=False)
    trial_id, result = trial.trial_id, trial.last_result or None
    guarded(state, time, state.source.on_trial_complete, trial_id, result, True)
    guarded(state, time, state.scheduler.on_trial_error, trial_id)
    heed_scheduler(state, time)
    if state.plan.failure.fail_fast:
        end_experiment(state, FAIL_FAST, time)
    state.failed += 1
    limit = state.plan.failure.max_failed_trials
    endless = state.source.num_samples == -1 and math.isinf(state.budget_ends)
    # The running trials count too, as some of them may only be slow to report.
    first = state.trials[: HOPELESS + len(state.active)]
    if limit is None and endless and not state.has_reports and all(each.status is ERROR for each in first):
        limit = HOPELESS
    if limit is not None and state.failed >= limit:
        end_experiment(state, FAILED_TRIALS, time)


def _retry(state: ControllerState, trial: Trial, failure: Failure, retry: Retry, time: float) -> None:
    trial.failures += retry.counts
    trial.attempt += 1
    trial.alone = trial.alone or retry.alone
    if retry.config is not None:
        trial.tried.append(trial.config)
        trial.config = retry.config
    if retry.alone or retry.config is not None:
        state.step.records.append(ev.Rearranged(trial, time, retry.config))
    if retry.config is not None:
        guarded(state, time, state.scheduler.on_trial_change, trial.trial_id, trial.config)
        heed_scheduler(state, time)
    attempt.set_status(state.step, trial, time, PENDING, retry.reason, failure, retried=True)
    if retry.config is None or set_request(state, trial, time):
        paused.line_up(state, trial, time)


def _let_go(state: ControllerState, trial: Trial, time: float) -> None:
    state.watched.pop(trial.trial_id, None)
    if state.active.pop(trial.trial_id, None) is not None:
        state.estimate.stopped(trial.trial_id, time)
        state.ledger.release(trial.trial_id)
        state.step.actions.append(ev.Release(trial.trial_id))


def lose_all(state: ControllerState, time: float) -> None:
    """Handle the loss of all processes: decided outcomes stay, and all other trials run again."""
    for active in list(state.active.values()):
        trial, outcome = active.trial, active.outcome
        if outcome is None or (active.is_pausing and not paused.may_pause(state, trial, active.pause)):
            _let_go(state, trial, time)
            trial.attempt += 1
            attempt.set_status(state.step, trial, time, PENDING, LOST)
            paused.line_up(state, trial, time)
        else:
            _finish(state, active, time, LOST)


def watch(state: ControllerState, active: ActiveAttempt) -> None:
    """Check the attempt's time limits from now on."""
    state.watched[active.trial.trial_id] = active


def _limited(state: ControllerState) -> Mapping[str, ActiveAttempt]:
    return state.watched if state.ending is None else state.active


def first_limit(state: ControllerState) -> float:
    """Return the earliest time at which an attempt must be interrupted or killed; infinity: no limit."""
    limited = _limited(state)
    return min([min(active.limit, active.interrupts) for active in limited.values()], default=math.inf)


def kill_overdue(state: ControllerState, now: float) -> None:
    """Kill attempts that exceed their limit; interrupt attempts whose time for this has come."""
    if not (limited := _limited(state)):
        return
    for active in [active for active in limited.values() if now >= active.limit]:
        state.step.actions.append(ev.Kill(active.trial.trial_id))
        if active.outcome is None:
            words = timeout_words(state.plan.trial_timeout_s or 0.0)
            fail(state, active.trial, Failure(TIMEOUT, words), now)
            continue
        status, reason = active.outcome
        problem = "killed, as it did not end in time"
        active.outcome = status, f"{reason}; {problem}"
        _finish(state, active, now, problem)
    for active in limited.values():
        if now >= active.interrupts:
            active.interrupts = math.inf
            state.step.actions.append(ev.Interrupt(active.trial.trial_id))


def set_request(state: ControllerState, trial: Trial, time: float) -> bool:
    """Set the trial's resource request; if it is unknown or infeasible, fail the trial and return False."""
    try:
        trial.request = trial.granted or state.source.request(trial)
        state.ledger.require_feasible(trial.request, what=f"trial {trial.name}")
    except Exception as error:
        fail(state, trial, Failure.raised(error), time)
        return False
    return True


def heed_scheduler(state: ControllerState, time: float) -> None:
    """Carry out the scheduler's new decisions on waiting trials."""
    if not state.scheduler.gives_verdicts:
        return
    verdicts = guarded(state, time, state.scheduler.verdicts)
    if verdicts:
        for trial, reason in guarded(state, time, paused.apply_verdicts, state, verdicts, time) or ():
            terminate(state, trial, time, reason)


_HANDLERS: Mapping[type[ev.Event], Callable[[ControllerState, ActiveAttempt, Any], None]] = {
    ev.Placed: _on_placed,
    ev.Started: _on_started,
    ev.Reported: _on_reported,
    ev.Finished: _on_finished,
    ev.Saved: _on_saved,
    ev.Failed: _on_failed,
}
KINDS = tuple(_HANDLERS)
"""Kinds of events that `handle_attempt_event` accepts."""
