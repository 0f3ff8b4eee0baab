"""Training PyTorch models: operators, trainers, and the ways to spread them.

`train.report` and the other names of a trial and its settings are those of `trainkit.tune`, where scripts of
Ray 2.x look for them.
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
