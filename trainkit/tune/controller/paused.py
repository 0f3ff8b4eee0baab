"""Paused trials: which of them resume, which end, and which take over another trial's state.

PAUSE --> process saves and ends --> PAUSED --> chosen --> PENDING, from its checkpoint
                                           |  donors: Adopt --> Adopted, with another configuration
PAUSE of a trial that would be chosen next anyway: it continues in its process
a user's command: like PAUSE, but the trial is in no queue until another command resumes it
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from trainkit.errors import ConfigError
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import ActiveAttempt, adopt_checkpoint, set_status
from trainkit.tune.controller.judging import guarded
from trainkit.tune.controller.run_queue import would_go_on_at_once
from trainkit.tune.controller.state import ControllerState
from trainkit.tune.core.checkpoint import checkpoint_dirname
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers.base import BY_COMMAND, Decision, Verdict, in_words, words_for

logger = logging.getLogger("trainkit.tune")

NO_CHECKPOINT = (
    "no checkpoint to go on from: give one to tune.report(metrics, checkpoint=...), or define "
    "save_checkpoint() and load_checkpoint()"
)
BEGINS_ANEW = (
    f"%s paused trial %s, which will begin anew, as will others like it, since it has {NO_CHECKPOINT}; or "
    "choose a scheduler that pauses no trial, such as ASHAScheduler()"
)


def between_lines(state: ControllerState) -> int:
    """Return the number of trials that are neither in the queue of paused trials nor have a process."""
    return len(state.awaiting_donor) + len(state.adopting)


def require_known_donors(state: ControllerState, trial_id: str, decision: Decision) -> None:
    """Check that all donors are trials of the experiment.

    Raises:
        ConfigError: a donor's id is unknown.
    """
    for donor in decision.donors:
        if donor.trial_id not in state.by_id:
            raise ConfigError(
                f"the scheduler {state.scheduler.name} lets trial {trial_id} take over the state of "
                f"{donor.trial_id!r}, which no trial has for an id: name donors by the ids that "
                "on_trial_add() told it"
            )


# --- into the pause ---------------------------------------------------------------------------


def runs_on(state: ControllerState, active: ActiveAttempt, time: float) -> bool:
    """Return True if a trial that should pause continues instead, because it would be resumed next.

    The function records this case.
    """
    decision, trial = active.pause, active.trial
    if decision is None or decision.request is not None:
        return False
    if decision.donors:
        among = [state.active.get(donor.trial_id) for donor in decision.donors]
        to_come = state.plan.saves or any(one is not None and one.is_saving for one in among)
        if to_come or may_pause(state, trial, decision):
            return False
        _note_no_exchange(state, trial, decision, time)  # no checkpoint exists, and a restart gains nothing
        _resumed(state, trial)
        return True
    if not state.plan.keeps_processes or not would_go_on_at_once(state, active.trial):
        return False
    _resumed(state, active.trial)
    return True


def pull(state: ControllerState, active: ActiveAttempt) -> None:
    """Pause a trial at its report on a user's command, if it has a checkpoint or can save one."""
    trial = active.trial
    if trial.checkpoint is None and not state.plan.saves:
        return
    reason = f"paused by {state.steering.who_holds(trial.trial_id)}"
    active.pause = Decision(Verdict.PAUSE, {BY_COMMAND: reason})
    active.outcome = TrialStatus.PAUSED, reason
    state.steering.pulled.add(trial.trial_id)
    state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, active.pause))


def line_up(state: ControllerState, trial: Trial, time: float) -> None:
    """Put a trial without a process into its queue, or aside while a command holds it."""
    steering, trial_id = state.steering, trial.trial_id
    if trial.status is TrialStatus.PENDING:
        steering.pulled.discard(trial_id)
    if steering.keeps_aside(trial_id):
        state.held[trial_id] = trial
        return
    if trial_id in steering.pulled:
        steering.pulled.remove(trial_id)
        guarded(state, time, state.source.on_unpause, trial_id)
        trial.attempt += 1
        set_status(state.step, trial, time, TrialStatus.PENDING, "resumed")
    (state.paused if trial.status is TrialStatus.PAUSED else state.waiting).add(trial)


