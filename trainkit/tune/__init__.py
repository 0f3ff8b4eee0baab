"""Tuning: trials of a trainable with different hyperparameters, stopped early where they disappoint.

    from trainkit import tune

    def objective(config):
        for step in range(100):
            tune.report({"loss": (config["x"] - 1) ** 2 / (step + 1)})

    tuner = tune.Tuner(
        objective,
        param_space={"x": tune.uniform(-10, 10)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=50, scheduler=tune.schedulers.ASHAScheduler()
        ),
    )
    print(tuner.fit().get_best_result().config)

Names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainkit.lazy import no_such_name

if TYPE_CHECKING:
    from trainkit.compat.run import Experiment, run, run_experiments
    from trainkit.errors import TuneError
    from trainkit.tune import callbacks as callbacks
    from trainkit.tune import integrations as integrations
    from trainkit.tune import schedulers as schedulers
    from trainkit.tune import search as search
    from trainkit.tune.analysis import Analysis, ExperimentAnalysis
    from trainkit.tune.callbacks import (
        Callback,
        CLIReporter,
        JupyterNotebookReporter,
        LoggerCallback,
        ProgressReporter,
    )
    from trainkit.tune.checkpoint import Checkpoint
    from trainkit.tune.classes import import_class
    from trainkit.tune.config import (
        CheckpointConfig,
        FailureConfig,
        ResumeConfig,
        RunConfig,
        SyncConfig,
        TuneConfig,
    )
    from trainkit.tune.outcome.result import Result
    from trainkit.tune.outcome.results import ResultGrid
    from trainkit.tune.placement import PlacementGroupFactory, with_parameters, with_resources
    from trainkit.tune.registry import register_env, register_trainable
    from trainkit.tune.scaling import ScalingConfig
    from trainkit.tune.schedulers.create import create_scheduler
    from trainkit.tune.search.create import create_searcher
    from trainkit.tune.session import (
        TuneContext,
        checkpoint_dir,
        get_checkpoint,
        get_context,
        get_trial_dir,
        get_trial_id,
        get_trial_name,
        get_trial_resources,
        is_session_enabled,
        report,
    )
    from trainkit.tune.simulation.front import simulate
    from trainkit.tune.simulation.results import Simulation
    from trainkit.tune.space import (
        choice,
        forbid,
        grid_search,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        sample_from,
        uniform,
        when,
    )
    from trainkit.tune.stoppers import (
        CombinedStopper,
        ExperimentPlateauStopper,
        FunctionStopper,
        MaximumIterationStopper,
        Stopper,
        TimeoutStopper,
        TrialPlateauStopper,
    )
    from trainkit.tune.trainable import Trainable
    from trainkit.tune.tuner import Tuner

_HOME_OF = {
    "Analysis": "trainkit.tune.analysis",
    "CLIReporter": "trainkit.tune.callbacks",
    "Callback": "trainkit.tune.callbacks",
    "Checkpoint": "trainkit.tune.checkpoint",
    "CheckpointConfig": "trainkit.tune.config",
    "CombinedStopper": "trainkit.tune.stoppers",
    "Experiment": "trainkit.compat.run",
    "ExperimentAnalysis": "trainkit.tune.analysis",
    "ExperimentPlateauStopper": "trainkit.tune.stoppers",
    "FailureConfig": "trainkit.tune.config",
    "FunctionStopper": "trainkit.tune.stoppers",
    "JupyterNotebookReporter": "trainkit.tune.callbacks",
    "LoggerCallback": "trainkit.tune.callbacks",
    "MaximumIterationStopper": "trainkit.tune.stoppers",
    "PlacementGroupFactory": "trainkit.tune.placement",
    "ProgressReporter": "trainkit.tune.callbacks",
    "Result": "trainkit.tune.outcome.result",
    "ResultGrid": "trainkit.tune.outcome.results",
    "ResumeConfig": "trainkit.tune.config",
    "RunConfig": "trainkit.tune.config",
    "ScalingConfig": "trainkit.tune.scaling",
    "Simulation": "trainkit.tune.simulation.results",
    "Stopper": "trainkit.tune.stoppers",
    "SyncConfig": "trainkit.tune.config",
    "TimeoutStopper": "trainkit.tune.stoppers",
    "Trainable": "trainkit.tune.trainable",
    "TrialPlateauStopper": "trainkit.tune.stoppers",
    "TuneConfig": "trainkit.tune.config",
    "TuneContext": "trainkit.tune.session",
    "TuneError": "trainkit.errors",
    "Tuner": "trainkit.tune.tuner",
    "checkpoint_dir": "trainkit.tune.session",
    "choice": "trainkit.tune.space",
    "create_scheduler": "trainkit.tune.schedulers.create",
    "create_searcher": "trainkit.tune.search.create",
    "forbid": "trainkit.tune.space",
    "get_checkpoint": "trainkit.tune.session",
    "get_context": "trainkit.tune.session",
    "get_trial_dir": "trainkit.tune.session",
    "get_trial_id": "trainkit.tune.session",
    "get_trial_name": "trainkit.tune.session",
    "get_trial_resources": "trainkit.tune.session",
    "grid_search": "trainkit.tune.space",
    "import_class": "trainkit.tune.classes",
    "is_session_enabled": "trainkit.tune.session",
    "lograndint": "trainkit.tune.space",
    "loguniform": "trainkit.tune.space",
    "qlograndint": "trainkit.tune.space",
    "qloguniform": "trainkit.tune.space",
    "qrandint": "trainkit.tune.space",
    "qrandn": "trainkit.tune.space",
    "quniform": "trainkit.tune.space",
    "randint": "trainkit.tune.space",
    "randn": "trainkit.tune.space",
    "register_env": "trainkit.tune.registry",
    "register_trainable": "trainkit.tune.registry",
    "report": "trainkit.tune.session",
    "run": "trainkit.compat.run",
    "run_experiments": "trainkit.compat.run",
    "sample_from": "trainkit.tune.space",
    "simulate": "trainkit.tune.simulation.front",
    "uniform": "trainkit.tune.space",
    "when": "trainkit.tune.space",
    "with_parameters": "trainkit.tune.placement",
    "with_resources": "trainkit.tune.placement",
}
_GONE = {"function": "write tune.sample_from(function) to call it for each trial"}
_FOLDERS = ("callbacks", "integrations", "schedulers", "search")
_ALIASES = ("registry", "trainable")

__all__ = [
    "Analysis",
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "CombinedStopper",
    "Experiment",
    "ExperimentAnalysis",
    "ExperimentPlateauStopper",
    "FailureConfig",
    "FunctionStopper",
    "JupyterNotebookReporter",
    "LoggerCallback",
    "MaximumIterationStopper",
    "PlacementGroupFactory",
    "ProgressReporter",
    "Result",
    "ResultGrid",
    "ResumeConfig",
    "RunConfig",
    "ScalingConfig",
    "Simulation",
    "Stopper",
    "SyncConfig",
    "TimeoutStopper",
    "Trainable",
    "TrialPlateauStopper",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "callbacks",
    "checkpoint_dir",
    "choice",
    "create_scheduler",
    "create_searcher",
    "forbid",
    "get_checkpoint",
    "get_context",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "grid_search",
    "import_class",
    "integrations",
    "is_session_enabled",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "register_env",
    "register_trainable",
    "report",
    "run",
    "run_experiments",
    "sample_from",
    "schedulers",
    "search",
    "simulate",
    "uniform",
    "when",
    "with_parameters",
    "with_resources",
]


def __getattr__(name: str) -> Any:
    if name in _FOLDERS or name in _ALIASES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _GONE:
        raise AttributeError(f"tune.{name} is no more: {_GONE[name]}")
    if name not in _HOME_OF:
        raise no_such_name(__name__, name, __all__)
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
