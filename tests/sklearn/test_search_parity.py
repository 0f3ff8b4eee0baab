"""The same columns, shapes, ranks and best_* as GridSearchCV, whatever scores, refits, splits and weighs.

Row 1.37 of what users need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, LeaveOneGroupOut, ShuffleSplit
from sklearn.svm import SVC

from trainkit.sklearn import TuneGridSearchCV

pytestmark = pytest.mark.usefixtures("runtime")

X, Y = make_classification(n_samples=60, n_features=5, flip_y=0.3, random_state=0)
GROUPS = np.arange(60) % 4
WEIGHTS = np.random.default_rng(1).integers(1, 9, 60).astype(float)
GRID = {"C": [0.01, 0.1, 1.0, 10.0]}


def confusion(estimator: Any, X: Any, y: Any) -> dict[str, float]:
    hits = estimator.predict(X) == y
    return {"right": float(hits.sum()), "wrong": float((~hits).sum())}


def least_deviating(results: dict[str, Any]) -> int:
    return int(np.argmin(results["std_test_score"]))


@dataclass(frozen=True)
class Case:
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)
    grid: Any = field(default_factory=lambda: GRID)
    estimator: Any = field(default_factory=SVC)

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("nothing said", {"cv": None}),
    Case("a name", {"scoring": "roc_auc", "return_train_score": True}),
    Case("a scorer", {"scoring": make_scorer(accuracy_score)}),
    Case("a function", {"scoring": lambda estimator, X, y: estimator.score(X, y) ** 2}),
    Case("names", {"scoring": ["accuracy", "roc_auc"], "refit": "roc_auc", "return_train_score": True}),
    Case("by name", {"scoring": {"a": "accuracy", "b": make_scorer(accuracy_score)}, "refit": "b"}),
    Case("one by the name score", {"scoring": {"score": "accuracy"}, "refit": "score"}),
    Case("a function of several", {"scoring": confusion, "refit": "wrong"}),
    Case("several, none refitted", {"scoring": ["accuracy", "f1"], "refit": False}),
    Case("one, not refitted", {"refit": False}),
    Case("chosen by a function", {"refit": least_deviating}),
    Case("groups", {"cv": GroupKFold(4)}, {"groups": GROUPS}),
    Case("groups as a list", {"cv": LeaveOneGroupOut()}, {"groups": GROUPS.tolist()}),
    Case("weights", {"cv": KFold(3, shuffle=True, random_state=1)}, {"sample_weight": WEIGHTS}),
    Case("folds by hand", {"cv": [(range(40), range(40, 60)), (list(range(20, 60)), np.arange(20))]}),
    Case("folds from a generator", {"cv": (each for each in [(np.arange(40), np.arange(40, 60))] * 2)}),
    Case("one fold", {"cv": ShuffleSplit(1, random_state=0)}),
    Case("one candidate", grid={}),
    Case(
        "keys that differ", grid=[{"kernel": ["linear"]}, {"gamma": [0.1, 1]}, {}, {"C": [1], "gamma": [1]}]
    ),
    Case("equals", grid={"C": [1.0, 1.0, 0.5, 1.0]}),
    Case("values of any kind", grid={"class_weight": [None, "balanced", {0: 1, 1: 2}], "C": (1, 2)}),
    Case("numbers of one kind", grid={"max_iter": range(50, 80, 10)}, estimator=LogisticRegression()),
    Case("truths", grid={"shrinking": [True, False]}),
]


def fitted(kind: Callable[..., Any], case: Case) -> Any:
    settings = dict(case.settings)
    if kind is TuneGridSearchCV:
        settings.setdefault("cv", 3)
    return kind(case.estimator, case.grid, **{"cv": 3, "error_score": np.nan, **settings}).fit(
        X, Y, **case.fit
    )


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(request: pytest.FixtureRequest, runtime: None) -> tuple[Any, Any]:
    case = request.param
    cv = case.settings.get("cv")
    if hasattr(cv, "__next__"):  # for both sides, each of which takes all of it
        folds = list(cv)
        both = [
            fitted(kind, Case(case.name, {**case.settings, "cv": iter(folds)}))
            for kind in (TuneGridSearchCV, GridSearchCV)
        ]
        return both[0], both[1]
    return fitted(TuneGridSearchCV, case), fitted(GridSearchCV, case)


def test_columns_are_the_same_in_the_same_order(pair: tuple[Any, Any]) -> None:  # row 1.37
    ours, theirs = pair
    assert list(ours.cv_results_) == list(theirs.cv_results_)


def test_columns_are_of_the_same_type_and_shape(pair: tuple[Any, Any]) -> None:  # row 1.37
    for key, theirs in pair[1].cv_results_.items():
        ours = pair[0].cv_results_[key]
        assert type(ours) is type(theirs), key
        if isinstance(theirs, np.ndarray):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), key


def test_scores_and_ranks_are_the_same(pair: tuple[Any, Any]) -> None:  # row 1.37
    for key, theirs in pair[1].cv_results_.items():
        if "_test_" in key or "_train_" in key:
            np.testing.assert_array_equal(pair[0].cv_results_[key], theirs, err_msg=key)


def test_parameters_are_the_same_objects_and_missing_ones_are_masked(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    for mine, yours in zip(ours.cv_results_["params"], theirs.cv_results_["params"], strict=True):
        assert all(mine[name] is yours[name] or mine[name] == yours[name] for name in yours)
    for key in (key for key in theirs.cv_results_ if key.startswith("param_")):
        np.testing.assert_array_equal(np.ma.getmaskarray(ours.cv_results_[key]), theirs.cv_results_[key].mask)
        assert list(ours.cv_results_[key].compressed()) == list(theirs.cv_results_[key].compressed())


def test_what_is_best_is_the_same(pair: tuple[Any, Any]) -> None:  # row 1.37
    ours, theirs = pair
    fitted_names = {name for name in vars(theirs) if name.endswith("_") and not name.startswith("__")}
    assert fitted_names <= set(vars(ours))
    for name in ("best_index_", "best_score_", "best_params_", "n_splits_", "multimetric_"):
        assert hasattr(ours, name) == hasattr(theirs, name), name
        assert getattr(ours, name, None) == getattr(theirs, name, None), name
    assert type(ours.scorer_) is type(theirs.scorer_)


def test_it_predicts_and_scores_the_same(pair: tuple[Any, Any]) -> None:  # row 1.37
    ours, theirs = pair
    assert hasattr(ours, "predict") == hasattr(theirs, "predict")
    assert hasattr(ours, "classes_") == hasattr(theirs, "classes_")
    if hasattr(theirs, "predict"):
        np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
        np.testing.assert_array_equal(ours.classes_, theirs.classes_)
        assert ours.n_features_in_ == theirs.n_features_in_
    if isinstance(theirs.refit, (str, bool)) and theirs.refit:
        assert ours.score(X, Y) == theirs.score(X, Y)