def begin_pause(
    state: ControllerState, trial: Trial, decision: Decision, time: float, reason: str, problem: str
) -> Failure | None:
    """Pause a trial whose process has ended; return the failure if pausing is impossible."""
    if not may_pause(state, trial, decision):
        if trial.trial_id in state.steering.pulled:  # a user paused it, so it waits for a restart instead
            trial.attempt += 1
            words = f"{reason}, and left no checkpoint to go on from"
            set_status(state.step, trial, time, TrialStatus.PENDING, f"{words}: {problem}"[:200])
            line_up(state, trial, time)
            return None
        if problem:  # for example a kill while saving: a retry may succeed
            text = f"{state.scheduler.label} paused the trial, which left no checkpoint to go on from: "
            return Failure("CheckpointError", text + problem)
        by = state.scheduler.label if decision.request is None else "a change of resources"
        if trial.iteration <= state.begun_anew.get(trial.trial_id, -1):  # restarts without progress never end
            text = f"{by} paused the trial again, no further than before, and it has {NO_CHECKPOINT}"
            return Failure("ConfigError", text, retry=False)
        if not state.begun_anew:
            logger.warning(BEGINS_ANEW, by, trial.name)
        state.begun_anew[trial.trial_id] = trial.iteration
    set_status(state.step, trial, time, TrialStatus.PAUSED, reason)
    state.source.on_pause(trial.trial_id)
    _carry_out(state, trial, decision, time)
    return None


def may_pause(state: ControllerState, trial: Trial, decision: Decision | None) -> bool:
    """Return True if the trial, or a donor, has a checkpoint to resume from after the pause."""
    donors = () if decision is None else decision.donors
    there = (state.by_id[donor.trial_id].checkpoint for donor in donors)
    return trial.checkpoint is not None or any(checkpoint is not None for checkpoint in there)


def take_up_owed(state: ControllerState, owed: Mapping[str, Decision], time: float) -> None:
    """Carry out decisions on paused trials that the end of the earlier run prevented."""
    for trial_id, decision in owed.items():
        require_known_donors(state, trial_id, decision)
        if _leave_line(state, state.by_id[trial_id]):
            _carry_out(state, state.by_id[trial_id], decision, time)


def _carry_out(state: ControllerState, trial: Trial, decision: Decision, time: float) -> None:
    if decision.request is not None:
        before, trial.request = trial.request, decision.request
        trial.granted = decision.request
        state.step.records.append(ev.Rearranged(trial, time, before=before))
        state.scheduler.on_trial_request(trial.trial_id, trial.request, before)
    _exchange(state, trial, decision, time)


def _exchange(state: ControllerState, trial: Trial, decision: Decision, time: float) -> None:
    """Let a paused trial take over a donor's state, if the decision names donors."""
    for each in decision.donors:
        donor, active = state.by_id[each.trial_id], state.active.get(each.trial_id)
        if active is not None and active.is_saving:
            state.awaiting_donor[trial.trial_id] = decision
            return
        if donor.checkpoint is not None:
            state.adopting[trial.trial_id] = each, donor.checkpoint.iteration
            dirname = checkpoint_dirname(trial.next_checkpoint)
            state.step.actions.append(ev.Adopt(trial, donor, donor.checkpoint, dirname))
            return
    if decision.donors:
        _note_no_exchange(state, trial, decision, time)
    line_up(state, trial, time)


def _note_no_exchange(state: ControllerState, trial: Trial, decision: Decision, time: float) -> None:
    who = ", ".join(donor.trial_id for donor in decision.donors)
    state.step.records.append(ev.Noted(time, "no exchange", f"no checkpoint has {who}", trial.trial_id))


def retry_exchanges(state: ControllerState, time: float) -> None:
    """Try again the exchanges that waited for a donor's checkpoint."""
    if not state.awaiting_donor:
        return
    for trial_id, decision in list(state.awaiting_donor.items()):
        del state.awaiting_donor[trial_id]
        _exchange(state, state.by_id[trial_id], decision, time)


