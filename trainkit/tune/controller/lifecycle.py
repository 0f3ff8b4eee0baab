"""Life of a trial: the consequences of each event of the trial's process.

Reported --> attempt: recorded --> judging: judged, and its outcome set --> Advance, Save or Stop
Finished --> paused: PAUSED, or PENDING again, or judging: TERMINATED, or a failure
Failed   --> what_follows: PENDING for a retry, or judging: ERROR
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainkit.errors import message_of
from trainkit.runtime.restart_policy import MOST_LOSSES
from trainkit.tune.controller import attempt, paused
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import ActiveAttempt
from trainkit.tune.controller.ending import end_experiment, guarded
from trainkit.tune.controller.failures import HOPELESS, TIMEOUT, Losses, timeout_words
from trainkit.tune.controller.judging import end_trial, heed_scheduler, judge, judge_end
from trainkit.tune.controller.rules import BY_SIGTERM, FAIL_FAST, FAILED_TRIALS
from trainkit.tune.controller.state import ControllerState
from trainkit.tune.core.configs import FailureConfig
from trainkit.tune.core.constraints import VIOLATION, violation_of
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, Verdict
from trainkit.tune.space.serialization import complete, decode_config, encode_config, holds_opaque

# The following module constants save time, because every report is compared with a dozen of them, and an
# attribute of an enumeration is slow to read.
PENDING, RUNNING, PAUSED = TrialStatus.PENDING, TrialStatus.RUNNING, TrialStatus.PAUSED
TERMINATED, ERROR = TrialStatus.TERMINATED, TrialStatus.ERROR

LOST = "the runtime's node died"
"""Reason why a trial waits again: the trial's process has ended with the session."""


def handle_attempt_event(state: ControllerState, event: Any) -> None:
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
        # Some executors send no Placed event, so Started also starts the timeout.
        _on_placed(state, active, event)
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
    if state.plan.constraints:
        event.metrics[VIOLATION] = violation_of(event.metrics, state.plan.constraints)
    result = attempt.take_report(state.step, state.plan.checkpoints, active, event)
    judge(state, active, result, event)
    if event.done:
        _finish(state, active, event.time)
    else:
        _go_on(state, active, event.time)


def _go_on(state: ControllerState, active: ActiveAttempt, time: float) -> None:
    """Let the trial run to its next report, or end it at its current report."""
    trial = active.trial
    if active.moves and active.outcome is None:
        kept = trial.checkpoint.iteration if trial.checkpoint else 0
        active.outcome = attempt.MOVED if state.plan.saves or kept == trial.iteration else None
    if active.outcome is None:
        trial_id = trial.trial_id
        state.step.actions.append(ev.Save(trial_id) if active.saving else ev.Advance(trial_id))
        return
    active.interrupts, active.deadline = math.inf, time + state.plan.cleanup_s
    watch(state, active)
    goes_on = active.outcome[0] in (PENDING, PAUSED)
    save = bool(state.plan.checkpoints.checkpoint_at_end) or goes_on
    state.step.actions.append(ev.Stop(trial.trial_id, save))


def _on_saved(state: ControllerState, active: ActiveAttempt, event: ev.Saved) -> None:
    active.saving = False
    if event.checkpoint is not None:
        policy = state.plan.checkpoints
        attempt.add_checkpoint(state.step, policy, active.trial, event.checkpoint, event.iteration)
    _go_on(state, active, event.time)


def _on_node_ending(state: ControllerState, active: ActiveAttempt, event: ev.NodeEnding) -> None:
    del state, event  # the trial's next report shows what the trial would lose
    active.moves = True


def _on_finished(state: ControllerState, active: ActiveAttempt, event: ev.Finished) -> None:
    attempt.take_along(state.step, state.plan.checkpoints, active.trial, event)
    active.outcome = active.outcome or attempt.FINISHED
    _finish(state, active, event.time, event.problem)


