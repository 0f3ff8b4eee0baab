"""Controller of an experiment: a state machine from events to records and actions.

The controller reads no clock and no file and starts no process. Each event contains its time. Random numbers
come from the generators of the searcher and the scheduler. All effects are returned as records and actions.
The caller commits the records before it carries out the actions. So a trial continues after a report only
once the report can't be lost.

Status changes:   PENDING -- Start --> starting -- Started --> running -- Reported --> ...
                     ^                                            |
                     |  retry, or resume after an interruption    +-- Stop --> stopping -- Finished -->
                     +--------------------------------------------+        PAUSED, TERMINATED or ERROR
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError, NodeDiedError
from trainkit.runtime.restart_policy import MOST_LOSSES
from trainkit.tune.controller import events as ev
from trainkit.tune.controller import lifecycle, paused, steering
from trainkit.tune.controller.attempt import ActiveAttempt, drop_checkpoints
from trainkit.tune.controller.ending import (
    begin_budget,
    end_deadline,
    end_experiment,
    end_if_due,
    guarded,
)
from trainkit.tune.controller.estimate import TimeEstimate
from trainkit.tune.controller.failures import too_many_losses
from trainkit.tune.controller.judging import end_trial, heed_scheduler, take_up_owed
from trainkit.tune.controller.rules import (
    BROKEN,
    BY_SIGTERM,
    INTERRUPTED,
    MOST_AT_ONCE,
    Ending,
    Plan,
    StopRules,
)
from trainkit.tune.controller.run_queue import is_over, next_trial, trials_to_come
from trainkit.tune.controller.state import ControllerState, Steering, WaitingTrials
from trainkit.tune.core.capacity import ExperimentView, ResourceLedger
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, TrialScheduler
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search.trial_source import TrialSource

NOT_PROMOTED = "not promoted"


class Controller:
    """State machine of an experiment.

    Args:
        plan: rules of the experiment.
        source, scheduler: source of trials, and scheduler that judges reports; in a resumed experiment, both
            are already restored.
        ledger: resources for trials.
        trials: trials of the resumed experiment, in the order of suggestion; trials with the status PENDING
            will run.
        with_metric: ids of `trials` that have reported the metric.
        stop: stop rules that have already received the reports of earlier runs; None: new rules from
            `plan.stop`.
        spent_s: seconds that the experiment ran before this run.
        steering: users' commands from earlier runs that still apply.
        owed: decisions on paused trials, by trial id, that the previous run made but did not carry out.
    """

    def __init__(
        self,
        plan: Plan,
        source: TrialSource,
        scheduler: TrialScheduler,
        ledger: ResourceLedger,
        trials: Sequence[Trial] = (),
        with_metric: Iterable[str] = (),
        *,
        stop: StopRules | None = None,
        spent_s: float = 0.0,
        owed: Mapping[str, Decision] | None = None,
        steering: Steering | None = None,
    ) -> None:
        self._owed = owed or {}
        self.refused_total = False
        """True if the scheduler has refused to work with the number of trials of this run."""
        self.ledger = ledger
        self.trials = list(trials)
        by_id = {trial.trial_id: trial for trial in self.trials}
        checked = CheckedScheduler(scheduler)
        checked.see(ExperimentView(self.trials, by_id, ledger))
        known = set(with_metric)
        self._state = ControllerState(
            plan=plan,
            stop=StopRules.of(plan.stop) if stop is None else stop,
            source=source,
            scheduler=checked,
            ledger=ledger,
            estimate=TimeEstimate(plan.max_iteration),
            trials=self.trials,
            by_id=by_id,
            waiting=WaitingTrials(self.trials),
            paused=WaitingTrials(self.trials, TrialStatus.PAUSED),
            spent_s=spent_s,
            with_metric=known,
            has_reports=bool(known),
            failed=sum(trial.status is TrialStatus.ERROR for trial in self.trials),
            steering=steering or Steering(),
        )
        paused.set_aside(self._state)
        begin_budget(self._state, 0.0)

    def _tell_total(self, time: float) -> None:
        """Notify the scheduler if the number of trials has changed, for example by a restore."""
        try:
            steering.tell_total(self._state, time)
        except ConfigError:
            self.refused_total = True
            raise

    # --- what the loop calls ----------------------------------------------------------------------

    def begin(self, time: float) -> ev.Step:
        """Start the first trials; the time budget starts now."""
        state = self._state
        begin_budget(state, time)
        state.step.records.append(ev.Noted(time, ev.BEGAN))
        guarded(state, time, state.scheduler.on_begin)
        guarded(state, time, self._tell_total, time)
        # If the last run was killed, the clean-up after a trial's end may be missing, so the clean-up is
        # repeated here.
        for trial in self.trials:
            if trial.status.is_finished:
                drop_checkpoints(state.step, state.plan.checkpoints, trial, running=False)
        end_if_due(state, time)
        # If the restore has ended trials, the scheduler may have new decisions on paused trials.
        heed_scheduler(state, time)
        guarded(state, time, take_up_owed, state, self._owed, time)
        _fill(state, time)
        return state.step.take()

    def handle(self, batch: Sequence[ev.Event]) -> ev.Step:
        """Process events in order of time; `batch` must have an event, such as a Tick if nothing happened."""
        state = self._state
        for event in batch:
            _HANDLERS[type(event)](state, event)
        now = batch[-1].time
        if now >= end_deadline(state):
            end_if_due(state, now)
        lifecycle.kill_overdue(state, now)
        paused.retry_exchanges(state, now)
        _fill(state, now)
        return state.step.take()

    @property
    def ended_by(self) -> Ending | None:
        """Reason why the experiment ends before all its trials have ended; None without an early end."""
        return self._state.ending

    def fail_by(self, error: Exception) -> None:
        """Store `error` for `raise_error`, unless an earlier error is already stored."""
        self._state.error = self._state.error or error

    def raise_error(self) -> None:
        """Raise the error that ended the experiment, if any, and remove it from this object.

        For example, the searcher, the scheduler or a stopper may have raised the error. The error's traceback
        refers to the controller. If the controller kept the error, the reference cycle would keep all
        parameters of the trials in memory until garbage collection.
        """
        state = self._state
        error, state.error = state.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    @property
    def why_fewer(self) -> str:
        """Reason why fewer trials exist than requested; '' if the number is as requested."""
        return self._state.source.reason

    @property
    def ending(self) -> str:
        """Reason for an early end, as text; '' without an early end."""
        return self._state.ending.why if self._state.ending is not None else ""

    @property
    def done(self) -> bool:
        """True if no trial runs and no trial will run."""
        state = self._state
        return not state.active and (
            state.ending is not None or (is_over(state) and not paused.between_lines(state))
        )

    @property
    def total_samples(self) -> int | None:
        """Maximum number of trials; None: no limit."""
        return self._state.source.total

    @property
    def is_held(self) -> bool:
        """True if no trial runs, and no trial can start before a user's command allows it."""
        state = self._state
        return not state.active and bool(state.held or state.steering.paused_by)

    @property
    def deadline(self) -> float:
        """Time by which `handle` must receive a Tick, if no other event comes; infinity: no Tick needed."""
        state = self._state
        return min(state.more_by, end_deadline(state), lifecycle.first_limit(state))

    def remaining_s(self, time: float) -> float | None:
        """Return the estimated seconds until the experiment ends; None: unknown."""
        state = self._state
        to_come = 0 if state.ending is not None else trials_to_come(state)
        return state.estimate.remaining_s([active.trial for active in state.active.values()], to_come, time)

    def close(self, time: float) -> ev.Step:
        """End the trials that never ran or are still paused; called once, when `done` is True."""
        state = self._state
        if state.ending is not None and not state.ending.resumable:
            aside = [trial for trial in state.held.values() if trial.status is TrialStatus.PENDING]
            for trial in [*state.waiting, *aside]:
                paused.leave_lines(state, trial)
                end_trial(state, trial, time, f"{self.ending}: not run")
            _let_paused_go(state, time, f"{self.ending}: {NOT_PROMOTED}")
        ended = self.ending or self.why_fewer or "all trials have ended"
        state.step.records.append(ev.Noted(time, "ended", ended))
        return state.step.take()


