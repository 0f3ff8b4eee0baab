"""One attempt to run a trial: its process, results and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainkit.tune.controller import events as ev
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.configs import CheckpointConfig
from trainkit.tune.core.constraints import violation_in
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.trial import Failure, SavedCheckpoint, Trial, TrialStatus
from trainkit.tune.schedulers.base import FAR, Decision, score_of


def checkpoint_score(policy: CheckpointConfig, result: Mapping[str, Any]) -> float | None:
    """Return the score that ranks the checkpoint of this report (larger is better); None: rank by age.

    Checkpoints of infeasible reports rank after all others, and by their violation.
    """
    if policy.checkpoint_score_attribute is None:
        return None
    if violation := violation_in([result]):
        return -FAR * (1 + violation)
    value = lookup(result, policy.checkpoint_score_attribute)
    return score_of(value, policy.checkpoint_score_order) if is_number(value) else -math.inf


def to_drop(
    policy: CheckpointConfig, checkpoints: Sequence[SavedCheckpoint], *, running: bool
) -> list[SavedCheckpoint]:
    """Return the checkpoints that the policy does not keep. `checkpoints` must be sorted, oldest first.

    The policy keeps the `num_to_keep` best checkpoints; among equal checkpoints, later checkpoints are
    better. A running trial also keeps its latest checkpoint, because a retry resumes from this checkpoint.
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
    """Trial and process that the results of an attempt come from."""

    trial_id: str
    experiment_tag: str
    config: Mapping[str, Any]
    pid: int
    hostname: str
    node_ip: str


def full_result(metrics: Mapping[str, Any], origin: Origin, *, done: bool) -> dict[str, Any]:
    """Return a report with the automatic keys that users see; a key reported by the trial keeps its value."""
    return {
        "trial_id": origin.trial_id,
        "experiment_tag": origin.experiment_tag,
        "date": None,  # if the trial's metrics contain a date, the date replaces None
        "pid": origin.pid,
        "hostname": origin.hostname,
        "node_ip": origin.node_ip,
        "config": origin.config,
        "done": done,
        **metrics,
    }


def add_checkpoint(
    step: ev.Step,
    policy: CheckpointConfig,
    trial: Trial,
    dirname: str,
    iteration: int,
    *,
    adopted: bool = False,
) -> None:
    """Add the checkpoint in `dirname`, saved at `iteration`; drop checkpoints that exceed the policy.

    With `adopted`, another trial saved the checkpoint, so the checkpoint gets no score from this trial's
    reports.
    """
    number = int(dirname.rsplit("_", 1)[1])
    score = checkpoint_score(policy, {} if adopted else trial.last_result)
    saved = SavedCheckpoint.after(number, dirname, iteration, score, trial.last_result)
    trial.checkpoints.append(saved)
    trial.next_checkpoint = number + 1
    step.records.append(ev.CheckpointAdded(trial, trial.attempt + adopted, saved))
    drop_checkpoints(step, policy, trial, running=True)


def drop_checkpoints(step: ev.Step, policy: CheckpointConfig, trial: Trial, *, running: bool) -> None:
    """Drop the checkpoints that the policy does not keep; their folders are deleted after the commit.

    No checkpoint is dropped until a report has the value that ranks checkpoints, because
    `checkpoint_score_attribute` may be misspelt. A checkpoint that is offered to another trial is dropped
    after it was copied.
    """
    name = policy.checkpoint_score_attribute
    unknown = name is not None and lookup(trial.last_result, name) is None
    if unknown and all(each.score == -math.inf for each in trial.checkpoints):
        return
    offered = [trial.checkpoint_for(receiver) for receiver in trial.offered]
    for checkpoint in to_drop(policy, trial.checkpoints, running=running):
        if checkpoint in offered:
            continue
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
    """Set the trial's status and the reason for it, and record both."""
    trial.status, trial.reason = status, reason
    step.records.append(
        ev.StatusChanged(trial, time, status, reason, trial.attempt, trial.failures, failure, retried)
    )


