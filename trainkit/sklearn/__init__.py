"""Searches over scikit-learn estimators: `GridSearchCV` and `RandomizedSearchCV` on the tuner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainkit.lazy import lazily
from trainkit.tune.core.checks import load

if TYPE_CHECKING:
    from trainkit.sklearn.search import TuneGridSearchCV, TuneSearchCV

__all__ = ["TuneGridSearchCV", "TuneSearchCV"]

# Loaded when first used: not everyone has scikit-learn, and a worker takes only what evaluates a candidate.
_HOME_OF = {
    "TuneGridSearchCV": "trainkit.sklearn.search",
    "TuneSearchCV": "trainkit.sklearn.search",
}

_get, __dir__ = lazily(__name__, _HOME_OF)


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        load("sklearn", "searches over estimators", "sklearn")
    return _get(name)
