"""scikit-learn's own checks of an estimator, as its own suite runs them over its searches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sklearn.base import is_regressor
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_param_validation,
    estimator_checks_generator,
)

import trainkit
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV

pytestmark = pytest.mark.usefixtures("session")


SEARCHED = [
    (Ridge(), {"alpha": [0.1, 1.0]}),
    (Pipeline([("pca", PCA()), ("classifier", LogisticRegression())]), {"classifier__C": [0.1, 1.0]}),
]
NAMES = ["ridge", "classifier"]
SEARCHES = [
    TuneGridSearchCV(*SEARCHED[0], cv=2),
    TuneSearchCV(*SEARCHED[1], n_trials=2, cv=2, random_state=0, error_score="raise"),
]
"""A regressor by one class, a pipeline that ends in a classifier by the other."""

TAKES_SEVERAL_TARGETS = "Ridge takes a column of targets without the warning that is asked for"


def excused(search: Any) -> dict[str, str]:
    """The one check that scikit-learn's own search over such an estimator fails too."""
    return {"check_supervised_y_2d": TAKES_SEVERAL_TARGETS} if is_regressor(search) else {}


@pytest.mark.parametrize(("estimator", "space"), SEARCHED, ids=NAMES)
def test_what_is_excused_scikit_learns_own_search_fails_too(estimator: Any, space: Any) -> None:
    theirs = GridSearchCV(estimator, space, cv=2)
    for name in excused(theirs):
        with pytest.raises(AssertionError):
            getattr(estimator_checks, name)("GridSearchCV", theirs)


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """In this process, as hundreds of very small fits are checked."""
    trainkit.init(engine="inline", num_cpus=1)
    yield
    trainkit.shutdown()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        for category in (FutureWarning, ConvergenceWarning, UserWarning):
            warnings.simplefilter("ignore", category)
        yield


def name_of(value: Any) -> str:
    """Return the name of a search or of a check: scikit-learn's own, a search's text, takes long to make."""
    for name, search in zip(NAMES, SEARCHES, strict=True):
        if value is search:
            return name
    while isinstance(value, partial):
        value = value.func
    return str(value.__name__)


CHECKS = [
    pair
    for search in SEARCHES
    for pair in estimator_checks_generator(search, expected_failed_checks=excused(search), mark="xfail")
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS, ids=name_of)
def test_checks_of_an_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_arguments_are_validated(search: Any) -> None:
    check_param_validation(type(search).__name__, search)


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_names_of_columns_are_kept_and_compared(search: Any) -> None:
    check_dataframe_column_names_consistency(type(search).__name__, search)
