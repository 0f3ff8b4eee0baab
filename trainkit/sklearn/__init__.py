"""Searches over scikit-learn estimators: `GridSearchCV` and `RandomizedSearchCV` on the tuner."""

from __future__ import annotations

from trainkit.sklearn.grid import TuneGridSearchCV
from trainkit.sklearn.search import TuneSearchCV

__all__ = ["TuneGridSearchCV", "TuneSearchCV"]
