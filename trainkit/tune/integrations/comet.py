"""Comet: an experiment of Comet's per trial, written by the driver."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainkit.tune.core.checks import is_number
from trainkit.tune.core.metrics import flatten, without_objects
from trainkit.tune.integrations.reporting import missing
from trainkit.tune.integrations.tracking import TrackedTrial, TrackerCallback

_OTHERS = frozenset({"trial_id", "experiment_tag", "node_ip", "hostname", "pid", "date"})
"""Reported values that describe the run rather than its course."""
_DEFAULTS = {
    "auto_output_logging": False,
    "log_git_metadata": False,
    "log_git_patch": False,
    "log_env_cpu": False,
    "log_env_gpu": False,
    "display_summary_level": 0,
}


class CometLoggerCallback(TrackerCallback):
    """Keeps an experiment of Comet's for each trial.

    A trial that goes on, also by `Tuner.restore`, goes on with its experiment. All is done in a thread, so a
    slow service slows no trial; one that fails is told of once.

    Args:
        online: False writes archives into the folder `comet` of the experiment's, for `comet upload`; the
            parts of a trial that went on are archives of their own.
        tags: of each experiment of Comet's.
        save_checkpoints: each checkpoint becomes an artifact.
        upload_timeout: seconds that the end of the experiment waits for Comet.
        experiment_kwargs: for Comet's Experiment or OfflineExperiment, such as `project_name`.

    Raises:
        MissingDependencyError: comet_ml is not installed.
    """

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        upload_timeout: float = 1800,
        **experiment_kwargs: Any,
    ) -> None:
        if find_spec("comet_ml") is None:
            raise missing("CometLoggerCallback", "comet")
        super().__init__("Comet", timeout_s=upload_timeout)
        self._online = online
        self._tags = list(tags or ())
        self._save_checkpoints = save_checkpoints
        self._kwargs = {**_DEFAULTS, **experiment_kwargs}
        self._comet: Any = None
        self._runs: dict[str, Any] = {}
        self._made: set[str] = set()

    def connect(self) -> None:
        self._comet = importlib.import_module("comet_ml")

    def open_run(self, told: TrackedTrial) -> bool:
        key = hashlib.blake2s(told.key.encode(), digest_size=16).hexdigest()  # Comet's have 32 to 50 letters
        is_new = key not in self._made and not self._sent[told.trial_id]
        kind = "Experiment" if self._online else "OfflineExperiment"
        arguments = dict(self._kwargs)
        if not self._online:
            folder = told.folder.parent / "comet"
            folder.mkdir(exist_ok=True)
            arguments.setdefault("offline_directory", str(folder))
        own = self._comet.get_running_experiment()
        if is_new:
            run = getattr(self._comet, kind)(experiment_key=key, **arguments)
        else:
            run = getattr(self._comet, f"Existing{kind}")(previous_experiment=key, **arguments)
        # Each takes itself for the one that the program writes to; that is the program's, if it has one.
        importlib.import_module("comet_ml.config").set_global_experiment(own)
        self._made.add(key)
        self._runs[told.trial_id] = run
        return is_new

    def describe_run(self, told: TrackedTrial) -> None:
        run = self._runs[told.trial_id]
        run.set_name(told.name)
        run.add_tags(self._tags)
        run.log_other("Created from", "trainkit")
        run.log_other("group", told.group)
        run.log_parameters(without_objects(flatten(told.config)))

    def write(self, told: TrackedTrial, results: Sequence[Mapping[str, Any]]) -> None:
        run = self._runs[told.trial_id]
        for result in results:
            step = result["training_iteration"]
            flat = flatten({name: value for name, value in result.items() if name != "config"})
            run.log_others({name: value for name, value in flat.items() if name in _OTHERS})
            metrics = {name: value for name, value in flat.items() if is_number(value)}
            run.log_metrics(
                {name: value for name, value in metrics.items() if name not in _OTHERS}, step=step
            )

    def save(self, told: TrackedTrial, checkpoint: Path) -> None:
        if self._save_checkpoints:
            artifact = self._comet.Artifact(name=f"checkpoint_{told.name}", artifact_type="model")
            artifact.add(str(checkpoint))
            self._runs[told.trial_id].log_artifact(artifact)

    def close_run(self, told: TrackedTrial, status: str) -> None:
        run = self._runs.pop(told.trial_id)
        run.log_other("status", status)
        run.end()
