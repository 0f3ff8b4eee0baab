"""Training PyTorch models: operators, trainers, and the ways to spread them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainkit.train.keys import BATCH_SIZE, NUM_SAMPLES
    from trainkit.train.operator import TrainingOperator
    from trainkit.train.trainer import TorchTrainer

__all__ = ["BATCH_SIZE", "NUM_SAMPLES", "TorchTrainer", "TrainingOperator"]

_HOMES = {
    "BATCH_SIZE": "trainkit.train.keys",
    "NUM_SAMPLES": "trainkit.train.keys",
    "TorchTrainer": "trainkit.train.trainer",
    "TrainingOperator": "trainkit.train.operator",
}


def __getattr__(name: str) -> Any:
    # Loaded when first used: torch takes most of a second.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
