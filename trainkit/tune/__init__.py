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
    from trainkit.tune.callbacks import (
        Callback,
        CLIReporter,
        JupyterNotebookReporter,
        LoggerCallback,
        ProgressReporter,
    )
    from trainkit.tune.config import (
        CheckpointConfig,
        FailureConfig,
        ResumeConfig,
        RunConfig,
        SyncConfig,
        TuneConfig,
    )
    from trainkit.tune.core.checkpoint import Checkpoint
    from trainkit.tune.core.registry import register_env, register_trainable
    from trainkit.tune.core.resources import (
        PlacementGroupFactory,
        ScalingConfig,
        with_parameters,
        with_resources,
    )
    from trainkit.tune.core.stoppers import (
        CombinedStopper,
        ExperimentPlateauStopper,
        FunctionStopper,
        MaximumIterationStopper,
        Stopper,
        TimeoutStopper,
        TrialPlateauStopper,
    )
    from trainkit.tune.results.analysis import Analysis, ExperimentAnalysis
    from trainkit.tune.results.result import Result
    from trainkit.tune.results.result_grid import ResultGrid
    from trainkit.tune.schedulers import create_scheduler
    from trainkit.tune.search import create_searcher
    from trainkit.tune.simulation.results import Simulation
    from trainkit.tune.simulation.simulate import simulate
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
    from trainkit.tune.space.classes import import_class
    from trainkit.tune.trial.context import (
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
    from trainkit.tune.trial.trainable import Trainable
    from trainkit.tune.tuner import Tuner

_HOME_OF = {
    "Analysis": "trainkit.tune.results.analysis",
    "CLIReporter": "trainkit.tune.callbacks",
    "Callback": "trainkit.tune.callbacks",
    "Checkpoint": "trainkit.tune.core.checkpoint",
    "CheckpointConfig": "trainkit.tune.config",
    "CombinedStopper": "trainkit.tune.core.stoppers",
    "Experiment": "trainkit.compat.run",
    "ExperimentAnalysis": "trainkit.tune.results.analysis",
    "ExperimentPlateauStopper": "trainkit.tune.core.stoppers",
    "FailureConfig": "trainkit.tune.config",
    "FunctionStopper": "trainkit.tune.core.stoppers",
    "JupyterNotebookReporter": "trainkit.tune.callbacks",
    "LoggerCallback": "trainkit.tune.callbacks",
    "MaximumIterationStopper": "trainkit.tune.core.stoppers",
    "PlacementGroupFactory": "trainkit.tune.core.resources",
    "ProgressReporter": "trainkit.tune.callbacks",
    "Result": "trainkit.tune.results.result",
    "ResultGrid": "trainkit.tune.results.result_grid",
    "ResumeConfig": "trainkit.tune.config",
    "RunConfig": "trainkit.tune.config",
    "ScalingConfig": "trainkit.tune.core.resources",
    "Simulation": "trainkit.tune.simulation.results",
    "Stopper": "trainkit.tune.core.stoppers",
    "SyncConfig": "trainkit.tune.config",
    "TimeoutStopper": "trainkit.tune.core.stoppers",
    "Trainable": "trainkit.tune.trial.trainable",
    "TrialPlateauStopper": "trainkit.tune.core.stoppers",
    "TuneConfig": "trainkit.tune.config",
    "TuneContext": "trainkit.tune.trial.context",
    "TuneError": "trainkit.errors",
    "Tuner": "trainkit.tune.tuner",
    "checkpoint_dir": "trainkit.tune.trial.context",
    "choice": "trainkit.tune.space",
    "create_scheduler": "trainkit.tune.schedulers",
    "create_searcher": "trainkit.tune.search",
    "forbid": "trainkit.tune.space",
    "get_checkpoint": "trainkit.tune.trial.context",
    "get_context": "trainkit.tune.trial.context",
    "get_trial_dir": "trainkit.tune.trial.context",
    "get_trial_id": "trainkit.tune.trial.context",
    "get_trial_name": "trainkit.tune.trial.context",
    "get_trial_resources": "trainkit.tune.trial.context",
    "grid_search": "trainkit.tune.space",
    "import_class": "trainkit.tune.space.classes",
    "is_session_enabled": "trainkit.tune.trial.context",
    "lograndint": "trainkit.tune.space",
    "loguniform": "trainkit.tune.space",
    "qlograndint": "trainkit.tune.space",
    "qloguniform": "trainkit.tune.space",
    "qrandint": "trainkit.tune.space",
    "qrandn": "trainkit.tune.space",
    "quniform": "trainkit.tune.space",
    "randint": "trainkit.tune.space",
    "randn": "trainkit.tune.space",
    "register_env": "trainkit.tune.core.registry",
    "register_trainable": "trainkit.tune.core.registry",
    "report": "trainkit.tune.trial.context",
    "run": "trainkit.compat.run",
    "run_experiments": "trainkit.compat.run",
    "sample_from": "trainkit.tune.space",
    "simulate": "trainkit.tune.simulation.simulate",
    "uniform": "trainkit.tune.space",
    "when": "trainkit.tune.space",
    "with_parameters": "trainkit.tune.core.resources",
    "with_resources": "trainkit.tune.core.resources",
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
