"""What a change of a trial comes to: records for the store, and folders that may go; pure."""

from __future__ import annotations

from trainkit.tune.config import CheckpointConfig
from trainkit.tune.control import events as ev
from trainkit.tune.control.retention import checkpoint_score, to_drop
from trainkit.tune.trial import Failure, SavedCheckpoint, Trial, TrialStatus


def keep_checkpoint(
    step: ev.Step, policy: CheckpointConfig, trial: Trial, dirname: str, iteration: int
) -> None:
    """Add the checkpoint in `dirname`, saved at `iteration`, and drop those that it displaces."""
    number = int(dirname.rsplit("_", 1)[1])
    score = checkpoint_score(policy, trial.last_result)
    saved = SavedCheckpoint.after(number, dirname, iteration, score, trial.last_result)
    trial.checkpoints.append(saved)
    trial.next_checkpoint = number + 1
    step.records.append(ev.CheckpointAdded(trial, trial.attempt, saved))
    drop_checkpoints(step, policy, trial, running=True)


def adopt_checkpoint(step: ev.Step, policy: CheckpointConfig, trial: Trial, dirname: str) -> None:
    """Add the checkpoint in `dirname`, which another trial saved: no report of this one ranks it."""
    number = int(dirname.rsplit("_", 1)[1])
    score = checkpoint_score(policy, {})
    saved = SavedCheckpoint.after(number, dirname, trial.iteration, score, trial.last_result)
    trial.checkpoints.append(saved)
    trial.next_checkpoint = number + 1
    step.records.append(ev.CheckpointAdded(trial, trial.attempt + 1, saved))
    drop_checkpoints(step, policy, trial, running=True)


def drop_checkpoints(step: ev.Step, policy: CheckpointConfig, trial: Trial, *, running: bool) -> None:
    """Drop those that are not kept; their folders go once that is committed."""
    for checkpoint in to_drop(policy, trial.checkpoints, running=running):
        trial.checkpoints.remove(checkpoint)
        step.records.append(ev.CheckpointDropped(trial, checkpoint))
        step.actions.append(ev.DeleteCheckpoint(trial, checkpoint))


def set_status(
    step: ev.Step,
    trial: Trial,
    time: float,
    status: TrialStatus,
    reason: str,
    failure: Failure | None = None,
    *,
    retried: bool = False,
) -> None:
    """Say where the trial stands from now on, and why."""
    trial.status, trial.reason = status, reason
    step.records.append(
        ev.StatusChanged(trial, time, status, reason, trial.attempt, trial.failures, failure, retried)
    )


def note_problem(step: ev.Step, trial: Trial, time: float, problem: str) -> None:
    """Note what a clean-up raised, if it did: worth keeping, but the trial's outcome is settled."""
    if problem:
        step.records.append(ev.Noted(time, "cleanup", problem, trial.trial_id))
