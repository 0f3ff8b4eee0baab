"""Paused trials: their resumption, their end, and copies of other trials' states.

PAUSE --> process saves and ends --> PAUSED --> chosen --> PENDING, from its checkpoint
                                           |  donors: Adopt --> Adopted, with another configuration
PAUSE of a trial that would be chosen next anyway: the trial continues in its process
a user's command: like PAUSE, but the trial is in no queue until another command resumes it
"""

from __future__ import annotations

from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import (
    ActiveAttempt,
    add_checkpoint,
    drop_checkpoints,
    set_status,
    wait_again,
)
from trainkit.tune.controller.ending import guarded
from trainkit.tune.controller.state import ControllerState
from trainkit.tune.core.checkpoint import checkpoint_dirname
from trainkit.tune.core.log import logger
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, Verdict, in_words, words_for

NO_CHECKPOINT = (
    "no checkpoint to resume from: give one to tune.report(metrics, checkpoint=...), or define "
    "save_checkpoint() and load_checkpoint()"
)
BEGINS_ANEW = (
    f"%s paused trial %s, which will start over, as will similar trials, because it has {NO_CHECKPOINT}; "
    "or choose a scheduler that pauses no trial, such as ASHAScheduler()"
)


def between_lines(state: ControllerState) -> int:
    """Return the number of paused trials that wait for a donor's checkpoint, or for the copy of a donor's
    checkpoint.
    """
    return len(state.awaiting_donor) + len(state.adopting)


# --- entering a pause -------------------------------------------------------------------------


def line_up(state: ControllerState, trial: Trial, time: float) -> None:
    """Put a trial without a process into its queue, or into `held` while a user's command pauses it."""
    steering, trial_id = state.steering, trial.trial_id
    if trial.status is TrialStatus.PENDING:
        steering.pulled.discard(trial_id)
    if steering.keeps_aside(trial_id):
        state.held[trial_id] = trial
        return
    if trial_id in steering.pulled:
        steering.pulled.remove(trial_id)
        guarded(state, time, state.source.on_unpause, trial_id)
        wait_again(state.step, trial, time, "resumed")
    (state.paused if trial.status is TrialStatus.PAUSED else state.waiting).add(trial)


def begin_pause(
    state: ControllerState, trial: Trial, decision: Decision, time: float, reason: str, problem: str
) -> Failure | None:
    """Pause a trial whose process has ended; return the failure if pausing is impossible."""
    if not may_pause(state, trial, decision):
        withdraw(state, trial, decision)
        # A user paused this trial, so it waits for a restart instead of failing.
        if trial.trial_id in state.steering.pulled:
            words = f"{reason}, and left no checkpoint to resume from: {problem}"
            wait_again(state.step, trial, time, words[:200])
            line_up(state, trial, time)
            return None
        if problem:  # the process may have been killed while it saved, so a retry may succeed
            text = f"{state.scheduler.label} paused the trial, which left no checkpoint to resume from: "
            return Failure("CheckpointError", text + problem)
        by = state.scheduler.label if decision.request is None else "a change of resources"
        # If the trial has made no progress since its last restart, it fails here, because it would restart
        # forever.
        if trial.iteration <= state.begun_anew.get(trial.trial_id, -1):
            text = f"{by} paused the trial again without progress, and the trial has {NO_CHECKPOINT}"
            return Failure("ConfigError", text, retry=False)
        if not state.begun_anew:
            logger.warning(BEGINS_ANEW, by, trial.name)
        state.begun_anew[trial.trial_id] = trial.iteration
    set_status(state.step, trial, time, TrialStatus.PAUSED, reason)
    state.source.on_pause(trial.trial_id)
    carry_out(state, trial, decision, time)
    return None


def may_pause(state: ControllerState, trial: Trial, decision: Decision | None) -> bool:
    """Return True if the trial, or a donor, has a checkpoint to resume from after the pause."""
    donors = () if decision is None else decision.donors
    there = (state.by_id[donor.trial_id].checkpoint for donor in donors)
    return trial.checkpoint is not None or any(checkpoint is not None for checkpoint in there)


def carry_out(state: ControllerState, trial: Trial, decision: Decision, time: float) -> None:
    """Give a paused trial the resources and the donor's state that the decision contains."""
    if decision.request is not None:
        before, trial.request = trial.request, decision.request
        trial.granted = decision.request
        state.step.records.append(ev.Rearranged(trial, time, before=before))
        state.scheduler.on_trial_request(trial.trial_id, trial.request, before)
    exchange(state, trial, decision, time)


def plan_pause(state: ControllerState, active: ActiveAttempt, decision: Decision) -> None:
    """Set the decision that takes effect once the trial's process has ended.

    The trial takes over the donor's present state, because the scheduler judged this state. When the trial's
    process ends, the donor may have trained further.
    """
    withdraw(state, active.trial, active.pause)
    active.pause = decision
    for each in decision.donors:
        donor = state.by_id[each.trial_id]
        donor.offered[active.trial.trial_id] = donor.iteration


