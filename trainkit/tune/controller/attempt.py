"""One attempt of a trial: its process, its results and its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainkit.tune.controller import events as ev
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.configs import CheckpointConfig
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.trial import Failure, SavedCheckpoint, Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, score_of


def checkpoint_score(policy: CheckpointConfig, result: Mapping[str, Any]) -> float | None:
    """The number that ranks the checkpoint of this report, larger is better; None: rank by age."""
    if policy.checkpoint_score_attribute is None:
        return None
    value = lookup(result, policy.checkpoint_score_attribute)
    return score_of(value, policy.checkpoint_score_order) if is_number(value) else -math.inf


def to_drop(
    policy: CheckpointConfig, checkpoints: Sequence[SavedCheckpoint], *, running: bool
) -> list[SavedCheckpoint]:
    """Return those of `checkpoints`, oldest first, that are not kept.

    Kept are the `num_to_keep` best, later ones first among equals, and while the trial runs also the
    latest, since a retry goes on from it.
    """
    if policy.num_to_keep is None or len(checkpoints) <= policy.num_to_keep:
        return []

    def merit(checkpoint: SavedCheckpoint) -> tuple[float, int]:
        return (0.0 if checkpoint.score is None else checkpoint.score, checkpoint.number)

    kept = {checkpoint.number for checkpoint in sorted(checkpoints, key=merit)[-policy.num_to_keep :]}
    if running:
        kept.add(checkpoints[-1].number)
    return [checkpoint for checkpoint in checkpoints if checkpoint.number not in kept]


class Origin(NamedTuple):
    """Where the results of one attempt come from: its trial and its process."""

    trial_id: str
    experiment_tag: str
    config: Mapping[str, Any]
    pid: int
    hostname: str
    node_ip: str


def full_result(metrics: Mapping[str, Any], origin: Origin, *, done: bool) -> dict[str, Any]:
    """Return a report as users see it; a key that the trial reported itself keeps its value."""
    return {
        "trial_id": origin.trial_id,
        "experiment_tag": origin.experiment_tag,
        "date": None,  # which the trial's meter has filled in
        "pid": origin.pid,
        "hostname": origin.hostname,
        "node_ip": origin.node_ip,
        "config": origin.config,
        "done": done,
        **metrics,
    }


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
    """Drop those that are not kept; their folders go once that is committed.

    None is dropped as long as none came with the value that ranks them: its name may be a typing error.
    """
    name = policy.checkpoint_score_attribute
    unknown = name is not None and lookup(trial.last_result, name) is None
    if unknown and all(each.score == -math.inf for each in trial.checkpoints):
        return
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


Outcome = tuple[TrialStatus, str]
FINISHED: Outcome = (TrialStatus.TERMINATED, "finished")


@dataclass(slots=True)
class ActiveAttempt:
    """One attempt, as long as its process is wanted.

    Attributes:
        trial: whose attempt it is.
        times_out: when it has taken longer than it may.
        origin: where its results come from, once it has been set up.
        outcome: what the trial will be when the process ends; None: that is open.
        failure: why it will be in ERROR, if the outcome is that.
        deadline: by when the process must end, or report, now that its outcome is settled.
        interrupts: when what it runs is interrupted, so that its clean-up runs before the deadline.
        excused: it was told to end, and need not have reported anything.
        pause: what the scheduler decided, if the outcome is a pause.
        saving: it saves a checkpoint where it waits, and goes on then.
    """

    trial: Trial
    times_out: float = math.inf
    origin: Origin | None = None
    outcome: Outcome | None = None
    failure: Failure | None = None
    deadline: float = math.inf
    interrupts: float = math.inf
    excused: bool = False
    pause: Decision | None = None
    saving: bool = False

    @property
    def limit(self) -> float:
        """When it is killed, whatever it does."""
        return min(self.deadline, self.times_out)

    def must_end(self, outcome: Outcome, time: float, grace_s: float) -> None:
        """Settle what the trial will be, unless that is settled; it may run to its next report.

        Half of the grace is for that, the rest for the clean-up of what has not come to one.
        """
        if self.outcome is None:
            self.outcome, self.excused = outcome, True
            self.interrupts, self.deadline = time + grace_s / 2, time + grace_s
        elif self.is_pausing and outcome[0] is TrialStatus.TERMINATED:
            self.outcome = outcome

    @property
    def is_pausing(self) -> bool:
        """True if the trial will be paused, and is not yet."""
        return self.outcome is not None and self.outcome[0] is TrialStatus.PAUSED

    @property
    def may_pause(self) -> bool:
        """True unless it is settled that the trial will have ended."""
        return self.outcome is None or not self.outcome[0].is_finished

    @property
    def is_ending(self) -> bool:
        """True if the trial ends, or waits to go on after a restore: nothing else will come of it."""
        return self.outcome is not None and not self.is_pausing

    @property
    def is_saving(self) -> bool:
        """True if a checkpoint may come of where the trial stands now."""
        return self.saving or self.is_pausing
