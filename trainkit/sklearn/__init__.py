"""Searches over scikit-learn estimators: `GridSearchCV` and `RandomizedSearchCV` on the tuner."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainkit.tune.optional import load

if TYPE_CHECKING:
    from trainkit.sklearn.grid import TuneGridSearchCV
    from trainkit.sklearn.search import TuneSearchCV

__all__ = ["TuneGridSearchCV", "TuneSearchCV"]

_HOMES = {"TuneGridSearchCV": "trainkit.sklearn.grid", "TuneSearchCV": "trainkit.sklearn.search"}


def __getattr__(name: str) -> Any:
    # Loaded when first used: scikit-learn takes a second, and not everyone has it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load("sklearn", "searches over estimators", "sklearn")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
