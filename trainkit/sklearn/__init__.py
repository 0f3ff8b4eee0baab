"""Searches over scikit-learn estimators: `GridSearchCV` and `RandomizedSearchCV` on the tuner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainkit.tune.elsewhere import lazily

if TYPE_CHECKING:
    from trainkit.sklearn.grid import TuneGridSearchCV
    from trainkit.sklearn.search import TuneSearchCV

__all__ = ["TuneGridSearchCV", "TuneSearchCV"]

# Loaded when first used: a worker takes only what evaluates a candidate.
_HOME_OF = {
    "TuneGridSearchCV": "grid",
    "TuneSearchCV": "search",
}

__getattr__, __dir__ = lazily(__name__, _HOME_OF)
