"""Callback that records trials as Weights & Biases runs, and a function that sets up a run inside a trial."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.errors import ConfigError
from trainkit.plugins.integrations.reporting import require_installed
from trainkit.plugins.integrations.tracking import TrackedTrial, TrackerCallback, process_rank, running_trial
from trainkit.tune.core.checks import is_number, require
from trainkit.tune.core.metrics import flatten, without_objects

_INTO_CONFIG = frozenset({"trial_id", "experiment_tag", "node_ip", "hostname", "pid", "date"})
"""Names of reported values that describe the run; they are not plotted as metrics."""
_AXIS = "training_iteration"


class WandbLoggerCallback(TrackerCallback):
    """A callback that records each trial as a Weights & Biases run; the runs of an experiment form a group.

    A trial that resumes, also by `Tuner.restore`, continues its previous run. All requests are sent from a
    separate thread, so that a slow service does not slow down trials. If requests fail, a warning is logged
    once. Metrics are plotted over the iterations of the trial. With WANDB_MODE=offline, the runs are stored
    in the experiment's folder `wandb`, for `wandb sync`.

    Args:
        project: name of the project; None: W&B's default, such as $WANDB_PROJECT.
        group: name of the group; None: the name of the experiment's folder.
        api_key_file: file with the API key in its first line; read when the callback is made.
        api_key: the API key. If neither the key nor a file is given, W&B uses its own key, for example from
            `wandb login`.
        excludes: names of metrics and hyperparameters to leave out, including all nested names below them.
        log_config: True: each report also sends the configuration, because hyperparameters may change during
            a trial.
        upload_checkpoints: True: each checkpoint is uploaded as an artifact.
        save_checkpoints: older name of `upload_checkpoints`.
        upload_timeout: seconds to wait for W&B at the end of the experiment.
        kwargs: further arguments of `wandb.init`.

    Raises:
        ConfigError: both a key and a key file are given, or the file can't be read.
        MissingDependencyError: wandb is not installed.
    """

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        save_checkpoints: bool = False,
        upload_timeout: float = 1800,
        **kwargs: Any,
    ) -> None:
        require_installed("WandbLoggerCallback", "wandb")
        super().__init__("Weights & Biases", timeout_s=upload_timeout)
        self._project = project
        self._group = group
        self._api_key = _key(api_key, api_key_file)
        self._excludes = tuple(excludes or ())
        self._log_config = log_config
        self._upload_checkpoints = upload_checkpoints or save_checkpoints
        self._kwargs = kwargs
        self._wandb: Any = None
        self._left_to_user = False
        self._runs: dict[str, Any] = {}

    def connect(self) -> None:
        self._wandb = importlib.import_module("wandb")
        self._left_to_user = self._wandb.run is not None

    def disconnect(self) -> None:
        # The next call ends W&B's service process, unless the program has its own run.
        if not self._left_to_user and self._wandb.run is None:
            self._wandb.teardown()

    def open_run(self, told: TrackedTrial) -> bool:
        settings = {"console": "off", "silent": True, "x_disable_stats": True}
        settings |= {} if self._api_key is None else {"api_key": self._api_key}
        arguments = {
            "project": self._project,
            "group": self._group or told.group,
            "id": told.key,
            "name": told.name,
            "config": without_objects(self._wanted(told.config)),
            "dir": str(told.folder.parent),
            "resume": "allow",
            "reinit": "create_new",
            "allow_val_change": True,
            "settings": self._wandb.Settings(**settings),
        }
        run = self._wandb.init(**{**arguments, **self._kwargs})
        run.define_metric(_AXIS)
        run.define_metric("*", step_metric=_AXIS)
        self._runs[told.trial_id] = run
        return not run.resumed

    def write(self, told: TrackedTrial, results: Sequence[Mapping[str, Any]]) -> None:
        run = self._runs[told.trial_id]
        for result in results:
            metrics = {name: value for name, value in result.items() if name != "config"}
            flat = flatten(self._wanted(metrics))
            facts = {name: value for name, value in flat.items() if name in _INTO_CONFIG}
            if self._log_config:
                facts |= without_objects(self._wanted(result["config"]))
            if facts:
                run.config.update(facts, allow_val_change=True)
            run.log({name: value for name, value in flat.items() if is_number(value)})

    def save(self, told: TrackedTrial, checkpoint: Path) -> None:
        if self._upload_checkpoints:
            artifact = self._wandb.Artifact(name=f"checkpoint_{told.name}", type="model")
            artifact.add_dir(str(checkpoint))
            self._runs[told.trial_id].log_artifact(artifact)

    def close_run(self, told: TrackedTrial, status: str) -> None:
        self._runs.pop(told.trial_id).finish(exit_code=1 if status == "FAILED" else 0)

    def _wanted(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in flatten(values).items()
            if not any(name == each or name.startswith(f"{each}/") for each in self._excludes)
        }


def setup_wandb(
    config: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,
) -> Any:
    """Start a run for the trial in this process, or continue its run; return the run.

    In a trial, the run has the trial's name, its group is the experiment, and its files are in the trial's
    folder.

    Args:
        config: dictionary of hyperparameters, stored as the run's configuration.
        api_key: the API key. If neither the key nor a file is given, W&B uses its own key, for example from
            `wandb login`.
        api_key_file: file with the API key in its first line.
        rank_zero_only: True: in a process group of torch.distributed, ranks other than 0 get a run that does
            nothing.
        kwargs: further arguments of `wandb.init`; they override the arguments that this function sets.

    Raises:
        ConfigError: both a key and a key file are given, or the file can't be read.
        MissingDependencyError: wandb is not installed.
    """
    require_installed("setup_wandb", "wandb")
    wandb: Any = importlib.import_module("wandb")
    if rank_zero_only and process_rank() != 0:
        return wandb.init(mode="disabled")
    trial = running_trial()
    arguments: dict[str, Any] = {
        "config": without_objects(config or {}),
        "resume": "allow",
        "reinit": "finish_previous",
        "allow_val_change": True,
    }
    if trial is not None:
        folder = trial.get_trial_dir()
        # Trials of two experiments may have the same id, so a hash of the folder is added.
        own = hashlib.blake2s(folder.encode(), digest_size=4).hexdigest()
        arguments |= {
            "id": f"{trial.get_trial_id()}_{own}",
            "name": trial.get_trial_name(),
            "group": trial.get_experiment_name(),
            "dir": folder,
        }
    key = _key(api_key, api_key_file)
    if key is not None:
        arguments["settings"] = wandb.Settings(api_key=key)
    return wandb.init(**{**arguments, **kwargs})


def _key(api_key: str | None, api_key_file: str | None) -> str | None:
    if api_key_file is None:
        return api_key
    require(api_key is None, "give api_key or api_key_file, not both")
    try:
        lines = Path(api_key_file).expanduser().read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"api_key_file={api_key_file!r} cannot be read: {error}") from error
    require(bool(lines and lines[0].strip()), f"api_key_file={api_key_file!r} has no key in its first line")
    return lines[0].strip()
