"""Messages between the driver and a trial's process."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypedDict

from trainkit.clock import SYSTEM, Clock
from trainkit.tune.core.resources import DEFAULT_REQUEST, TrialResources
from trainkit.tune.trial.environment import TrialEnvironment


@dataclass(frozen=True)
class TrialSpec:
    """Specification of a trial's attempt, which the trial's process receives.

    Attributes:
        iteration: iteration of the checkpoint to resume from; 0: the beginning.
        checkpoint: path of the checkpoint to resume from.
        next_checkpoint: number of the next checkpoint to save.
        time_total_s, timesteps_total: totals before this attempt, to which the attempt adds.
        checkpoint_frequency, checkpoint_at_end: settings of CheckpointConfig, for a `Trainable` class.
        seed: seed for the process's random generators; None: the generators are not seeded.
        driver_pid: process id of the driver; the driver's generators are never seeded, even if trials run
            there.
        environment: working directory and log files of the user's code.
        makes_dir: True: the trial's folder is created at the start; False: code that writes into the folder
            must create it.
        durable: True: checkpoints are flushed to the disk.
        part: index of this task among the parallel tasks of a step, from 0, and the number of these tasks.
    """

    trial_id: str
    trial_name: str
    trial_dir: str
    experiment_name: str
    config: dict[str, Any]
    resources: TrialResources = field(default_factory=lambda: TrialResources(DEFAULT_REQUEST))
    iteration: int = 0
    checkpoint: str | None = None
    next_checkpoint: int = 0
    time_total_s: float = 0.0
    timesteps_total: float | None = None
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool = False
    seed: int | None = None
    driver_pid: int = 0
    environment: TrialEnvironment = field(default_factory=TrialEnvironment)
    makes_dir: bool = True
    durable: bool = True
    part: tuple[int, int] = (0, 1)


NO_PROCESS = 0
"""Placeholder for the process id of a trial whose steps may run in different processes."""


class WorkerProcess(TypedDict):
    """Process that a trial runs in.

    The type is a dictionary, because a dictionary is sent several times as fast as an object.
    """

    pid: int
    hostname: str
    node_ip: str


Reply = tuple[int, dict[str, Any] | None, str | None, bool, str]
"""Reply of a trial's process.

The type is a tuple, because a tuple is sent several times as fast as an object.
"""


def reply(
    iteration: int,
    metrics: dict[str, Any] | None = None,
    checkpoint: str | None = None,
    done: bool = False,
    problem: str = "",
) -> Reply:
    """Return the reply to `advance`, `save` or `stop`.

    Args:
        iteration: number of reports so far, including reports before a resumption.
        metrics: metrics of the report; None: the trial has ended without a report, or has only saved a
            checkpoint.
        checkpoint: name of the checkpoint folder that was saved with the report.
        done: True if the trial has ended.
        problem: traceback of an exception in the user's clean-up after a stop, or ''.
    """
    return iteration, metrics, checkpoint, done, problem


class ReportMeter:
    """Meter of the counts and times that are added to every report.

    Args:
        spec: specification of the trial, with its earlier totals.
        clock: clock to read the time from.
    """

    def __init__(self, spec: TrialSpec, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self._before_s = spec.time_total_s
        self._since_restore_s = 0.0
        self._timesteps = spec.timesteps_total
        self._restored_at = spec.iteration
        self.iteration = spec.iteration

    @property
    def counted(self) -> dict[str, Any]:
        """Number of reports and their total time, including reports before a restore."""
        return {
            "training_iteration": self.iteration,
            "time_total_s": self._before_s + self._since_restore_s,
        }

    def fill(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Count a report; return the report's metrics with the automatic keys that are missing, such as
        `date`.
        """
        now = self._clock.monotonic()
        spent, self._last = now - self._last, now
        self._since_restore_s += spent
        self.iteration += 1
        date = self._clock.now()
        filled = {
            **self.counted,
            "time_this_iter_s": spent,
            "date": f"{datetime.fromtimestamp(date):%Y-%m-%d_%H-%M-%S}",
            "timestamp": int(date),
            "iterations_since_restore": self.iteration - self._restored_at,
            "time_since_restore": self._since_restore_s,
        }
        if "timesteps_this_iter" in metrics:
            self._timesteps = (self._timesteps or 0) + metrics["timesteps_this_iter"]
            filled["timesteps_total"] = self._timesteps
        return {**filled, **metrics}
