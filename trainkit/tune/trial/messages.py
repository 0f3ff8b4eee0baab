"""Values that travel between the driver and a trial's process."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypedDict

from trainkit.clock import SYSTEM, Clock
from trainkit.tune.core.resources import DEFAULT_REQUEST, TrialResources
from trainkit.tune.trial.environment import TrialEnvironment


@dataclass(frozen=True)
class TrialSpec:
    """All that a trial's process is told.

    Attributes:
        iteration: of the checkpoint that it goes on from; 0 from the beginning.
        checkpoint: path of that checkpoint.
        next_checkpoint: number of the first checkpoint that it will save.
        time_total_s, timesteps_total: spent before, to count on from.
        checkpoint_frequency, checkpoint_at_end: for a class, as in CheckpointConfig.
        seed: for the process's generators; None leaves them as they are.
        driver_pid: whose generators are not to be seeded when trials run in the driver itself.
        environment: where the user's code stands, and where what it prints goes.
        makes_dir: its folder is made beforehand; else by what writes there.
        durable: checkpoints outlive the machine; else they are not flushed to the disk.
        part: of the step, from 0, and the number of parts that are done at once.
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
"""In place of a process's number: each step may run in another."""


class WorkerProcess(TypedDict):
    """Where a trial runs: a dictionary, which travels several times as fast as an object of a class."""

    pid: int
    hostname: str
    node_ip: str


Reply = tuple[int, dict[str, Any] | None, str | None, bool, str]
"""Answer of a trial's process: a tuple, which travels several times as fast as an object of a class."""


def reply(
    iteration: int,
    metrics: dict[str, Any] | None = None,
    checkpoint: str | None = None,
    done: bool = False,
    problem: str = "",
) -> Reply:
    """Return the answer to `advance`, `save` or `stop`.

    Args:
        iteration: number of reports so far, those before a resume included.
        metrics: of the report; None: the trial has nothing more to report, or only saved.
        checkpoint: name of the folder that was saved with it.
        done: nothing is left to advance.
        problem: traceback of what the user's cleanup raised after a stop.
    """
    return iteration, metrics, checkpoint, done, problem


class ReportMeter:
    """Fills in what every report carries: counts and times.

    Args:
        spec: the trial, with what it counted before.
        clock: to read.
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
        """Return how many reports there were, and how long they took, before a restore included."""
        return {
            "training_iteration": self.iteration,
            "time_total_s": self._before_s + self._since_restore_s,
        }

    def fill(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Count one report; return its metrics with the automatic keys, which reported ones override."""
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
