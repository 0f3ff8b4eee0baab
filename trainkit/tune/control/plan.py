"""The rules of an experiment, as its controller needs them, and the ways in which it may end early."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainkit.tune.config import CheckpointConfig, FailureConfig, StopRule


@dataclass(frozen=True)
class Ending:
    """Why an experiment ends before all its trials have.

    Attributes:
        why: for people, such as "time budget".
        resumable: its trials are gone on with by a restore; else they are over.
    """

    why: str
    resumable: bool = False


INTERRUPTED = Ending("interrupted", resumable=True)
BY_SIGTERM = Ending(f"{INTERRUPTED.why} by SIGTERM", resumable=True)
TIME_BUDGET = Ending("time budget")
FAIL_FAST = Ending("fail fast")
FAILED_TRIALS = Ending("too many failed trials", resumable=True)
BROKEN = Ending("an error", resumable=True)

MOST_AT_ONCE = 1000
"""Trials begun in a step: where all fail before they start, an endless search must look at the time too."""


@dataclass(frozen=True)
class Plan:
    """What the experiment asks of its trials.

    Attributes:
        metric: that every trial must have reported when it ends; None: no such rule.
        other_metrics: that must be in that report too, where there are several objectives.
        stop: ends single trials, or the experiment.
        time_budget_s: from `begin`; then every trial ends at its next report.
        trial_timeout_s: that each attempt may take, from when it has its resources; then it is killed, and
            has failed.
        max_iteration: reports after which a trial ends at the latest, where that is known; for estimates.
        failure, checkpoints: as in RunConfig.
        grace_s: how long a trial may take to its next report once it must end.
        cleanup_s: how long a trial may take to end after it was told to.
        keeps_processes: a trial that is paused only to be the next to go on runs on in its process.
    """

    metric: str | None = None
    other_metrics: tuple[str, ...] = ()
    stop: StopRule | None = None
    time_budget_s: float | None = None
    trial_timeout_s: float | None = None
    max_iteration: float | None = None
    failure: FailureConfig = field(default_factory=FailureConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    grace_s: float = 5.0
    cleanup_s: float = 60.0
    keeps_processes: bool = True

    @property
    def metrics(self) -> tuple[str, ...]:
        """What every trial must have in a report when it ends."""
        return () if self.metric is None else (self.metric, *self.other_metrics)