def wait_again(step: ev.Step, trial: Trial, time: float, reason: str) -> None:
    """Let the trial wait for its next attempt."""
    trial.attempt += 1
    set_status(step, trial, time, TrialStatus.PENDING, reason)


Outcome = tuple[TrialStatus, str]
FINISHED: Outcome = (TrialStatus.TERMINATED, "finished")
MOVED: Outcome = (TrialStatus.PENDING, "moved away from a node that is about to end")
"""The trial saves its progress, and waits for a process on another node."""


@dataclass(slots=True)
class ActiveAttempt:
    """Attempt to run a trial that has a process, or is about to get a process.

    Attributes:
        trial: trial of the attempt.
        times_out: time at which the attempt exceeds its timeout.
        origin: trial and process that the results come from; None: the process has not been set up yet.
        outcome: the trial's status after the process ends, and the reason for this status; None: undecided.
        failure: failure to report, if the outcome is ERROR.
        deadline: time by which the process must end, or report, once the outcome is decided.
        interrupts: time at which the running code is interrupted, so that its clean-up runs before the
            deadline.
        excused: True if the attempt has received a request to end. A missing metric is then no error.
        pause: decision to pause the trial, if the outcome is PAUSED.
        saving: True while the trial saves a checkpoint at a report, before it continues.
        moves: True if the trial must move to another node as soon as it loses no progress by this.
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
    moves: bool = False

    @property
    def limit(self) -> float:
        """Time at which the process is killed if it has not ended."""
        return min(self.deadline, self.times_out)

    def must_end(self, outcome: Outcome, time: float, grace_s: float) -> None:
        """Set the trial's outcome, unless it is already decided; the trial may run to its next report.

        The trial has half of the grace time to reach its next report. After half of the grace time, the trial
        is interrupted, and has the other half for its clean-up.
        """
        if self.outcome is None:
            self.outcome, self.excused = outcome, True
            self.interrupts, self.deadline = time + grace_s / 2, time + grace_s
        elif not self.is_ending and outcome[0] is TrialStatus.TERMINATED:
            self.outcome = outcome

    @property
    def is_pausing(self) -> bool:
        """True if the trial will be paused but is not paused yet."""
        return self.outcome is not None and self.outcome[0] is TrialStatus.PAUSED

    @property
    def may_pause(self) -> bool:
        """True unless the decided outcome ends the trial."""
        return self.outcome is None or not self.outcome[0].is_finished

    @property
    def is_ending(self) -> bool:
        """True if the attempt must end, and not for a pause or a move.

        If it is True, later decisions have no effect.
        """
        return self.outcome is not None and self.outcome is not MOVED and not self.is_pausing

    @property
    def is_saving(self) -> bool:
        """True if the trial may still save a checkpoint of its current state."""
        return self.saving or self.is_pausing or self.outcome is MOVED


def take_report(
    step: ev.Step, policy: CheckpointConfig, active: ActiveAttempt, event: ev.Reported
) -> dict[str, Any]:
    """Record a report and the checkpoint that came with it; return the report as users see it."""
    trial, origin = active.trial, active.origin
    if origin is None:
        raise RuntimeError(f"trial {trial.trial_id} reported before it was started")
    result = full_result(event.metrics, origin, done=event.done)
    trial.iteration, trial.last_result = event.iteration, result
    step.records.append(
        ev.ResultAdded(trial, trial.attempt, event.iteration, event.time, event.metrics, result)
    )
    take_along(step, policy, trial, event)
    return result


def take_along(
    step: ev.Step, policy: CheckpointConfig, trial: Trial, event: ev.Reported | ev.Finished
) -> None:
    """Add the checkpoint that came with an event, and record the event's problem, if any."""
    if event.checkpoint is not None:
        add_checkpoint(step, policy, trial, event.checkpoint, event.iteration)
    if event.problem:  # a failed clean-up is recorded but does not change the trial's outcome
        step.records.append(ev.Noted(event.time, "cleanup", event.problem, trial.trial_id))
