"""What searches with early stopping are compared with: the same training, made here."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from trainkit.sklearn.incremental_fit import IncrementalFit

X, Y = load_digits(return_X_y=True)
X, Y = X[:180] / 16, Y[:180]
ALPHAS = [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0]
SGD = SGDClassifier(random_state=0)
FOLDS = 3


def by_hand(
    estimator: Any, done: int, portions: int, X: Any, y: Any, *, from_rung_to_rung: bool = False
) -> Any:
    """The estimator after so many portions, trained here; `test_piecewise` shows what that comes to.

    With `from_rung_to_rung` those between two rungs go together, as with `early_stopping=True`.
    """
    piecewise = IncrementalFit(clone(estimator), portions, last_step=True, labels=Y)
    rungs = [*(rung for rung in (1, 4, 16, 64) if rung < portions), portions]
    with threadpool_limits(1):  # one CPU, as a trial has
        for end in rungs if from_rung_to_rung else range(1, done + 1):
            if end <= done:
                piecewise.advance(lambda: (X, y, {}), end - piecewise.done)
    return piecewise.estimator


def scores_by_hand(estimator: Any, done: int, portions: int, **how: bool) -> list[float]:
    """Its score in each fold."""
    return [
        by_hand(estimator, done, portions, X[train], Y[train], **how).score(X[test], Y[test])
        for train, test in StratifiedKFold(FOLDS).split(X, Y)
    ]


def split_scores(search: Any, candidate: int) -> list[float]:
    """The score of a candidate in each fold."""
    return [float(search.cv_results_[f"split{split}_test_score"][candidate]) for split in range(FOLDS)]
