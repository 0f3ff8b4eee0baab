"""Several portions at once come to the same, to the last bit, as scikit-learn's own passes in one fit."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Perceptron, SGDClassifier, SGDOneClassSVM, SGDRegressor
from sklearn.neural_network import MLPClassifier

from tests.sklearn.by_hand import X, Y
from trainkit.sklearn.incremental_fit import IncrementalFit


def same(one: Any, other: Any) -> bool:
    """Whether two fitted classifiers decide the same."""
    how = "predict_proba" if hasattr(one, "predict_proba") else "decision_function"
    return np.array_equal(getattr(one, how)(X), getattr(other, how)(X))


# row 1.38
@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor, Perceptron, SGDOneClassSVM])
def test_several_portions_at_once_are_the_passes_of_one_fit(kind: Any) -> None:
    labels = () if kind is SGDOneClassSVM else (Y,)
    piecewise = IncrementalFit(kind(random_state=0), 9, last_step=True, labels=Y)
    piecewise.advance(lambda: (X, labels[0] if labels else None, {}), 6)
    whole = kind(random_state=0, max_iter=6, tol=None).fit(X, *labels)
    assert np.array_equal(piecewise.estimator.coef_, whole.coef_)
    assert piecewise.estimator.get_params() == kind(random_state=0).get_params()
    piecewise.advance(lambda: (X, labels[0] if labels else None, {}), 3)
    assert piecewise.done == 9
    assert piecewise.estimator.t_ == 9 * len(X) + 1
    pickle.loads(pickle.dumps(piecewise.estimator))


class Counts(SGDClassifier):
    """Counts its calls."""

    calls = 0

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        self.calls += 1
        return super().partial_fit(X, y, classes, sample_weight)


@pytest.mark.parametrize(
    "estimator", [Counts(random_state=0), MLPClassifier((8,), random_state=0)], ids=["own class", "MLP"]
)
def test_others_are_called_once_for_each_of_several_portions(estimator: Any) -> None:
    piecewise = IncrementalFit(clone(estimator), 4, last_step=True, labels=Y)
    piecewise.advance(lambda: (X, Y, {}), 3)
    by_hand = clone(estimator)
    for _ in range(3):
        by_hand.partial_fit(X, Y, classes=np.unique(Y))
    assert same(piecewise.estimator, by_hand)
    assert getattr(piecewise.estimator, "calls", 3) == 3


def test_several_portions_of_an_ensemble_are_one_fit() -> None:
    forest = RandomForestClassifier(n_estimators=9, random_state=0)
    piecewise = IncrementalFit(clone(forest), 9, last_step=True, labels=Y)
    for portions in (1, 3, 5):
        piecewise.advance(lambda: (X, Y, {}), portions)
    assert same(piecewise.estimator, clone(forest).fit(X, Y))
