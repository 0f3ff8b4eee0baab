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

if TYPE_CHECKING:
    from trainkit.tune import callbacks as callbacks
    from trainkit.tune import schedulers as schedulers
    from trainkit.tune import search as search
    from trainkit.tune.callbacks import (
        Callback,
        CLIReporter,
        JupyterNotebookReporter,
        LoggerCallback,
        ProgressReporter,
    )
    from trainkit.tune.checkpoint import Checkpoint
    from trainkit.tune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
    from trainkit.tune.placement import PlacementGroupFactory, with_parameters, with_resources
    from trainkit.tune.results import Result, ResultGrid
    from trainkit.tune.session import get_checkpoint, get_context, report
    from trainkit.tune.space import choice, grid_search, loguniform, randint, sample_from, uniform
    from trainkit.tune.trainable import Trainable
    from trainkit.tune.tuner import Tuner

_HOMES = {
    "callbacks": (
        "CLIReporter",
        "Callback",
        "JupyterNotebookReporter",
        "LoggerCallback",
        "ProgressReporter",
    ),
    "checkpoint": ("Checkpoint",),
    "config": ("CheckpointConfig", "FailureConfig", "RunConfig", "TuneConfig"),
    "placement": ("PlacementGroupFactory", "with_parameters", "with_resources"),
    "results": ("Result", "ResultGrid"),
    "session": ("get_checkpoint", "get_context", "report"),
    "space": ("choice", "grid_search", "loguniform", "randint", "sample_from", "uniform"),
    "trainable": ("Trainable",),
    "tuner": ("Tuner",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_FOLDERS = ("callbacks", "schedulers", "search")

__all__ = [
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "JupyterNotebookReporter",
    "LoggerCallback",
    "PlacementGroupFactory",
    "ProgressReporter",
    "Result",
    "ResultGrid",
    "RunConfig",
    "Trainable",
    "TuneConfig",
    "Tuner",
    "callbacks",
    "choice",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "loguniform",
    "randint",
    "report",
    "sample_from",
    "schedulers",
    "search",
    "uniform",
    "with_parameters",
    "with_resources",
]


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