def _on_failed(state: ControllerState, active: ActiveAttempt, event: ev.Failed) -> None:
    # The SIGTERM that ends the experiment may also have killed the trial's subprocesses, so the trial has not
    # failed.
    if state.ending is BY_SIGTERM and active.excused:
        state.step.records.append(
            ev.Noted(event.time, "cleanup", event.failure.message, active.trial.trial_id)
        )
        _finish(state, active, event.time)
        return
    losses = state.preemptions.setdefault(event.trial_id, Losses())
    if event.preempted and losses.count([active.trial]) <= MOST_LOSSES:
        _lose(state, active, event.time, event.failure.message[:200])
    else:
        fail(state, active.trial, event.failure, event.time)


# --- ends of a trial --------------------------------------------------------------------------


def _finish(state: ControllerState, active: ActiveAttempt, time: float, problem: str = "") -> None:
    """Set the final state of a trial whose run is complete, or whose process ended with a problem."""
    trial, (status, reason) = active.trial, active.outcome or attempt.FINISHED
    failure = active.failure
    if failure is None and status is TERMINATED and not active.excused:
        failure = judge_end(state, trial, time)
    if failure is None:
        _let_go(state, trial, time, pauses=status is PAUSED)
        if status is PAUSED:
            decision = active.pause or Decision(Verdict.PAUSE)
            failure = guarded(state, time, paused.begin_pause, state, trial, decision, time, reason, problem)
        elif status is PENDING:
            attempt.wait_again(state.step, trial, time, reason)
            paused.line_up(state, trial, time)
        else:
            end_trial(state, trial, time, reason)
    if failure is not None:
        fail(state, trial, failure, time)


# --- consequences of a failure ----------------------------------------------------------------


@dataclass(frozen=True)
class Retry:
    """Decision to run the trial again.

    Attributes:
        reason: readable reason.
        counts: True if the failure counts towards `max_failures`.
        alone: True if the trial may run only while no other trial runs.
        config: new configuration; None: unchanged.
    """

    reason: str
    counts: bool = True
    alone: bool = False
    config: dict[str, Any] | None = None


def what_follows(trial: Trial, failure: Failure, policy: FailureConfig) -> Retry | Failure:
    """Return the decision to retry the trial, or the failure that ends the trial.

    Args:
        trial: the trial that failed; its number of failures does not yet include `failure`.
        failure: failure of the trial's latest attempt.
        policy: the user's policy.
    """
    if failure.out_of_memory and policy.out_of_memory is not None:
        if callable(policy.out_of_memory):
            return _changed(trial, failure, policy.out_of_memory)
        if not trial.alone:
            return Retry(f"retry without other trials after {failure.kind}", counts=False, alone=True)
    allowed, failures = policy.max_failures, trial.failures + 1
    if failure.retry and (allowed == -1 or failures <= allowed):
        limit = "" if allowed == -1 else f" of {allowed}"
        return Retry(f"retry {failures}{limit} after {failure.kind}")
    return failure


def _changed(trial: Trial, failure: Failure, change: Callable[[dict[str, Any]], Any]) -> Retry | Failure:
    asked = "FailureConfig(out_of_memory=function)"
    try:
        config = change(copy.deepcopy(trial.config))
    except Exception as error:
        return _with_words(failure, f"then {asked} raised {type(error).__name__}: {message_of(error)}")
    if config is None:
        return _with_words(failure, f"{asked} returned None, which ends the trial")
    if not isinstance(config, dict):
        return _with_words(failure, f"{asked} returned {config!r:.100}, which is not a dictionary")
    text = encode_config(config)
    if text in [encode_config(tried) for tried in (*trial.tried, trial.config)]:
        return _with_words(failure, f"{asked} returned a configuration that was tried before")
    if holds_opaque(complete(decode_config(text), trial.config)):
        return _with_words(failure, f"{asked} returned {config!r:.200}, with an object that cannot be stored")
    reason = f"retry with another configuration after {failure.kind}: {_difference(trial.config, config)}"
    return Retry(reason, counts=False, config=config)


def _with_words(failure: Failure, words: str) -> Failure:
    return replace(failure, message=f"{failure.message}; {words}" if failure.message else words)


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={new[name]!r:.50}" if name in new else f"without {name}"
        for name in {**old, **new}
        if name not in old or name not in new or repr(old[name]) != repr(new[name])
    )


