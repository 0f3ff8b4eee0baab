"""Searches whose candidates are stopped early: their scores, their results, and the refit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from tests.sklearn.by_hand import FOLDS, SGD, X, Y, by_hand, scores_by_hand, split_scores
from tests.sklearn.scripted_estimator import EndsAfter
from trainkit.sklearn import TuneGridSearchCV
from trainkit.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.usefixtures("runtime")


# --- what a candidate's scores are ------------------------------------------------------------------


# row 1.38
@pytest.mark.parametrize(
    ("estimator", "grid", "portions"),
    [
        (SGD, {"alpha": [1e-4, 1.0, 1000.0]}, 4),
        (LogisticRegression(max_iter=20), {"C": [1e-4, 1.0]}, 4),
        (RandomForestClassifier(n_estimators=8, random_state=0), {"max_depth": [1, 4]}, 4),
        (
            HistGradientBoostingRegressor(max_iter=4, max_leaf_nodes=4, random_state=0),
            {"learning_rate": [0.01, 0.5]},
            2,
        ),
        (
            make_pipeline(StandardScaler(), PCA(8, random_state=0), SGD),
            {"sgdclassifier__alpha": [1e-4, 10.0]},
            3,
        ),
        (
            make_pipeline(StandardScaler(), RandomForestClassifier(n_estimators=6, random_state=0)),
            {"randomforestclassifier__max_depth": [1, 3]},
            2,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseEstimator) else "",
)
def test_scores_and_refit_are_those_of_training_by_hand(estimator: Any, grid: Any, portions: int) -> None:
    folds = StratifiedKFold(FOLDS)
    search = TuneGridSearchCV(estimator, grid, early_stopping=True, max_iters=portions, cv=folds).fit(X, Y)
    iterations = search.cv_results_["training_iteration"]
    assert max(iterations) == portions
    for candidate, parameters in enumerate(search.cv_results_["params"]):
        itself = clone(estimator).set_params(**parameters)
        scores = scores_by_hand(itself, iterations[candidate], portions, from_rung_to_rung=True)
        assert split_scores(search, candidate) == scores
    best = clone(estimator).set_params(**search.best_params_)
    refitted = by_hand(best, iterations[search.best_index_], portions, X, Y, from_rung_to_rung=True)
    how = next(each for each in ("predict_proba", "decision_function", "predict") if hasattr(refitted, each))
    assert np.array_equal(getattr(search, how)(X), getattr(refitted, how)(X))


# row 1.38
def test_reports_come_where_something_is_decided_unless_somebody_watches() -> None:
    def reports(how: Any, **arguments: Any) -> list[int]:
        one = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, early_stopping=how, max_iters=6, cv=FOLDS, **arguments)
        (curve,) = one.fit(X, Y).analysis_.trial_dataframes.values()
        return [int(count) for count in curve["training_iteration"]]

    assert reports(True) == [1, 4, 6]
    assert reports(True, stopper=EndsAfter(math.inf)) == [1, 2, 3, 4, 5, 6]
    assert reports("ASHAScheduler") == [1, 2, 3, 4, 5, 6]


# row 1.37
def test_results_have_the_keys_of_scikit_learn_and_one_more() -> None:
    settings: dict[str, Any] = {
        "scoring": ["accuracy", "f1_macro"],
        "refit": "f1_macro",
        "return_train_score": True,
        "cv": FOLDS,
    }
    ours = TuneGridSearchCV(SGD, {"alpha": [1e-3, 1.0]}, early_stopping=True, max_iters=2, **settings).fit(
        X, Y
    )
    theirs = GridSearchCV(SGD, {"alpha": [1e-3, 1.0]}, **settings).fit(X, Y)
    assert set(ours.cv_results_) == {*theirs.cv_results_, "training_iteration"}
    for name, values in theirs.cv_results_.items():
        assert type(ours.cv_results_[name]) is type(values), name
    assert ours.best_score_ == ours.cv_results_["mean_test_f1_macro"][ours.best_index_]
    train, _ = next(StratifiedKFold(FOLDS).split(X, Y))
    itself = by_hand(clone(SGD).set_params(alpha=1e-3), 2, 2, X[train], Y[train])
    assert ours.cv_results_["split0_train_accuracy"][0] == itself.score(X[train], Y[train])


# row 1.37
def test_weights_are_split_with_the_samples() -> None:
    weights = np.random.default_rng(0).uniform(0.1, 2, len(Y))
    search = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, early_stopping=True, max_iters=2, cv=FOLDS)
    search.fit(X, Y, sample_weight=weights)
    train, test = next(StratifiedKFold(FOLDS).split(X, Y))
    itself = clone(SGD).set_params(alpha=1e-3)
    for _ in range(2):
        itself.partial_fit(X[train], Y[train], classes=np.unique(Y), sample_weight=weights[train])
    # scikit-learn hands weights to the scorer too.
    assert search.cv_results_["split0_test_score"][0] == itself.score(X[test], Y[test], weights[test])


def test_a_scorer_of_ones_own_is_given_the_whole_pipeline() -> None:
    def named(estimator: Any, X: Any, y: Any) -> float:
        return float(estimator.named_steps["pca"].n_components_ + accuracy_score(y, estimator.predict(X)))

    pipeline = make_pipeline(PCA(5), SGD)
    search = TuneGridSearchCV(
        pipeline, {"sgdclassifier__alpha": [1e-3]}, early_stopping=True, max_iters=2, cv=2, scoring=named
    ).fit(X, Y)
    assert search.best_score_ > 5.5


# --- candidates that differ in how they are trained -------------------------------------------------


def test_the_last_step_itself_may_be_searched() -> None:
    pipeline = Pipeline([("scale", StandardScaler()), ("model", SVC())])
    grid = {"model": [SGD, RandomForestClassifier(n_estimators=4, max_depth=3, random_state=0)]}
    search = TuneGridSearchCV(pipeline, grid, early_stopping="fifo", max_iters=2, cv=FOLDS).fit(X, Y)
    for candidate, model in enumerate(grid["model"]):
        itself = clone(pipeline).set_params(model=clone(model))
        assert split_scores(search, candidate) == scores_by_hand(itself, 2, 2)
    assert not hasattr(grid["model"][0], "coef_")


def test_what_decides_may_be_searched() -> None:
    grid = {"solver": ["lbfgs", "liblinear"]}
    binary = Y < 5
    search = TuneGridSearchCV(
        LogisticRegression(solver="liblinear", max_iter=10),
        grid,
        early_stopping="fifo",
        max_iters=2,
        cv=2,
        error_score=0.0,
    )
    with pytest.warns(FitFailedWarning, match="restarts its training with each fit"):
        search.fit(X, binary)
    assert search.best_params_ == {"solver": "lbfgs"}


def test_the_search_itself_is_left_as_it_was() -> None:
    scheduler = ASHAScheduler(max_t=4, grace_period=3)
    search = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, early_stopping=scheduler, max_iters=4, cv=2)
    first = search.fit(X, Y).cv_results_
    assert scheduler.metric is None
    assert clone(search).get_params()["max_iters"] == 4
    again = search.fit(X, Y).cv_results_
    assert np.array_equal(first["mean_test_score"], again["mean_test_score"])
