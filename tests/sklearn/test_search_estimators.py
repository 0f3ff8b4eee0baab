"""A search is a scikit-learn estimator: copied, shown and routed through as one; what it takes and raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, ParameterGrid, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import get_tags

from tests.conftest import run_python
from tests.sklearn.recorder import OddError, Recorder
from trainkit import tune
from trainkit.sklearn import TuneGridSearchCV

pytestmark = pytest.mark.usefixtures("runtime")

X, Y = load_iris(return_X_y=True)
ONE = {"C": [1.0]}
BOTH = {"C": [0.1, 10.0]}


# --- what it is -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator", [SVC(), Ridge(), SVC(kernel="precomputed"), KMeans(), IsolationForest()]
)
def test_its_tags_are_those_of_grid_search_cv(estimator: Any) -> None:
    assert get_tags(TuneGridSearchCV(estimator, {})) == get_tags(GridSearchCV(estimator, {}))


def test_it_is_a_step_of_a_pipeline_and_an_estimator_of_cross_validation() -> None:
    ours = make_pipeline(StandardScaler(), TuneGridSearchCV(SVC(), BOTH, cv=3))
    theirs = make_pipeline(StandardScaler(), GridSearchCV(SVC(), BOTH, cv=3))
    np.testing.assert_array_equal(cross_val_score(ours, X, Y, cv=2), cross_val_score(theirs, X, Y, cv=2))


# --- what the best estimator does -----------------------------------------------------------------


def test_the_best_estimator_is_trained_further_by_partial_fit() -> None:
    search = TuneGridSearchCV(MiniBatchKMeans(2, n_init=1, random_state=0), {"n_clusters": [2, 3]}, cv=2)
    assert not hasattr(search, "partial_fit")  # before there is a best one
    search.fit(X)
    steps = search.best_estimator_.n_steps_
    assert search.partial_fit(X[:50]) is search
    assert search.best_estimator_.n_steps_ == steps + 1
    assert not hasattr(TuneGridSearchCV(SVC(), ONE, cv=2).fit(X, Y), "partial_fit")


def test_values_that_are_estimators_stay_as_they_were_given() -> None:
    steps = [StandardScaler(), PCA(2)]
    search = TuneGridSearchCV(make_pipeline(PCA(), SVC()), {"pca": steps}, cv=2).fit(X, Y)
    assert [each["pca"] for each in search.cv_results_["params"]] == steps
    assert search.cv_results_["params"][0]["pca"] is steps[0]
    assert search.best_params_["pca"] is steps[search.best_index_]
    assert search.best_estimator_[0] is not steps[search.best_index_]  # a clone is fitted
    assert not hasattr(steps[0], "mean_")


# --- what it takes --------------------------------------------------------------------------------

LARGE = np.repeat(X, 120, axis=0)[
    :12_000
]  # more than what travels in a message: read-only where it is fitted


class WritesInPlace(Recorder):
    def fit(self, X: Any, y: Any = None, **params: Any) -> Recorder:
        values = X.to_numpy() if hasattr(X, "to_numpy") else getattr(X, "data", X)
        if isinstance(values, np.ndarray) and values.flags.writeable:
            values *= 0.5
        return super().fit(X, y)

    def score(self, X: Any, y: Any = None) -> float:
        values = self.X_ if isinstance(self.X_, np.ndarray) else getattr(self.X_, "data", None)
        return float(values.flags.writeable) if isinstance(values, np.ndarray) else 1.0


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, pd.DataFrame])
@pytest.mark.slow
def test_an_estimator_may_write_into_its_samples_and_nobody_else_sees_it(form: Any) -> None:
    whole = form(LARGE)
    search = TuneGridSearchCV(WritesInPlace(), {"fail": [False, False]}, cv=2, refit=False)
    search.fit(whole, np.resize(Y, len(LARGE)))
    assert search.cv_results_["mean_test_score"].tolist() == [1.0, 1.0]
    dense = whole.toarray() if sparse.issparse(whole) else np.asarray(whole)
    np.testing.assert_array_equal(dense, LARGE)


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ({"C": tune.grid_search([1, 2]), "kernel": ["linear"]}, {"C": [1, 2], "kernel": ["linear"]}),
        ([{"C": tune.grid_search([1, 2])}, {"gamma": np.array([0.1])}], [{"C": [1, 2]}, {"gamma": [0.1]}]),
    ],
)
def test_a_grid_may_be_written_with_grid_search(written: Any, plain: Any) -> None:  # row 1.8
    search = TuneGridSearchCV(SVC(), written, cv=2).fit(X, Y)
    assert search.cv_results_["params"] == list(ParameterGrid(plain))


# --- what it raises and warns of ------------------------------------------------------------------


def test_what_the_estimator_raised_leaves_fit_as_it_was_raised() -> None:
    with pytest.raises(OddError, match=r"^too odd: 7$") as caught:
        TuneGridSearchCV(Recorder(), {"fail": [True]}, cv=2, error_score="raise").fit(X, Y)
    assert type(caught.value) is OddError
    assert caught.value.number == 7
    assert "recorder.py" in str(caught.value.__cause__)  # where it was raised, over there


@pytest.mark.parametrize("error_score", ["raise", np.nan])
def test_a_parameter_that_the_estimator_does_not_have_is_always_an_error(error_score: Any) -> None:
    with pytest.raises(ValueError, match="Invalid parameter 'nope'") as caught:
        TuneGridSearchCV(SVC(), {"nope": [1]}, cv=2, error_score=error_score).fit(X, Y)
    assert type(caught.value) is ValueError


class Inconsistent(KFold):
    def get_n_splits(self, *args: Any, **kwargs: Any) -> int:
        return 4


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"param_grid": []}, "the parameter space has no candidates"),
        ({"cv": []}, "produces no folds"),
        ({"cv": Inconsistent(3)}, "Expected 4 splits, got 3"),
        ({"scoring": ["f1", "accuracy"], "refit": False, "mode": "min"}, "'f1', 'accuracy'"),
        (
            {"scoring": lambda *_: {"a": 1, "b": 2}, "refit": False, "mode": "min"},
            "refit=False names none of 'a', 'b'",
        ),
        ({"scoring": ["f1", "accuracy"]}, "refit must be set to a scorer key"),
        ({"param_grid": {"C": 1}}, "needs to be a list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_told(given: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        TuneGridSearchCV(SVC(), **{"param_grid": ONE, **given}).fit(X, Y)


def test_less_is_better_turns_ranks_and_the_best() -> None:
    def loss(estimator: Any, X: Any, y: Any) -> float:
        return 1 - estimator.score(X, y) if estimator.C != 5 else np.nan

    grid = {"C": [1e-9, 1.0, 1e-9, 5]}
    search = TuneGridSearchCV(SVC(), grid, scoring=loss, mode="min", cv=3)
    with pytest.warns(UserWarning, match="non-finite"):
        search.fit(X, Y)
    assert search.cv_results_["rank_test_score"].tolist() == [2, 1, 2, 4]
    assert search.cv_results_["rank_test_score"].dtype == np.int32
    assert search.best_params_ == {"C": 1.0}
    assert search.best_score_ == search.cv_results_["mean_test_score"].min(
        initial=1, where=[True] * 3 + [False]
    )


# --- classes and functions that live nowhere ------------------------------------------------------

SCRIPT = """
from sklearn.datasets import load_iris
from sklearn.svm import SVC
from trainkit.sklearn import TuneGridSearchCV

class Own(SVC):
    def score(self, X, y, sample_weight=None):
        return OFFSET + self.C

OFFSET = 1
if __name__ == "__main__":
    scorers = {"a": lambda e, X, y: e.score(X, y)}
    search = TuneGridSearchCV(Own(), {"C": [1.0, 5.0]}, cv=2, scoring=scorers, refit="a")
    print(search.fit(*load_iris(return_X_y=True)).best_score_, type(search.best_estimator_).__module__)
"""


@pytest.mark.external
def test_a_class_and_a_scorer_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_python(script)
    assert (done.stdout, done.stderr) == ("6.0 __main__\n", "")


def test_classes_and_scorers_of_a_function() -> None:
    class Local(SVC):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            return super().fit(X, y)

    search = TuneGridSearchCV(Local(), BOTH, cv=2, scoring=lambda estimator, X, y: estimator.C)
    assert search.fit(X, Y).best_params_ == {"C": 10.0}
    assert type(search.best_estimator_) is Local
