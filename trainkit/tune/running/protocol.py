"""What travels between driver and trial: frozen values.

driver -> trial    setup(TrialSpec)   advance()        save()           stop(save)
trial -> driver    Place              Progress.plain   Progress.plain   Progress.plain
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainkit.tune.placement import DEFAULT_REQUEST, TrialResources
from trainkit.tune.running.house import House


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
        house: where the user's code stands, and where what it prints goes.
        environments: what `register_env` was given.
        makes_dir: its folder is made beforehand; else by what writes there.
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
    house: House = field(default_factory=House)
    environments: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    makes_dir: bool = True


NO_PROCESS = 0
"""In place of a process's number: each step may run in another."""


@dataclass(frozen=True)
class Place:
    """Where a trial runs."""

    pid: int
    hostname: str
    node_ip: str


@dataclass(frozen=True)
class Progress:
    """The answer to `advance`, `save` and `stop`.

    Attributes:
        iteration: reports so far, those before a resume included.
        metrics: a report; None: there is none further, or the trial only saved.
        checkpoint: name of the folder saved with it.
        done: nothing is left to advance.
        problem: traceback of what the user's cleanup raised after a stop.
    """

    iteration: int
    metrics: dict[str, Any] | None = None
    checkpoint: str | None = None
    done: bool = False
    problem: str = ""

    @property
    def plain(self) -> PlainProgress:
        """The same as a tuple, which travels several times as fast as an object of a class."""
        return self.iteration, self.metrics, self.checkpoint, self.done, self.problem


PlainProgress = tuple[int, dict[str, Any] | None, str | None, bool, str]