# --- starting ---------------------------------------------------------------------------------


def _fill(state: ControllerState, time: float) -> None:
    """Start waiting trials while resources are free; a trial that does not fit stays first in its queue."""
    state.more_by = math.inf
    if state.steering.paused_by:
        return
    for _ in range(MOST_AT_ONCE):
        if state.ending is not None or not guarded(state, time, _start_next, state, time):
            return
    state.more_by = time


def _start_next(state: ControllerState, time: float) -> bool:
    trial = next_trial(state, has_room=state.ledger.has_room())
    if trial is None:
        return _nobody_comes(state, time)
    if trial.trial_id not in state.by_id and not _take_in(state, trial, time):
        return True
    if trial.status is TrialStatus.PAUSED and trial.alone and state.active:
        paused.resume(state, trial, time)
        state.waiting.add(trial)  # the trial runs alone, so it waits until all other trials have ended
        heed_scheduler(state, time)
        return True
    if not state.ledger.reserve(trial.trial_id, trial.request):
        (state.paused if trial.status is TrialStatus.PAUSED else state.waiting).add(trial)
        if not state.active:  # no running trial exists that could free the missing resources
            state.ledger.require_feasible(trial.request, what=f"trial {trial.name}")
            raise RuntimeError(f"trial {trial.name} does not fit, although no other trial runs")
        return False
    if trial.status is TrialStatus.PAUSED:
        paused.resume(state, trial, time)
        heed_scheduler(state, time)
    active = ActiveAttempt(trial)
    state.active[trial.trial_id] = active
    state.estimate.started(trial.trial_id, time)
    checkpoint = trial.checkpoint
    trial.iteration = checkpoint.iteration if checkpoint else 0
    state.step.actions.append(ev.Start(trial, trial.attempt, trial.iteration, checkpoint))
    return True


