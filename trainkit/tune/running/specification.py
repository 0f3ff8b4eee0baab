"""What a trial's process is told: the trial as data, with what the settings say of all trials."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainkit import settings
from trainkit.runtime import api
from trainkit.runtime.specs import ObjectRef
from trainkit.tune.config import RunConfig
from trainkit.tune.control import events as ev
from trainkit.tune.placement import TrialResources
from trainkit.tune.registry import environments
from trainkit.tune.running.house import House, log_files
from trainkit.tune.running.protocol import TrialSpec


class SpecMaker:
    """Makes the specification of each attempt.

    Args:
        folder: of the experiment.
        run: the settings.
        seed_of: by trial index, the seed for the trial's generators; None: none.
        start_from: path of the checkpoint that a trial without one of its own begins with; None: none.
        makes_dirs: trials find their folders made.
    """

    def __init__(
        self,
        folder: Path,
        run: RunConfig,
        seed_of: Callable[[int], int | None],
        start_from: str | None = None,
        *,
        makes_dirs: bool = True,
    ) -> None:
        self.folder = folder
        self._run = run
        self._seed_of = seed_of
        self._start_from = start_from
        self._house = House(
            log_files(run.log_to_file), run.chdir_to_trial_dir or bool(settings.chdir_asked())
        )
        self._environments = environments()
        self._makes_dirs = makes_dirs or self._house != House()

    def of(self, start: ev.Start) -> TrialSpec:
        """Return the specification of the attempt that `start` begins."""
        trial, checkpoint = start.trial, start.checkpoint
        trial_dir = self.folder / trial.dirname
        return TrialSpec(
            trial_id=trial.trial_id,
            trial_name=trial.name,
            trial_dir=str(trial_dir),
            experiment_name=self.folder.name,
            config=trial.config,
            resources=TrialResources(trial.request),
            iteration=start.iteration,
            checkpoint=str(trial_dir / checkpoint.dirname) if checkpoint else self._start_from,
            next_checkpoint=trial.next_checkpoint,
            time_total_s=checkpoint.time_total_s if checkpoint else 0.0,
            timesteps_total=checkpoint.timesteps_total if checkpoint else None,
            checkpoint_frequency=self._run.checkpoint_config.checkpoint_frequency,
            checkpoint_at_end=bool(self._run.checkpoint_config.checkpoint_at_end),
            seed=self._seed_of(trial.index),
            driver_pid=os.getpid(),
            house=self._house,
            environments=self._environments,
            makes_dir=self._makes_dirs,
        )


def put_named(what: str, value: Any) -> ObjectRef[Any]:
    """Put what all trials share into the object store, or return the reference that the user has put it by.

    Raises:
        SerializationError: it can't be sent to a worker; the message begins with `what`.
    """
    if isinstance(value, ObjectRef):
        return value
    api.ensure_serializable(value, what)
    ref: ObjectRef[Any] = api.put(value)
    return ref
