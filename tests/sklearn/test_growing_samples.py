"""Searches whose candidates are fitted on more and more of the samples, and the order of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from tests.sklearn.by_hand import X, Y
from trainkit.errors import ConfigError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.sklearn.incremental import growing_order

FOLDS = StratifiedKFold(3)
GROWING: dict[str, Any] = {"early_stopping": True, "resource": "n_samples"}


# --- the order ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_each_beginning_has_the_classes_in_their_shares(classes: list[int], seed: int) -> None:
    labels = np.array(classes)
    order = growing_order(labels, len(labels), np.random.RandomState(seed))
    assert sorted(order) == list(range(len(labels)))
    kinds, sizes = np.unique(labels, return_counts=True)
    assert set(labels[order[: len(kinds)]]) == set(kinds)
    for count in range(1, len(labels) + 1):
        there = np.array([np.sum(labels[order[:count]] == kind) for kind in kinds])
        assert np.all(np.abs(there - sizes * count / len(labels)) <= len(kinds))


@given(st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_without_classes_it_is_any_order(count: int, seed: int) -> None:
    order = growing_order(None, count, np.random.RandomState(seed))
    assert sorted(order) == list(range(count))
    assert list(order) == list(growing_order(None, count, np.random.RandomState(seed)))


# --- a search -------------------------------------------------------------------------------------


def scored(
    model: Any, portion: int, portions: int, by_class: bool, x: Any, y: Any, folds: Any
) -> list[float]:
    """Return the scores on each fold of a model that is fitted on a share of the fold's samples."""
    found = []
    for number, (train, test) in enumerate(folds.split(x, y)):
        order = growing_order(y[train] if by_class else None, len(train), np.random.RandomState(number))
        some = train[np.sort(order[: portion * len(train) // portions])]
        found.append(clone(model).fit(x[some], y[some]).score(x[test], y[test]))
    return found


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("portions", [4, 12])
def test_a_candidate_is_scored_by_a_fit_on_its_share_of_the_samples(portions: int) -> None:
    model = make_pipeline(StandardScaler(), SVC())
    grid = {"svc__C": [1e-3, 0.1, 1.0, 10.0], "svc__gamma": [1e-4, 0.02, 1.0]}
    search = TuneGridSearchCV(model, grid, cv=FOLDS, max_iters=portions, **GROWING).fit(X, Y)
    found = search.cv_results_
    assert set(found["training_iteration"]) <= {1, 4, 12}
    assert max(found["training_iteration"]) == found["training_iteration"][search.best_index_] == portions
    for place, parameters in enumerate(found["params"]):
        mine = [found[f"split{fold}_test_score"][place] for fold in range(search.n_splits_)]
        own = clone(model).set_params(**parameters)
        assert mine == scored(own, found["training_iteration"][place], portions, True, X, Y, FOLDS)
    whole = clone(model).set_params(**search.best_params_).fit(X, Y)
    assert np.array_equal(search.best_estimator_.decision_function(X), whole.decision_function(X))


@pytest.mark.usefixtures("runtime")
def test_a_regressor_and_weights_are_taken() -> None:
    x, y = load_diabetes(return_X_y=True)
    folds = KFold(3)
    search = TuneGridSearchCV(
        KNeighborsRegressor(),
        {"n_neighbors": [1, 9]},
        cv=folds,
        max_iters=2,
        **GROWING | {"early_stopping": "fifo"},
    ).fit(x, y)
    for place, parameters in enumerate(search.cv_results_["params"]):
        mine = [search.cv_results_[f"split{fold}_test_score"][place] for fold in range(3)]
        assert mine == scored(KNeighborsRegressor(**parameters), 2, 2, False, x, y, folds)
    weights = np.linspace(0, 1, len(y))
    weighted = TuneGridSearchCV(SVR(), {"C": [1.0, 100.0]}, cv=folds, max_iters=4, **GROWING)
    weighted.fit(x, y, sample_weight=weights)
    again = SVR(**weighted.best_params_).fit(x, y, sample_weight=weights)
    assert np.array_equal(weighted.predict(x), again.predict(x))


class Forgetful(DummyClassifier):
    """Classifier that is the better the fewer samples it has, and has no score of its own."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        return float(self.random_state) / self.seen_

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Forgetful:
        self.seen_ = len(X)
        return super().fit(X, y)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("runtime")
def test_the_best_is_one_of_those_that_had_most_samples() -> None:
    search = TuneGridSearchCV(
        Forgetful(), {"random_state": [1, 2, 3, 4, 5]}, cv=FOLDS, max_iters=4, **GROWING
    ).fit(X, Y)
    assert search.best_params_ == {"random_state": 5}
    assert search.cv_results_["training_iteration"][search.best_index_] == 4
    assert search.best_score_ < max(search.cv_results_["mean_test_score"][:4])


@pytest.mark.usefixtures("runtime")
def test_a_whole_training_has_the_samples_in_their_order() -> None:
    """So it is that of a plain search, also of a model that depends on the order."""
    forest = RandomForestClassifier(n_estimators=5, random_state=0)
    grid, last = {"max_depth": [2, 4]}, {"early_stopping": "fifo", "max_iters": 2, "resource": "n_samples"}
    growing = TuneGridSearchCV(forest, grid, cv=FOLDS, **last).fit(X, Y)
    plain = TuneGridSearchCV(forest, grid, cv=FOLDS).fit(X, Y)
    assert np.array_equal(growing.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])


@pytest.mark.usefixtures("runtime")
def test_a_kernel_of_pairs_has_the_columns_of_the_share() -> None:
    kernel = rbf_kernel(X, gamma=1 / X.shape[1])
    grid = {"C": [1e-3, 1.0, 10.0]}
    given_ = TuneGridSearchCV(SVC(kernel="precomputed"), grid, cv=FOLDS, max_iters=4, **GROWING).fit(
        kernel, Y
    )
    computed = TuneGridSearchCV(SVC(gamma="auto"), grid, cv=FOLDS, max_iters=4, **GROWING).fit(X, Y)
    assert list(given_.cv_results_["mean_test_score"]) == list(computed.cv_results_["mean_test_score"])


@pytest.mark.usefixtures("runtime")
def test_what_cannot_work_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"max_iters=13 .* no sample of all 10 classes.*to 12 or"):
        TuneGridSearchCV(SVC(), {"C": [1.0]}, cv=FOLDS, max_iters=13, **GROWING).fit(X, Y)
    TuneGridSearchCV(SVC(), {"C": [1.0]}, cv=FOLDS, max_iters=12, **GROWING).fit(X, Y)
    with pytest.raises(ConfigError, match=r"max_iters=999 .* no sample, .* set max_iters to 120 or"):
        TuneGridSearchCV(SVR(), {"C": [1.0]}, cv=3, max_iters=999, **GROWING).fit(X, Y)
    with pytest.raises(ConfigError, match=r"has no effect without early_stopping.*leave resource out"):
        TuneGridSearchCV(SVC(), {"C": [1.0]}, resource="n_samples").fit(X, Y)
    with pytest.raises(ValueError, match="'resource' parameter"):
        TuneSearchCV(SVC(), {"C": [1.0]}, resource="trees", early_stopping=True).fit(X, Y)
