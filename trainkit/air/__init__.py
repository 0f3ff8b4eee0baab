"""Ray AIR's names where scripts of Ray 2.0 to 2.x look for them: `ray.air` with another first word.

The homes of all this are `trainkit.tune` and its modules. Loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainkit.air import integrations as integrations
    from trainkit.air import session as session
    from trainkit.tune.checkpoint import Checkpoint
    from trainkit.tune.config import CheckpointConfig, FailureConfig, RunConfig
    from trainkit.tune.outcome.result import Result
    from trainkit.tune.scaling import ScalingConfig

_HOMES = {
    "Checkpoint": "trainkit.tune.checkpoint",
    "CheckpointConfig": "trainkit.tune.config",
    "FailureConfig": "trainkit.tune.config",
    "Result": "trainkit.tune.outcome.result",
    "RunConfig": "trainkit.tune.config",
    "ScalingConfig": "trainkit.tune.scaling",
}
_MODULES = ("checkpoint", "config", "integrations", "result", "session")

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "integrations",
    "session",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
