"""Aim: a run per trial in a repository of Aim's, written by the driver."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainkit.tune.core.checks import is_number, require
from trainkit.tune.core.metrics import flatten, without_objects
from trainkit.tune.integrations.reporting import missing
from trainkit.tune.integrations.tracking import TrackedTrial, TrackerCallback

_LEFT_OUT = frozenset(
    {"config", "pid", "timestamp", "time_total_s", "training_iteration", "context", "epoch"}
)
_DEFAULTS = {"system_tracking_interval": None, "capture_terminal_logs": False}


class AimLoggerCallback(TrackerCallback):
    """Keeps a run of Aim's for each trial; `aim up --repo FOLDER` shows them.

    A trial that goes on, also by `Tuner.restore`, goes on with its run. All is done in a thread, so a slow
    disk slows no trial; what fails is told of once.

    Args:
        repo: folder of the repository, or a Repo; None: the experiment's folder.
        experiment_name: None: the name of the experiment's folder.
        metrics: names of those that are tracked; None: all numbers.
        aim_run_kwargs: for Aim's Run.

    Raises:
        ConfigError: `metrics` is empty.
        MissingDependencyError: aim is not installed.
    """

    def __init__(
        self,
        repo: Any = None,
        experiment_name: str | None = None,
        metrics: Sequence[str] | None = None,
        **aim_run_kwargs: Any,
    ) -> None:
        if find_spec("aim") is None:
            raise missing("AimLoggerCallback", "aim")
        require(metrics is None or len(metrics) > 0, "metrics=[] tracks nothing: give names, or None for all")
        super().__init__("Aim", timeout_s=1800)
        self._repo = repo
        self._experiment_name = experiment_name
        self._metrics = metrics
        self._kwargs = {**_DEFAULTS, **aim_run_kwargs}
        self._aim: Any = None
        self._runs: dict[str, Any] = {}
        self._hashes: dict[str, str] = {}
        """By trial, the name that Aim gave its run, by which a restore finds it."""

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "hashes": dict(self._hashes)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._hashes = dict(state["hashes"])
        super().set_state(state)

    def connect(self) -> None:
        self._aim = importlib.import_module("aim")

    def open_run(self, told: TrackedTrial) -> bool:
        repo = told.folder.parent if self._repo is None else self._repo
        known = self._hashes.get(told.trial_id)
        again = (
            {} if known is None else {"run_hash": known, "force_resume": True}
        )  # a killed driver's lock stays
        experiment = self._experiment_name or told.group
        run = self._aim.Run(
            repo=str(repo) if isinstance(repo, Path) else repo, experiment=experiment, **again, **self._kwargs
        )
        self._runs[told.trial_id] = run
        self._hashes[told.trial_id] = run.hash
        return known is None

    def describe_run(self, told: TrackedTrial) -> None:
        run = self._runs[told.trial_id]
        run.name = told.name
        run["trial_id"] = told.trial_id
        run["trial_log_dir"] = str(told.folder)
        run["hparams"] = without_objects(flatten(told.config))

    def write(self, told: TrackedTrial, results: Sequence[Mapping[str, Any]]) -> None:
        run = self._runs[told.trial_id]
        for result in results:
            step = result.get("timesteps_total") or result["training_iteration"]
            for name, value in flatten({k: v for k, v in result.items() if k not in _LEFT_OUT}).items():
                wanted = self._metrics is None or name in self._metrics
                if wanted and is_number(value) and math.isfinite(value):  # Aim refuses the others
                    run.track(
                        value, name, step=step, epoch=result.get("epoch"), context=result.get("context")
                    )

    def close_run(self, told: TrackedTrial, status: str) -> None:
        run = self._runs.pop(told.trial_id)
        run["status"] = status
        run.close()
