"""Training PyTorch models: operators, trainers, and the ways to spread them.

`train.report` and the other names of a trial and its settings are those of `trainkit.tune`, where scripts of
Ray 2.x look for them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainkit.errors import MissingDependencyError

if TYPE_CHECKING:
    from trainkit.train.keys import BATCH_SIZE, NUM_SAMPLES
    from trainkit.train.operator import TrainingOperator
    from trainkit.train.trainer import TorchTrainer
    from trainkit.tune.config import CheckpointConfig, FailureConfig, RunConfig
    from trainkit.tune.core.checkpoint import Checkpoint
    from trainkit.tune.core.resources import ScalingConfig
    from trainkit.tune.results.result import Result
    from trainkit.tune.trial.context import get_checkpoint, get_context, report

__all__ = [
    "BATCH_SIZE",
    "NUM_SAMPLES",
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "TorchTrainer",
    "TrainingOperator",
    "get_checkpoint",
    "get_context",
    "report",
]

_HOMES = {
    "BATCH_SIZE": "trainkit.train.keys",
    "Checkpoint": "trainkit.tune.core.checkpoint",
    "CheckpointConfig": "trainkit.tune.config",
    "FailureConfig": "trainkit.tune.config",
    "NUM_SAMPLES": "trainkit.train.keys",
    "Result": "trainkit.tune.results.result",
    "RunConfig": "trainkit.tune.config",
    "ScalingConfig": "trainkit.tune.core.resources",
    "TorchTrainer": "trainkit.train.trainer",
    "TrainingOperator": "trainkit.train.operator",
    "get_checkpoint": "trainkit.tune.trial.context",
    "get_context": "trainkit.tune.trial.context",
    "report": "trainkit.tune.trial.context",
}


def __getattr__(name: str) -> Any:
    # Loaded when first used: torch takes most of a second.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError.of(f"{name} needs PyTorch", "train") from error
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
