"""The rules of an experiment, as its controller needs them."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainkit.tune.config import CheckpointConfig, FailureConfig, StopRule

INTERRUPTED = "interrupted"
TIME_BUDGET = "time budget"
FAIL_FAST = "fail fast"
BROKEN = "no trial can be started"
RESUMABLE = (INTERRUPTED, BROKEN)
"""Endings after which trials that ran are gone on with by a restore."""


@dataclass(frozen=True)
class Plan:
    """What the experiment asks of its trials.

    Attributes:
        metric: that every trial must have reported when it ends; None: no such rule.
        stop: ends single trials.
        time_budget_s: from `begin`; then every trial ends at its next report.
        failure, checkpoints: as in RunConfig.
        grace_s: how long a trial may take to its next report once all must end.
        cleanup_s: how long a trial may take to end after it was told to.
    """

    metric: str | None = None
    stop: StopRule | None = None
    time_budget_s: float | None = None
    failure: FailureConfig = field(default_factory=FailureConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    grace_s: float = 5.0
    cleanup_s: float = 60.0
