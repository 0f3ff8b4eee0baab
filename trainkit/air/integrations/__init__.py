"""Tracking tools by the name of `ray.air.integrations`; at home in `trainkit.tune.integrations`."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = ("mlflow", "wandb")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