def fail(state: ControllerState, trial: Trial, failure: Failure, time: float) -> None:
    """Handle a trial's failure: retry the trial or end it."""
    _let_go(state, trial, time)
    follows = what_follows(trial, failure, state.plan.failure)
    if isinstance(follows, Retry):
        _retry(state, trial, failure, follows, time)
        return
    trial.failures += 1
    trial.failure = follows
    end_trial(state, trial, time, f"{follows.kind}: {follows.message}"[:200], follows)
    if state.plan.failure.fail_fast:
        end_experiment(state, FAIL_FAST, time)
    state.failed += 1
    limit = state.plan.failure.max_failed_trials
    endless = state.source.num_samples == -1 and math.isinf(state.budget_ends)
    # The number of running trials is added to the limit, because running trials may report later.
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


def _let_go(state: ControllerState, trial: Trial, time: float, *, pauses: bool = False) -> None:
    state.watched.pop(trial.trial_id, None)
    if (active := state.active.pop(trial.trial_id, None)) is not None:
        if not pauses:
            paused.withdraw(state, trial, active.pause)
        state.estimate.stopped(trial.trial_id, time)
        state.ledger.release(trial.trial_id)
        state.step.actions.append(ev.Release(trial.trial_id))


def lose_all(state: ControllerState, time: float) -> None:
    """Handle the loss of all processes: decided outcomes take effect, and all other trials run again."""
    for active in list(state.active.values()):
        _lose(state, active, time, LOST)


def _lose(state: ControllerState, active: ActiveAttempt, time: float, reason: str) -> None:
    trial, outcome = active.trial, active.outcome
    if outcome is None or (active.is_pausing and not paused.may_pause(state, trial, active.pause)):
        _let_go(state, trial, time)
        attempt.wait_again(state.step, trial, time, reason)
        paused.line_up(state, trial, time)
    else:
        _finish(state, active, time, reason)


def watch(state: ControllerState, active: ActiveAttempt) -> None:
    """Start checking the attempt's time limits."""
    state.watched[active.trial.trial_id] = active


def _limited(state: ControllerState) -> Mapping[str, ActiveAttempt]:
    return state.watched if state.ending is None else state.active


def first_limit(state: ControllerState) -> float:
    """Return the earliest time at which an attempt must be interrupted or killed; infinity: no limit."""
    limited = _limited(state)
    return min([min(active.limit, active.interrupts) for active in limited.values()], default=math.inf)


def kill_overdue(state: ControllerState, now: float) -> None:
    """Kill attempts that exceed their time limit; interrupt attempts that are due for an interrupt."""
    if not (limited := _limited(state)):
        return
    for active in [active for active in limited.values() if now >= active.limit]:
        state.step.actions.append(ev.Kill(active.trial.trial_id))
        if active.outcome is None:
            words = timeout_words(state.plan.trial_timeout_s or 0.0)
            fail(state, active.trial, Failure(TIMEOUT, words), now)
            continue
        status, reason = active.outcome
        problem = "killed, because it did not end in time"
        active.outcome = status, f"{reason}; {problem}"
        _finish(state, active, now, problem)
    for active in limited.values():
        if now >= active.interrupts:
            active.interrupts = math.inf
            state.step.actions.append(ev.Interrupt(active.trial.trial_id))


def set_request(state: ControllerState, trial: Trial, time: float) -> bool:
    """Set the trial's resource request.

    If the user's function raises or the request is infeasible, fail the trial and return False.
    """
    try:
        trial.request = trial.granted or state.source.request(trial)
        state.ledger.require_feasible(trial.request, what=f"trial {trial.name}")
    except Exception as error:
        fail(state, trial, Failure.raised(error), time)
        return False
    return True


_HANDLERS: Mapping[type[ev.Event], Callable[[ControllerState, ActiveAttempt, Any], None]] = {
    ev.Placed: _on_placed,
    ev.Started: _on_started,
    ev.Reported: _on_reported,
    ev.Finished: _on_finished,
    ev.Saved: _on_saved,
    ev.Failed: _on_failed,
    ev.NodeEnding: _on_node_ending,
}
KINDS = tuple(_HANDLERS)
"""Kinds of events that `handle_attempt_event` accepts."""
