"""Searches over scikit-learn estimators: `GridSearchCV` and `RandomizedSearchCV` on the tuner."""

from __future__ import annotations

from typing import Any

from trainkit.lazy import from_stub
from trainkit.tune.core.checks import load

# Names are loaded on first use, because scikit-learn is optional, and because a worker needs only the module
# that evaluates candidates.
_get, __dir__, __all__ = from_stub(__name__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        load("sklearn", "searches over estimators", "sklearn")
    return _get(name)
