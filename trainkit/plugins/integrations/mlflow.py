"""Callback that records trials as MLflow runs, and a function that sets up `mlflow` inside a trial."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError
from trainkit.plugins.integrations.reporting import require_installed
from trainkit.plugins.integrations.tracking import TrackedTrial, TrackerCallback, process_rank, running_trial
from trainkit.settings import OLD_WORKING_DIR
from trainkit.tune.core.checks import is_finite, is_number
from trainkit.tune.core.metrics import flatten, step_of

TRIAL_TAG = "trainkit.trial"
_TOKEN = "MLFLOW_TRACKING_TOKEN"
_NO_METRICS = frozenset({"timestamp", "config"})
_MAX_METRICS = 1000
"""Maximum number of metrics in one request to an MLflow server."""
_MAX_PARAMS = 100


class MLflowLoggerCallback(TrackerCallback):
    """A callback that records each trial as an MLflow run: parameters, metrics with their steps, final
    status.

    A trial that resumes, also by `Tuner.restore`, continues its previous run. All requests are sent from a
    separate thread, so that a slow server does not slow down trials. If requests fail, a warning is logged
    once.

    Args:
        tracking_uri: URI of the server or store, such as "http://host:5000" or "sqlite:////path/mlflow.db";
            None: MLflow's default.
        registry_uri: URI of the model registry; None: `tracking_uri`.
        experiment_name: name of the MLflow experiment, which is created if missing; None: MLflow's default,
            "Default".
        tags: tags that every run receives.
        tracking_token: access token, for a server that requires one.
        save_artifact: True: when a run ends, the files in the trial's folder are stored as the run's
            artifacts.
        log_params_on_trial_end: True: parameters are written at the end instead of the beginning.

    Raises:
        MissingDependencyError: MLflow is not installed.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
    ) -> None:
        require_installed("MLflowLoggerCallback", "mlflow")
        super().__init__("MLflow", timeout_s=300.0)
        self._tracking_uri = tracking_uri
        self._registry_uri = registry_uri
        self._experiment_name = experiment_name
        self._tags = dict(tags or {})
        self._tracking_token = tracking_token
        self._save_artifact = save_artifact
        self._params_at_end = log_params_on_trial_end
        self._client: Any = None
        self._experiment_id = ""
        self._token_before: str | None = None
        self._runs: dict[str, str] = {}

    def connect(self) -> None:
        mlflow = importlib.import_module("mlflow")
        if self._tracking_token is not None:
            self._token_before = os.environ.get(_TOKEN)
            os.environ[_TOKEN] = self._tracking_token
        self._client = mlflow.MlflowClient(self._tracking_uri, self._registry_uri)
        self._experiment_id = _experiment_id(self._client, self._experiment_name)

    def disconnect(self) -> None:
        if self._tracking_token is not None and os.environ.get(_TOKEN) == self._tracking_token:
            if self._token_before is None:
                del os.environ[_TOKEN]
            else:
                os.environ[_TOKEN] = self._token_before

    def open_run(self, told: TrackedTrial) -> bool:
        run_id = _find_run(self._client, self._experiment_id, told.key)
        is_new = run_id is None
        if run_id is None:
            tags = {**self._tags, "trial_name": told.name, TRIAL_TAG: told.key}
            run = self._client.create_run(self._experiment_id, tags=tags, run_name=told.name)
            run_id = str(run.info.run_id)
        else:
            self._client.update_run(run_id, status="RUNNING")
        self._runs[told.trial_id] = run_id
        return is_new

    def describe_run(self, told: TrackedTrial) -> None:
        if not self._params_at_end:
            self._log_parameters(told, self._runs[told.trial_id])

    def write(self, told: TrackedTrial, results: Sequence[Mapping[str, Any]]) -> None:
        entities = importlib.import_module("mlflow.entities")
        metrics = [
            entities.Metric(_safe_key(name), _as_float(value), _date_of(result), step_of(result))
            for result in results
            for name, value in flatten(_without(result)).items()
            if is_number(value)
        ]
        for start in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(
                self._runs[told.trial_id], metrics=metrics[start : start + _MAX_METRICS], synchronous=True
            )

    def close_run(self, told: TrackedTrial, status: str) -> None:
        run_id = self._runs.pop(told.trial_id)
        try:
            if status != "KILLED" and self._params_at_end:
                self._log_parameters(told, run_id)
            if status != "KILLED" and self._save_artifact:
                self._client.log_artifacts(run_id, str(told.folder))
        finally:
            self._client.set_terminated(run_id, status=status)

    def _log_parameters(self, told: TrackedTrial, run_id: str) -> None:
        entities = importlib.import_module("mlflow.entities")
        params = [
            entities.Param(key, str(getattr(value, "__name__", value)))
            for key, value in _parameters(told.config).items()
        ]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _MAX_PARAMS], synchronous=True)


