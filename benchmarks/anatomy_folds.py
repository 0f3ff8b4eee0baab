"""Estimator for the folds of `benchmarks.anatomy`; its scores contain the moments of fit and score."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB

FOLDS = 3
DATA = tuple(array[:200] for array in load_digits(return_X_y=True))
SPLITS = list(StratifiedKFold(FOLDS).split(*DATA))


class Stamped(GaussianNB):
    """Gaussian naive Bayes that records when it was fitted."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit, and record the moments before and after."""
        self.fit_ = time.perf_counter_ns()
        super().fit(X, y, sample_weight)
        self.fitted_ = time.perf_counter_ns()
        return self


def scored(model: Stamped, X: Any, y: Any) -> dict[str, float]:
    """Return score and moments; a double can represent the nanoseconds of a hundred days."""
    score = float(np.mean(model.predict(X) == y))
    return {"score": score, "fit": model.fit_, "fitted": model.fitted_, "scored": time.perf_counter_ns()}


def parts_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the microseconds of a fold and its stages, from all folds of a search; the whole is a mean."""
    fit, fitted, ended = (
        np.sort([results[f"split{fold}_test_{moment}"] for fold in range(FOLDS)], axis=None) / 1e3
        for moment in ("fit", "fitted", "scored")
    )
    gaps = fit[1:] - ended[:-1]
    to_next = np.arange(1, len(fit)) % FOLDS == 0
    return {
        "a fold": float((ended[-1] - ended[FOLDS - 1]) / (len(fit) - FOLDS)),
        "fit": float(np.median(fitted - fit)),
        "score": float(np.median(ended - fitted)),
        "worker: from a candidate's fold to its next": float(np.median(gaps[~to_next])),
        "from a candidate to the next, told and committed": float(np.median(gaps[to_next])),
    }
