"""Training of PyTorch models: operators, trainers and strategies.

This package also has `train.report` and other names of `trainkit.tune` for trials and their settings, because
scripts for Ray 2.x import these names from `train`.
"""

from __future__ import annotations

from typing import Any

from trainkit.errors import MissingDependencyError
from trainkit.lazy import from_stub

_get, __dir__, __all__ = from_stub(__name__)


def __getattr__(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError.of(f"{name} needs PyTorch", "train") from error
