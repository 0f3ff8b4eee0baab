"""Specifications of attempts, made from the settings of an experiment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainkit import settings
from trainkit.tune.config import RunConfig
from trainkit.tune.controller import events as ev
from trainkit.tune.core.resources import TrialResources
from trainkit.tune.trial.environment import TrialEnvironment, log_files
from trainkit.tune.trial.messages import TrialSpec


@dataclass
class SpecFactory:
    """Factory of attempt specifications.

    Attributes:
        folder: folder of the experiment.
        run: settings of the run.
        seed_of: function that receives a trial's index and returns the seed of the trial's random generators,
            or None.
        start_from: path of a checkpoint from which trials without their own checkpoint start, or None.
        durable: True: trial folders are created beforehand, and checkpoints are flushed to the disk.
    """

    folder: Path
    run: RunConfig
    seed_of: Callable[[int], int | None]
    start_from: str | None = None
    durable: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        chdir = self.run.chdir_to_trial_dir
        chdir = settings.chdir_asked() if chdir is None else chdir
        self._environment = TrialEnvironment(log_files(self.run.log_to_file), chdir)
        self._makes_dirs = self.durable or self._environment != TrialEnvironment()

    def of(self, start: ev.Start) -> TrialSpec:
        """Return the specification of the attempt that `start` begins."""
        trial, checkpoint = start.trial, start.checkpoint
        trial_dir = f"{self.folder}/{trial.dirname}"
        return TrialSpec(
            trial_id=trial.trial_id,
            trial_name=trial.name,
            trial_dir=trial_dir,
            experiment_name=self.folder.name,
            config=trial.config,
            resources=TrialResources(trial.request),
            iteration=start.iteration,
            checkpoint=f"{trial_dir}/{checkpoint.dirname}" if checkpoint else self.start_from,
            next_checkpoint=trial.next_checkpoint,
            time_total_s=checkpoint.time_total_s if checkpoint else 0.0,
            timesteps_total=checkpoint.timesteps_total if checkpoint else None,
            checkpoint_frequency=self.run.checkpoint_config.checkpoint_frequency,
            checkpoint_at_end=bool(self.run.checkpoint_config.checkpoint_at_end),
            seed=self.seed_of(trial.index),
            driver_pid=os.getpid(),
            environment=self._environment,
            makes_dir=self._makes_dirs,
            durable=self.durable,
        )