def withdraw(state: ControllerState, trial: Trial, decision: Decision | None) -> None:
    """Withdraw a decision's offers to the trial, and drop the donors' checkpoints that were kept for the
    trial.
    """
    for each in () if decision is None else decision.donors:
        donor = state.by_id[each.trial_id]
        if donor.offered.pop(trial.trial_id, None) is not None:
            running = not donor.status.is_finished
            drop_checkpoints(state.step, state.plan.checkpoints, donor, running=running)


def exchange(state: ControllerState, trial: Trial, decision: Decision, time: float) -> None:
    """Let a paused trial resume from a donor's checkpoint, if the decision names donors."""
    for each in decision.donors:
        donor, active = state.by_id[each.trial_id], state.active.get(each.trial_id)
        offered = donor.offered.get(trial.trial_id, donor.iteration)
        if active is not None and active.is_saving and donor.iteration <= offered:
            state.awaiting_donor[trial.trial_id] = decision
            return
        if (checkpoint := donor.checkpoint_for(trial.trial_id)) is not None:
            state.adopting[trial.trial_id] = decision, each, checkpoint.iteration
            dirname = checkpoint_dirname(trial.next_checkpoint)
            state.step.actions.append(ev.Adopt(trial, donor, checkpoint, dirname))
            return
    if decision.donors:
        withdraw(state, trial, decision)
        note_no_exchange(state, trial, decision, time)
    line_up(state, trial, time)


def note_no_exchange(state: ControllerState, trial: Trial, decision: Decision, time: float) -> None:
    """Record that no donor of the decision has a checkpoint."""
    who = ", ".join(donor.trial_id for donor in decision.donors)
    state.step.records.append(
        ev.Noted(time, "no exchange", f"no donor has a checkpoint: {who}", trial.trial_id)
    )


def retry_exchanges(state: ControllerState, time: float) -> None:
    """Retry the takeovers of a donor's state that waited for a donor's checkpoint."""
    if not state.awaiting_donor:
        return
    for trial_id, decision in list(state.awaiting_donor.items()):
        del state.awaiting_donor[trial_id]
        exchange(state, state.by_id[trial_id], decision, time)


def end_adoption(state: ControllerState, event: ev.Adopted) -> Trial | None:
    """Finish the copy of a donor's checkpoint; return the trial if its configuration changed."""
    if event.trial_id not in state.adopting:  # the trial was stopped while the checkpoint was copied
        return None
    decision, donor, iteration = state.adopting.pop(event.trial_id)
    trial = state.by_id[event.trial_id]
    withdraw(state, trial, decision)
    if event.checkpoint is None:
        line_up(state, trial, event.time)
        state.step.records.append(ev.Noted(event.time, "no exchange", event.problem, trial.trial_id))
        return None
    policy = state.plan.checkpoints
    add_checkpoint(state.step, policy, trial, event.checkpoint, trial.iteration, adopted=True)
    trial.tried.append(trial.config)
    trial.config = dict(donor.config)
    state.step.records.append(
        ev.Rearranged(trial, event.time, trial.config, state.by_id[donor.trial_id], iteration)
    )
    line_up(state, trial, event.time)
    state.scheduler.on_trial_change(trial.trial_id, trial.config, donor.trial_id)
    return trial


# --- leaving a pause --------------------------------------------------------------------------


def resume(state: ControllerState, trial: Trial, time: float) -> None:
    """Resume a paused trial."""
    words = resumed(state, trial)
    state.source.on_unpause(trial.trial_id)
    wait_again(state.step, trial, time, words)


def resumed(state: ControllerState, trial: Trial) -> str:
    """Record the scheduler's reason for resuming a trial, and return the reason as text."""
    decision = Decision(Verdict.RESUME, state.scheduler.on_trial_resume(trial.trial_id))
    state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
    return words_for(decision, state.scheduler.label)


def why_not_chosen(state: ControllerState, trial: Trial) -> str:
    """Record and return the reason why a trial stayed paused until its end; '' if unknown."""
    decision = Decision(Verdict.STOP, state.scheduler.why_not_chosen(trial.trial_id))
    if decision.reason:
        state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
    return in_words(decision.reason)


def forget_pause(state: ControllerState, trial: Trial) -> bool:
    """Remove a paused trial that must end from its queue and from pending takeovers; return False if the
    trial is not paused.
    """
    hoped = state.awaiting_donor.pop(trial.trial_id, None)
    adopted, *_ = state.adopting.pop(trial.trial_id, (None,))
    withdraw(state, trial, hoped or adopted)
    return leave_line(state, trial) or hoped is not None or adopted is not None


def leave_line(state: ControllerState, trial: Trial) -> bool:
    """Remove a paused trial from its queue; return False if the trial waits for a donor or isn't paused."""
    return state.paused.remove(trial) or state.held.pop(trial.trial_id, None) is not None


def leave_lines(state: ControllerState, trial: Trial) -> bool:
    """Remove a trial that must end from its queue; return False if the trial isn't waiting."""
    return state.waiting.remove(trial) or forget_pause(state, trial)


def set_aside(state: ControllerState) -> None:
    """Move trials that a user has paused from the queues to `held`, at the start of a restored experiment."""
    for trial in [*state.waiting, *state.paused]:
        if state.steering.keeps_aside(trial.trial_id):
            state.waiting.remove(trial)
            state.paused.remove(trial)
            state.held[trial.trial_id] = trial
