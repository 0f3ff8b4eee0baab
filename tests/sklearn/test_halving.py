"""Searches that halve: scikit-learn's survivors, scores and columns; classes with rounds of their own."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from scipy.stats import loguniform, randint
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    KFold,
)
from sklearn.model_selection._search import BaseSearchCV
from sklearn.svm import SVC

from tests.sklearn.scripted_estimator import EndsAfter
from trainkit.errors import ConfigError
from trainkit.sklearn import (
    TuneGridSearchCV,
    TuneHalvingGridSearchCV,
    TuneHalvingRandomSearchCV,
)
from trainkit.sklearn.base import TuneBaseSearchCV

X, Y = make_classification(240, 6, n_informative=4, random_state=0)
GRID = {"C": [0.01, 0.1, 1.0, 10.0, 100.0], "gamma": [0.01, 0.1, 1.0]}
SPACE = {"C": loguniform(1e-2, 1e2), "gamma": loguniform(1e-3, 1.0)}


def assert_same(ours: Any, theirs: Any) -> None:
    """Assert that two fitted searches have equal results, but for times."""
    assert sorted(ours.cv_results_) == sorted(theirs.cv_results_)
    for key, values in theirs.cv_results_.items():
        if not key.endswith("_time"):
            np.testing.assert_array_equal(ours.cv_results_[key], values, err_msg=key)
    for name in vars(theirs):
        if name.endswith("_") and not name.startswith("_") and name not in OBJECTS:
            assert getattr(ours, name) == getattr(theirs, name), name
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


OBJECTS = {"cv_results_", "best_estimator_", "scorer_", "refit_time_"}


@pytest.mark.parametrize(
    "settings",
    [
        {"random_state": 3},
        {"random_state": 0, "min_resources": 40, "max_resources": 200, "cv": KFold(3)},
        {"random_state": 1, "min_resources": 60, "factor": 2, "aggressive_elimination": True},
    ],
)
def test_the_same_candidates_survive_a_grid(settings: dict[str, Any]) -> None:
    settings = {"cv": 3, **settings}
    theirs = HalvingGridSearchCV(SVC(), GRID, **settings).fit(X, Y)
    assert_same(TuneHalvingGridSearchCV(SVC(), GRID, **settings).fit(X, Y), theirs)
    assert len(theirs.n_resources_) > 1


@pytest.mark.parametrize(
    "settings",
    [
        {"n_candidates": 9},
        {"n_candidates": "exhaust", "min_resources": 60, "factor": 2},
        {"n_candidates": 6, "min_resources": "exhaust", "return_train_score": False},
    ],
)
def test_the_same_random_candidates_survive(settings: dict[str, Any]) -> None:
    settings = {"cv": 3, "random_state": 7, **settings}
    theirs = HalvingRandomSearchCV(SVC(), SPACE, **settings).fit(X, Y)
    assert_same(TuneHalvingRandomSearchCV(SVC(), SPACE, **settings).fit(X, Y), theirs)


@pytest.mark.slow
def test_a_parameter_of_the_estimator_grows() -> None:
    settings = {"resource": "n_estimators", "max_resources": 18, "min_resources": 2, "random_state": 0}
    forest, space = RandomForestClassifier(random_state=0), {"max_depth": randint(1, 6)}
    theirs = HalvingRandomSearchCV(forest, space, cv=2, **settings).fit(X, Y)
    ours = TuneHalvingRandomSearchCV(forest, space, cv=2, **settings).fit(X, Y)
    assert_same(ours, theirs)
    assert len(ours.best_estimator_.estimators_) == ours.n_resources_[-1] == 18


@pytest.mark.parametrize("budget", [1e-3, timedelta(milliseconds=1)])
def test_a_budget_is_of_all_rounds(budget: Any) -> None:
    search = TuneHalvingGridSearchCV(SVC(), GRID, cv=2, random_state=0, time_budget_s=budget)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of candidates that were not complete
        try:
            search.fit(X, Y)
        except ConfigError as error:
            assert "no candidate was evaluated on all folds" in str(error)
        else:
            assert search.n_iterations_ == 1


def test_a_search_that_ends_early_says_only_what_it_knows() -> None:
    last = ("n_remaining_candidates_", "n_required_iterations_", "n_possible_iterations_")
    search = TuneHalvingGridSearchCV(SVC(), {"C": [1, 2, 3]}, cv=2, random_state=0, n_jobs=1).fit(X, Y)
    assert search.n_iterations_ == 2 and all(hasattr(search, name) for name in last)
    search.stopper = EndsAfter(2)  # complete candidates
    with pytest.warns(UserWarning, match="a second fit evaluates the previous rounds again"):
        search.fit(X, Y)
    assert search.n_iterations_ == len(search.n_resources_) == 1
    assert not any(hasattr(search, name) for name in last), "an earlier fit's"


def test_it_is_an_estimator_with_parameters() -> None:
    search = TuneHalvingRandomSearchCV(SVC(), SPACE, n_candidates=3, factor=2, name=None, sk_n_jobs=1)
    assert clone(search).get_params(deep=False).keys() == search.get_params(deep=False).keys()
    for ours, theirs in (
        (TuneHalvingGridSearchCV, HalvingGridSearchCV),
        (TuneHalvingRandomSearchCV, HalvingRandomSearchCV),
    ):
        taken, there = (inspect.signature(cls).parameters for cls in (ours, theirs))
        assert {name: str(taken[name].default) for name in there} == {
            name: str(each.default) for name, each in there.items()
        }


# --- classes with a `_run_search` of their own ----------------------------------------------------


def going_by_results(base: type) -> Callable[..., Any]:
    """Return a class that evaluates C=0.1 only if C=1 is better than C=10."""

    class Sequential(base):  # type: ignore[misc]
        def __init__(self, estimator: Any, **settings: Any) -> None:
            super().__init__(estimator, **settings)

        def _run_search(self, evaluate_candidates: Any) -> None:
            results = evaluate_candidates([{"C": 1}, {"C": 10}], more_results={"round": [0, 0]})
            better = results["mean_test_score"][0] > results["mean_test_score"][1]
            evaluate_candidates([{"C": 0.1 if better else 100}], more_results={"round": [1]})

    return Sequential


@pytest.mark.parametrize("settings", [{}, {"return_train_score": True}, {"scoring": "neg_log_loss"}])
def test_a_class_with_rounds_of_its_own(settings: dict[str, Any]) -> None:
    theirs = going_by_results(BaseSearchCV)(LogisticRegression(), cv=3, **settings).fit(X, Y)
    ours = going_by_results(TuneBaseSearchCV)(LogisticRegression(), cv=3, **settings).fit(X, Y)
    assert_same(ours, theirs)
    assert list(ours.cv_results_["round"]) == [0, 0, 1]


def test_a_class_that_extends_a_search_decides_itself() -> None:
    class Twice(TuneGridSearchCV):
        def _run_search(self, evaluate_candidates: Any) -> None:
            evaluate_candidates([{"C": 1}])
            evaluate_candidates([{"C": 2}, {"C": 3}])

    found = Twice(LogisticRegression(), {"C": [7]}, cv=2).fit(X, Y)
    assert found.cv_results_["params"] == [{"C": 1}, {"C": 2}, {"C": 3}]
    with pytest.raises(ConfigError, match="not supported by Twice, whose _run_search decides"):
        Twice(LogisticRegression(), {"C": [7]}, early_stopping=True, max_iters=3).fit(X, Y)


def test_rounds_without_a_candidate() -> None:
    class Nothing(TuneBaseSearchCV):
        def __init__(self, estimator: Any) -> None:
            super().__init__(estimator)

        def _run_search(self, evaluate_candidates: Any) -> None:
            pass

    with pytest.raises(ValueError, match=r"No fits were performed.*_run_search"):
        Nothing(SVC()).fit(X, Y)


def test_several_scorers_are_refused_as_by_scikit_learn() -> None:
    for cls in (HalvingGridSearchCV, TuneHalvingGridSearchCV):
        with pytest.raises(ValueError, match="scoring"):
            cls(SVC(), {"C": [1, 2]}, scoring=["accuracy", "f1"]).fit(X, Y)
