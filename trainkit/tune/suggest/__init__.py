"""Searchers under the names of older scripts: `tune.suggest` became `tune.search`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from trainkit.tune import search

_MODULES = {
    "basic_variant": "basic_variant",
    "concurrency_limiter": "concurrency_limiter",
    "optuna": "optuna",
    "repeater": "repeater",
    "suggestion": "searcher",
}

for _old, _new in _MODULES.items():
    sys.modules[f"{__name__}.{_old}"] = importlib.import_module(f"{search.__name__}.{_new}")


def __getattr__(name: str) -> Any:
    return getattr(search, name)


def __dir__() -> list[str]:
    return dir(search)
