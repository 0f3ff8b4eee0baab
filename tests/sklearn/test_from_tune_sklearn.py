"""Searches as tune-sklearn 0.5's README and examples have them: the calls are theirs, the data is smaller.

Row 1.8: of their scripts only the import changes. README of https://github.com/ray-project/tune-sklearn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

from tests.conftest import session_fixture
from trainkit import tune
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.tune.schedulers import MedianStoppingRule
from trainkit.tune.search.optuna import OptunaSearch
from trainkit.tune.stopper import TrialPlateauStopper

X, Y = make_classification(n_samples=300, n_features=20, n_informative=10, n_classes=3, random_state=0)
TRAIN, TEST, Y_TRAIN, Y_TEST = train_test_split(X, Y, test_size=60, random_state=0)


session = session_fixture(engine="inline", num_cpus=2)


def accuracy(search: Any) -> float:
    predicted = search.fit(TRAIN, Y_TRAIN).predict(TEST)
    return float(np.count_nonzero(np.array(predicted) == np.array(Y_TEST)) / len(predicted))


class Settling(BaseEstimator):  # type: ignore[misc]
    """Estimator whose score changes with each pass until the fourth."""

    def __init__(self, height: float = 0.0) -> None:
        self.height = height

    def partial_fit(self, X: Any, y: Any) -> Settling:
        self.passes_ = getattr(self, "passes_", 0) + 1
        return self

    def fit(self, X: Any, y: Any) -> Settling:
        return self.partial_fit(X, y)

    def score(self, X: Any, y: Any) -> float:
        return self.height + (-1.0) ** self.passes_ * max(0, 4 - self.passes_)


def test_a_plateau_of_the_objective_ends_a_candidate() -> None:
    search = TuneGridSearchCV(
        Settling(),
        {"height": [2.0, 3.0]},
        cv=2,
        max_iters=20,
        early_stopping="MedianStoppingRule",
        stopper=TrialPlateauStopper(metric="objective"),
    ).fit(X, Y)
    assert search.best_params_ == {"height": 3.0}
    # The fourth is the first of those that are equal, and the stopper waits for four of them.
    assert max(search.cv_results_["training_iteration"]) == 7


def test_the_objective_is_that_of_the_scorer_that_decides() -> None:
    search = TuneGridSearchCV(
        SGDClassifier(random_state=0), {"alpha": [1e-3]}, scoring=["accuracy", "f1_macro"], refit="f1_macro"
    ).fit(X, Y)
    told = search.analysis_.dataframe().iloc[0]
    assert told["objective"] == told["average_test_f1_macro"] != told["average_test_accuracy"]


def test_a_searcher_with_a_space_of_its_own_searches_that() -> None:
    own = {"alpha": tune.uniform(0.2, 0.5)}
    searcher = OptunaSearch(own, metric="average_test_score", mode="max")
    with pytest.warns(UserWarning, match="OptunaSearch has its own space"):
        search = TuneSearchCV(
            SGDClassifier(random_state=0), {"alpha": (1e-4, 1e-3)}, search_optimization=searcher, n_trials=2
        ).fit(X, Y)
    assert all(0.2 <= each["alpha"] <= 0.5 for each in search.cv_results_["params"])


def test_bohb_over_lists_and_tuples() -> None:
    space = {
        "loss": ["squared_hinge", "hinge"],
        "alpha": (1e-4, 1e-1, "log-uniform"),
        "epsilon": (1e-2, 1e-1),
    }
    search = TuneSearchCV(
        SGDClassifier(random_state=0),
        param_distributions=space,
        n_trials=2,
        max_iters=10,
        search_optimization="bohb",
    )
    assert accuracy(search) > 1 / 3
    assert all(1e-4 <= each["alpha"] <= 1e-1 for each in search.cv_results_["params"])


@pytest.mark.parametrize("optimization", ["bayesian", "hyperopt"])
def test_a_searcher_with_a_scheduler_object(optimization: str) -> None:
    search = TuneSearchCV(
        SGDClassifier(random_state=0),
        {"alpha": (1e-4, 1.0), "epsilon": (0.01, 0.1)},
        search_optimization=optimization,
        n_trials=3,
        early_stopping=MedianStoppingRule(grace_period=10.0),
        max_iters=10,
    )
    assert accuracy(search) > 1 / 3
    assert len(search.cv_results_["params"]) == 3


def test_expressions_of_hyperopt_beside_tuples() -> None:
    from hyperopt import hp

    space = {
        "n_estimators": hp.uniformint("n_estimators", 5, 9),
        "min_weight_fraction_leaf": (0.0, 0.5),
        "min_samples_leaf": hp.uniformint("min_samples_leaf", 1, 5),
    }
    search = TuneSearchCV(RandomForestClassifier(), space, search_optimization="hyperopt", n_trials=3)
    assert accuracy(search) > 1 / 4
    assert all(type(each["n_estimators"]) is int for each in search.cv_results_["params"])
