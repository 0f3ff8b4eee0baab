"""Searches over scikit-learn estimators: `GridSearchCV` and `RandomizedSearchCV` on the tuner."""

from __future__ import annotations

from trainkit.sklearn.grid import TuneGridSearchCV

__all__ = ["TuneGridSearchCV"]