def _take_in(state: ControllerState, trial: Trial, time: float) -> bool:
    """Add a new trial; return False if the trial failed at once."""
    state.trials.append(trial)
    state.by_id[trial.trial_id] = trial
    state.step.records.append(ev.TrialAdded(trial))
    state.scheduler.on_trial_add(trial.trial_id, trial.config)
    heed_scheduler(state, time)
    state.none_come = False
    return lifecycle.set_request(state, trial, time)


def _nobody_comes(state: ControllerState, time: float) -> bool:
    """Handle the case that no trial can be started; return True if the search for a trial should be repeated.

    Raises:
        ConfigError: no trial runs or waits, yet the searcher suggests no trial.
    """
    exhausted = state.source.exhausted
    idle = not (state.active or paused.between_lines(state) or state.waiting or state.held)
    if not state.none_come and (exhausted or (idle and state.paused)):
        state.none_come = True
        state.step.records.append(ev.Noted(time, ev.NO_MORE_TRIALS))
        state.scheduler.on_no_more_trials()
        heed_scheduler(state, time)
        return True
    if idle and state.paused:  # the scheduler will not choose the paused trials any more, so they end now
        _let_paused_go(state, time, NOT_PROMOTED)
        return True
    if idle and not exhausted:
        raise ConfigError(
            f"{state.source.name} suggests nothing, but no trial runs: return a config or Searcher.FINISHED"
        )
    return False


def _let_paused_go(state: ControllerState, time: float, reason: str) -> None:
    for trial in [trial for trial in state.trials if trial.status is TrialStatus.PAUSED]:
        # The end of an earlier trial in this loop may already have ended a later trial. For an ended trial,
        # the call returns False.
        if paused.forget_pause(state, trial):
            words = guarded(state, time, paused.why_not_chosen, state, trial)
            end_trial(state, trial, time, f"{reason}: {words}" if words else reason)


# --- ends of the experiment -------------------------------------------------------------------


def _on_interrupted(state: ControllerState, event: ev.Interrupted) -> None:
    end_experiment(state, BY_SIGTERM if event.by_sigterm else INTERRUPTED, event.time)


def _on_callback_raised(state: ControllerState, event: ev.CallbackRaised) -> None:
    end_experiment(state, Ending(event.why, resumable=True), event.time)


def _on_session_lost(state: ControllerState, event: ev.SessionLost) -> None:
    """Move the experiment to a new session after the loss of its node.

    The loss of a session does not count as a failure of any trial.
    """
    state.step.records.append(ev.Noted(event.time, ev.SESSION_LOST, event.problem))
    if event.by:
        end_experiment(state, Ending(f"stopped by {event.by}", resumable=True), event.time)
    in_a_row = state.losses.count(state.trials)
    lifecycle.lose_all(state, event.time)
    # Processes of the lost session can't carry out actions, so only the actions on files are kept.
    state.step.actions[:] = [each for each in state.step.actions if isinstance(each, ev.FILES_ONLY)]
    if state.ending is not None:
        return
    if in_a_row > MOST_LOSSES:
        state.error = NodeDiedError(too_many_losses(in_a_row, event.problem))
        end_experiment(state, BROKEN, event.time)
    else:
        state.step.actions.append(ev.Renew())


def _on_tick(state: ControllerState, event: ev.Tick) -> None:
    """Do nothing, because `handle` itself checks the time limits after each batch of events."""


def _on_adopted(state: ControllerState, event: ev.Adopted) -> None:
    trial = guarded(state, event.time, paused.end_adoption, state, event)
    heed_scheduler(state, event.time)
    if trial is not None and not lifecycle.set_request(state, trial, event.time):
        paused.forget_pause(state, trial)


_HANDLERS: Mapping[type[ev.Event], Callable[[ControllerState, Any], None]] = {
    **dict.fromkeys(lifecycle.KINDS, lifecycle.handle_attempt_event),
    ev.Adopted: _on_adopted,
    ev.CommandGiven: steering.obey,
    ev.Interrupted: _on_interrupted,
    ev.CallbackRaised: _on_callback_raised,
    ev.SessionLost: _on_session_lost,
    ev.Tick: _on_tick,
}