def setup_mlflow(
    config: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: Mapping[str, str] | None = None,
    rank_zero_only: bool = True,
) -> Any:
    """Start a run for the trial in this process, or continue its run; return the module `mlflow`.

    Args:
        config: dictionary of hyperparameters, stored as the run's parameters.
        tracking_uri: URI of the server or store; None: MLflow's default. In a trial, a relative path is
            relative to the program's folder.
        registry_uri: URI of the model registry; None: MLflow's default.
        experiment_id: id of an existing MLflow experiment; overrides `experiment_name`.
        experiment_name: name of the MLflow experiment. None: in a trial, the name of the tuning experiment,
            which is created if missing; elsewhere, MLflow's default.
        tracking_token: access token, for a server that requires one.
        artifact_location: location of the artifacts of the MLflow experiment, if this call creates the
            experiment.
        run_name: name of the run; None: the trial's name.
        create_experiment_if_not_exists: True: create the experiment `experiment_name` if it is missing.
        tags: additional tags of the run.
        rank_zero_only: True: in a process group of torch.distributed, ranks other than 0 get an object whose
            calls do nothing.

    Raises:
        ConfigError: the MLflow experiment does not exist.
        MissingDependencyError: MLflow is not installed.
    """
    require_installed("setup_mlflow", "mlflow")
    if rank_zero_only and process_rank() != 0:
        return Nothing()
    mlflow: Any = importlib.import_module("mlflow")
    trial = running_trial()
    if tracking_token is not None:
        os.environ[_TOKEN] = tracking_token
    folder = os.environ.get(OLD_WORKING_DIR, ".") if trial is not None else "."
    # MLflow resolves the paths of its own store and artifacts against the working directory.
    with contextlib.chdir(folder):
        if trial is not None:
            tracking_uri = _beside(folder, tracking_uri or mlflow.get_tracking_uri())
        if tracking_uri is not None:
            mlflow.set_tracking_uri(tracking_uri)
        if registry_uri is not None:
            mlflow.set_registry_uri(registry_uri)
        # If a run is active, an earlier trial in this process has left it active.
        if mlflow.active_run() is not None:
            mlflow.end_run()
        client = mlflow.MlflowClient()
        if experiment_id is None:
            may_make = create_experiment_if_not_exists
            if experiment_name is None and trial is not None:
                experiment_name, may_make = trial.get_experiment_name(), True
            experiment_id = _experiment_id(client, experiment_name, artifact_location, may_make=may_make)
        mlflow.set_experiment(experiment_id=experiment_id)
        key = trial.get_trial_dir() if trial is not None else None
        run_id = _find_run(client, experiment_id, key) if key is not None else None
        if run_id is not None:
            mlflow.start_run(run_id=run_id)
            return mlflow
        own_tags = {TRIAL_TAG: key} if key is not None else {}
        name = run_name or (trial.get_trial_name() if trial is not None else None)
        mlflow.start_run(run_name=name, tags={**own_tags, **(tags or {})})
        if config:
            mlflow.log_params(_parameters(config))
        return mlflow


def _beside(folder: str, uri: str) -> str:
    """Return `uri`; if it contains a relative path, the path is resolved against `folder`."""
    for prefix in ("sqlite:///", "file:"):
        if uri.startswith(prefix) and not uri.endswith(":memory:"):
            return prefix + os.path.join(folder, uri[len(prefix) :])
    is_path = ":" not in uri and not uri.startswith("databricks")
    return os.path.join(folder, uri) if is_path else uri


class Nothing:
    """Substitute for `mlflow` on ranks that must not log: each attribute and call returns this object."""

    def __getattr__(self, name: str) -> Nothing:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        return self


def _experiment_id(
    client: Any, name: str | None, artifact_location: str | None = None, *, may_make: bool = True
) -> str:
    if name is None:
        own = importlib.import_module("mlflow.environment_variables")
        given = own.MLFLOW_EXPERIMENT_ID.get()
        return str(given) if given else _experiment_id(client, own.MLFLOW_EXPERIMENT_NAME.get() or "Default")
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    if not may_make:
        raise ConfigError(
            f"MLflow has no experiment {name!r}: create it, or pass create_experiment_if_not_exists=True"
        )
    try:
        return str(client.create_experiment(name, artifact_location=artifact_location))
    except Exception:
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        # If another trial has just created the experiment, its id can be read.
        return str(found.experiment_id)


def _find_run(client: Any, experiment_id: str, key: str) -> str | None:
    quoted = key.replace("'", "''")
    found = client.search_runs([experiment_id], f"tags.`{TRIAL_TAG}` = '{quoted}'", max_results=1)
    return str(found[0].info.run_id) if found else None


def _parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in flatten(config).items():
        key, count = _safe_key(name), 1
        while key in found:
            count += 1
            key = f"{_safe_key(name)[:240]}_{count}"
        found[key] = value
    return found


def _safe_key(name: str) -> str:
    """Return `name` in a form that MLflow accepts: valid characters, at most 250, a path inside a folder."""
    safe = re.sub(r"[^\w\-. /:]", "_", name) or "_"
    is_path = posixpath.normpath(safe) == safe and not safe.startswith(("/", ".."))
    return (safe if is_path and safe != "." else re.sub(r"[/.]", "_", safe))[:250]


def _without(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in _NO_METRICS}


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _date_of(result: Mapping[str, Any]) -> int:
    seconds = result.get("timestamp")
    return int(seconds * 1000) if seconds is not None and is_finite(seconds) else 0