def end_adoption(state: ControllerState, event: ev.Adopted) -> Trial | None:
    """Finish the copy of a donor's checkpoint; return the trial if its configuration changed."""
    donor, iteration = state.adopting.pop(event.trial_id, (None, 0))
    if donor is None:  # the trial was stopped meanwhile
        return None
    trial = state.by_id[event.trial_id]
    if event.checkpoint is None:
        line_up(state, trial, event.time)
        state.step.records.append(ev.Noted(event.time, "no exchange", event.problem, trial.trial_id))
        return None
    adopt_checkpoint(state.step, state.plan.checkpoints, trial, event.checkpoint)
    trial.tried.append(trial.config)
    trial.config = dict(donor.config)
    state.step.records.append(
        ev.Rearranged(trial, event.time, trial.config, state.by_id[donor.trial_id], iteration)
    )
    line_up(state, trial, event.time)
    state.scheduler.on_trial_change(trial.trial_id, trial.config, donor.trial_id)
    return trial


# --- out of it --------------------------------------------------------------------------------


def resume(state: ControllerState, trial: Trial, time: float) -> None:
    """Resume a paused trial."""
    words = _resumed(state, trial)
    state.source.on_unpause(trial.trial_id)
    trial.attempt += 1
    set_status(state.step, trial, time, TrialStatus.PENDING, words)


def _resumed(state: ControllerState, trial: Trial) -> str:
    decision = Decision(Verdict.RESUME, state.scheduler.on_trial_resume(trial.trial_id))
    state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
    return words_for(decision, state.scheduler.label)


def why_not_chosen(state: ControllerState, trial: Trial) -> str:
    """Record and return why a trial stayed paused to the end; '' if unknown."""
    decision = Decision(Verdict.STOP, state.scheduler.why_not_chosen(trial.trial_id))
    if decision.reason:
        state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
    return in_words(decision.reason)


def forget_pause(state: ControllerState, trial: Trial) -> bool:
    """Remove a paused trial that must end from all lists; return False if it isn't paused."""
    hoped = state.awaiting_donor.pop(trial.trial_id, None) is not None
    adopted = state.adopting.pop(trial.trial_id, None) is not None
    return _leave_line(state, trial) or hoped or adopted


def _leave_line(state: ControllerState, trial: Trial) -> bool:
    """Remove a paused trial from its queue; return False if it waits for a donor or is not paused."""
    return state.paused.remove(trial) or state.held.pop(trial.trial_id, None) is not None


def leave_lines(state: ControllerState, trial: Trial) -> bool:
    """Remove a trial that has no process and must end from its queue; return False if it isn't queued."""
    return state.waiting.remove(trial) or forget_pause(state, trial)


def set_aside(state: ControllerState) -> None:
    """Remove the trials that commands hold from the queues, at the start of a restored experiment."""
    for trial in [*state.waiting, *state.paused]:
        if state.steering.keeps_aside(trial.trial_id):
            state.waiting.remove(trial)
            state.paused.remove(trial)
            state.held[trial.trial_id] = trial


def apply_verdicts(
    state: ControllerState, verdicts: Sequence[tuple[str, Decision]], time: float
) -> list[tuple[Trial, str]]:
    """Carry out the scheduler's decisions on waiting trials; return the trials to end, with reasons."""
    return list(_applied(state, verdicts, time))


def _applied(
    state: ControllerState, verdicts: Sequence[tuple[str, Decision]], time: float
) -> Iterator[tuple[Trial, str]]:
    for trial_id, decision in verdicts:
        if trial_id not in state.by_id:
            raise ConfigError(
                f"{state.scheduler.name}.verdicts() decided on {trial_id!r}, which no trial has for an id"
            )
        require_known_donors(state, trial_id, decision)
        trial, active = state.by_id[trial_id], state.active.get(trial_id)
        if trial.status.is_finished or (active is not None and active.is_ending):
            continue
        state.step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
        stopped = decision.verdict is Verdict.STOP
        reason = words_for(decision, state.scheduler.label)
        if active is not None and stopped:
            active.outcome = TrialStatus.TERMINATED, reason
        elif active is not None:
            active.pause = decision
        elif stopped and leave_lines(state, trial):
            yield trial, reason
        elif trial.status is TrialStatus.PAUSED and _leave_line(state, trial):
            _exchange(state, trial, decision, time)
