"""How an estimator is trained by portions: what is found out about it, and how its training is divided."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.cluster import KMeans
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.linear_model import (
    ElasticNet,
    LogisticRegression,
    SGDClassifier,
)
from sklearn.mixture import GaussianMixture
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from tests.conftest import run_python
from trainkit.errors import ConfigError
from trainkit.sklearn.incremental import (
    IncrementalMethod,
    MethodKind,
    end_of,
    incremental_method,
    require_free,
    trained_step,
)


class CatBoost(BaseEstimator):  # type: ignore[misc]
    """Goes by the name and module of CatBoost's, which is all that detection reads."""

    def __init__(self, iterations: int | None = None, n_estimators: int | None = None) -> None:
        self.iterations = iterations
        self.n_estimators = n_estimators


CatBoost.__module__ = "catboost.core"


class CatBoostClassifier(CatBoost):
    """As CatBoost's own, a class that extends `CatBoost`."""


class GrowsAndPasses(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Has all that detection looks for."""

    def __init__(self, warm_start: bool = False, max_iter: int = 10, n_estimators: int = 10) -> None:
        self.warm_start = warm_start
        self.max_iter = max_iter
        self.n_estimators = n_estimators

    def partial_fit(self, X: Any, y: Any) -> GrowsAndPasses:
        return self


class Grows(BaseEstimator):  # type: ignore[misc]
    """An ensemble that doesn't extend scikit-learn's."""

    def __init__(self, warm_start: bool = False, n_estimators: int = 10) -> None:
        self.warm_start = warm_start
        self.n_estimators = n_estimators


# --- what is found out ------------------------------------------------------------------------------


# row 1.38
@pytest.mark.parametrize(
    ("estimator", "kind", "resource"),
    [
        (SGDClassifier(), MethodKind.PARTIAL_FIT, None),
        (OneVsRestClassifier(SGDClassifier()), MethodKind.PARTIAL_FIT, None),
        (MLPClassifier(), MethodKind.PARTIAL_FIT, None),
        (GrowsAndPasses(), MethodKind.PARTIAL_FIT, None),
        (MLPClassifier(solver="lbfgs"), MethodKind.WARM_START_ITER, "max_iter"),
        (LogisticRegression(), MethodKind.WARM_START_ITER, "max_iter"),
        (ElasticNet(), MethodKind.WARM_START_ITER, "max_iter"),
        (GaussianMixture(), MethodKind.WARM_START_ITER, "max_iter"),
        (HistGradientBoostingRegressor(), MethodKind.WARM_START_ITER, "max_iter"),
        (RandomForestClassifier(), MethodKind.WARM_START_ENSEMBLE, "n_estimators"),
        (BaggingClassifier(), MethodKind.WARM_START_ENSEMBLE, "n_estimators"),
        (GradientBoostingClassifier(), MethodKind.WARM_START_ENSEMBLE, "n_estimators"),
        (Grows(), MethodKind.WARM_START_ENSEMBLE, "n_estimators"),
        (CatBoost(), MethodKind.CATBOOST, "iterations"),
        (CatBoostClassifier(n_estimators=50), MethodKind.CATBOOST, "n_estimators"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseEstimator) else None,
)
def test_each_estimator_is_trained_in_the_way_that_suits_it(
    estimator: Any, kind: MethodKind, resource: str | None
) -> None:
    way = incremental_method(estimator)
    assert (way.kind, way.resource) == (kind, resource)


@pytest.mark.external
def test_detection_loads_no_booster() -> None:
    script = (
        "import sys; from sklearn.linear_model import SGDClassifier;"
        "from trainkit.sklearn.incremental import incremental_method; incremental_method(SGDClassifier());"
        "print(*{'xgboost', 'lightgbm', 'catboost', 'sklearn.ensemble'} & set(sys.modules))"
    )
    done = run_python("-c", script)
    assert done.stdout.strip() == ""


def test_iterations_of_one_fit_and_of_all_are_told_apart() -> None:
    assert not incremental_method(LogisticRegression()).running_total
    assert incremental_method(HistGradientBoostingRegressor()).running_total
    assert incremental_method(RandomForestClassifier()).running_total


# row 1.38
@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (SVC(), r"SVC can't be trained a portion at a time.*set resource='n_samples'.*early_stopping=None"),
        (KMeans(), "KMeans can't be trained"),
        (DecisionTreeClassifier(), "DecisionTreeClassifier can't be trained"),
        (AdaBoostClassifier(), "AdaBoostClassifier can't be trained"),
        (VotingClassifier([("rf", RandomForestClassifier())]), "VotingClassifier can't be trained"),
        (OneVsRestClassifier(SVC()), "OneVsRestClassifier can't be trained"),
        (LogisticRegression(solver="liblinear"), r"restarts its training with each fit.*use solver='lbfgs'"),
        (
            SGDClassifier(early_stopping=True),
            r"SGDClassifier\(early_stopping=True\).*leave one of the two out",
        ),
        (MLPClassifier(early_stopping=True), r"MLPClassifier\(early_stopping=True\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseEstimator) else None,
)
def test_what_cannot_be_done_is_said_with_the_alternative(estimator: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        incremental_method(estimator)


def test_boosters_with_a_stop_of_their_own_are_refused() -> None:
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    with pytest.raises(ConfigError, match=r"early_stopping_rounds=5.*leave one of the two out"):
        incremental_method(xgboost.XGBClassifier(early_stopping_rounds=5))
    with pytest.raises(ConfigError, match=r"early_stopping_round=5"):
        incremental_method(lightgbm.LGBMClassifier(early_stopping_round=5))
    with pytest.raises(ConfigError, match=r"builds its whole forest at once.*use XGBClassifier"):
        incremental_method(xgboost.XGBRFClassifier())
    with pytest.raises(ConfigError, match=r"num_iterations=50\) overrides n_estimators"):
        incremental_method(lightgbm.LGBMClassifier(num_iterations=50))


# --- pipelines --------------------------------------------------------------------------------------


def test_a_pipeline_that_can_be_trained_as_a_whole_is() -> None:
    class Passing(Pipeline):  # type: ignore[misc]
        def partial_fit(self, X: Any, y: Any) -> Passing:
            return self

    pipeline = Passing([("sgd", SGDClassifier())])
    assert trained_step(pipeline, last_step=False) is pipeline


# --- what is searched -------------------------------------------------------------------------------


# row 1.38
@pytest.mark.parametrize(
    ("estimator", "searched", "prefix"),
    [
        (RandomForestClassifier(), "n_estimators", ""),
        (LogisticRegression(), "max_iter", ""),
        (LogisticRegression(), "warm_start", ""),
        (GradientBoostingClassifier(), "gb__n_estimators", "gb__"),
        (CatBoost(), "num_trees", ""),
        (CatBoost(), "n_estimators", ""),
    ],
)
def test_the_resource_cannot_be_searched(estimator: Any, searched: str, prefix: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{searched} cannot be searched.*remove {searched} from the search"
    ):
        require_free(incremental_method(estimator), {"max_depth", searched}, prefix)


# --- the division -----------------------------------------------------------------------------------


PORTIONS = st.integers(1, 200)


@given(PORTIONS, st.integers(0, 10_000))
def test_a_training_is_divided_evenly_and_whole(portions: int, more: int) -> None:
    maximum = portions + more
    ends = [end_of(portion, maximum, portions) for portion in range(portions + 1)]
    sizes = [after - before for before, after in itertools.pairwise(ends)]
    assert ends[0] == 0
    assert ends[-1] == maximum
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


WAY = IncrementalMethod(MethodKind.WARM_START_ENSEMBLE, "n_estimators", default=100)


def test_a_training_may_be_left_to_the_default() -> None:
    assert WAY.maximum({}, 10) == WAY.maximum({"n_estimators": None}, 10) == 100
    assert WAY.maximum({"n_estimators": 30}, 30) == 30
    assert IncrementalMethod(MethodKind.PARTIAL_FIT).maximum({"max_iter": 1000}, 7) == 7
