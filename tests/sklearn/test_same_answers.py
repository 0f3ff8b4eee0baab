"""The searches give scikit-learn's columns, scores, candidates, best parameters and predictions, bit for bit.

Row 1.37 of what users need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import loguniform, randint
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_digits, load_iris, make_classification
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    RandomizedSearchCV,
    ShuffleSplit,
)
from sklearn.neighbors import KernelDensity, KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

IRIS = load_iris(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)
DIGITS = tuple(each[:300] for each in load_digits(return_X_y=True))
KINDS = ["the cat purrs", "a dog barks", "my cat sleeps", "the dog runs", "cats and kittens", "puppies, dogs"]
TEXTS = (KINDS * 6, np.array([0, 1] * 18))
_SIZES = np.random.default_rng(0).normal(size=(60, 2))
_SIZES[::7, 0] = np.nan
MIXED = (
    np.column_stack([_SIZES.astype(object), np.resize(["red", "green", "blue"], 60)]),
    np.resize([0, 1, 1, 0, 1], 60),
)


@dataclass(frozen=True)
class Row:
    name: str
    estimator: Any
    grid: Any
    data: tuple[Any, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


ROWS = [
    Row("ridge", Ridge(), {"alpha": [0.01, 1.0, 100.0]}, DIABETES),
    Row("logistic", LogisticRegression(), [{"C": [0.1, 1]}, {"l1_ratio": [0.0]}], IRIS),
    Row("svm", SVC(), [{"kernel": ["linear"]}, {"kernel": ["rbf"], "gamma": [0.1, 1]}], IRIS),
    Row("probabilities", LogisticRegression(), {"C": [0.1, 10]}, IRIS, {"scoring": "neg_log_loss"}),
    Row("svm, sparse", SVC(), {"C": [0.1, 10]}, (sparse.csr_matrix(DIGITS[0]), DIGITS[1])),
    Row("svm, kernel given", SVC(kernel="precomputed"), {"C": [1, 10]}, (rbf_kernel(IRIS[0]), IRIS[1])),
    Row("forest", RandomForestClassifier(10, random_state=0), {"max_depth": [2, None]}, IRIS),
    Row("k-means", KMeans(n_init=2, random_state=0), {"n_clusters": [2, 3]}, (IRIS[0], None)),
    Row(
        "outliers",
        IsolationForest(n_estimators=10, random_state=0),
        {"max_samples": [20, 40]},
        IRIS,
        {"scoring": "accuracy"},
    ),
    Row("density", KernelDensity(), {"bandwidth": [0.1, 1.0]}, (IRIS[0], None)),
    Row(
        "text",
        make_pipeline(TfidfVectorizer(), SVC()),
        {"tfidfvectorizer__ngram_range": [(1, 1), (1, 2)]},
        TEXTS,
    ),
    Row(
        "columns",
        Pipeline(
            [
                (
                    "columns",
                    ColumnTransformer(
                        [
                            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), [0, 1]),
                            ("words", OneHotEncoder(), [2]),
                        ]
                    ),
                ),
                ("model", LogisticRegression()),
            ]
        ),
        {"columns__numbers__simpleimputer__strategy": ["mean", "median"], "model__C": [0.1, 1.0]},
        MIXED,
    ),
    Row(
        "steps as values",
        Pipeline([("reduce", PCA(2)), ("model", SVC())]),
        {"reduce": ["passthrough", PCA(2), SelectKBest(k=2)], "model": [SVC(), KNeighborsClassifier()]},
        IRIS,
    ),
    Row("random folds", SVC(), {"C": [1, 10]}, IRIS, {"cv": ShuffleSplit(3, random_state=0)}),
]
"""Estimators and data of all kinds, each with three folds unless it says otherwise."""

NOISY = make_classification(n_samples=60, n_features=5, flip_y=0.3, random_state=0)
GROUPS = np.arange(60) % 4
WEIGHTS = np.random.default_rng(1).integers(1, 9, 60).astype(float)
HALVES = [(np.arange(40), np.arange(40, 60))] * 2


def confusion(estimator: Any, X: Any, y: Any) -> dict[str, float]:
    hits = estimator.predict(X) == y
    return {"right": float(hits.sum()), "wrong": float((~hits).sum())}


def squared(estimator: Any, X: Any, y: Any) -> float:
    return float(estimator.score(X, y) ** 2)


def least_deviating(results: dict[str, Any]) -> int:
    return int(np.argmin(results["std_test_score"]))


def case(name: str, settings: Any = {}, fit: Any = {}, grid: Any = None, estimator: Any = None) -> Row:  # noqa: B006
    grid = {"C": [0.01, 0.1, 1.0, 10.0]} if grid is None else grid
    return Row(name, estimator or SVC(), grid, NOISY, settings, fit)


ROWS += [
    case("nothing said", {"cv": None}),
    case("a name", {"scoring": "roc_auc", "return_train_score": True}),
    case("a scorer", {"scoring": make_scorer(accuracy_score)}),
    case("a function", {"scoring": squared}),
    case("names", {"scoring": ["accuracy", "roc_auc"], "refit": "roc_auc", "return_train_score": True}),
    case("by name", {"scoring": {"a": "accuracy", "b": make_scorer(accuracy_score)}, "refit": "b"}),
    case("one by the name score", {"scoring": {"score": "accuracy"}, "refit": "score"}),
    case("a function of several", {"scoring": confusion, "refit": "wrong"}),
    case("several, none refitted", {"scoring": ["accuracy", "f1"], "refit": False}),
    case("one, not refitted", {"refit": False}),
    case("chosen by a function", {"refit": least_deviating}),
    case("groups", {"cv": GroupKFold(4)}, {"groups": GROUPS}),
    case("groups as a list", {"cv": LeaveOneGroupOut()}, {"groups": GROUPS.tolist()}),
    case("weights", {"cv": KFold(3, shuffle=True, random_state=1)}, {"sample_weight": WEIGHTS}),
    case("folds by hand", {"cv": [(range(40), range(40, 60)), (list(range(20, 60)), np.arange(20))]}),
    case("folds from a generator", {"cv": lambda: iter(HALVES)}),
    case("one fold", {"cv": ShuffleSplit(1, random_state=0)}),
    case("one candidate", grid={}),
    case(
        "keys that differ", grid=[{"kernel": ["linear"]}, {"gamma": [0.1, 1]}, {}, {"C": [1], "gamma": [1]}]
    ),
    case("equals", grid={"C": [1.0, 1.0, 0.5, 1.0]}),
    case("values of any kind", grid={"class_weight": [None, "balanced", {0: 1, 1: 2}], "C": (1, 2)}),
    case("numbers of one kind", grid={"max_iter": range(50, 80, 10)}, estimator=LogisticRegression()),
    case("truths", grid={"shrinking": [True, False]}),
]

FRAME = load_iris(as_frame=True).frame
KINDS_OF_DATA = {
    "lists": (IRIS[0].tolist(), IRIS[1].tolist()),
    "pandas": (FRAME.iloc[:, :4], FRAME["target"]),
    "sparse": (sparse.csr_array(IRIS[0]), IRIS[1]),
    "coordinates": (sparse.coo_matrix(IRIS[0]), IRIS[1]),
    "single and text": (IRIS[0].astype(np.float32), IRIS[1].astype(str)),
}
if find_spec("polars"):
    import polars

    columns = {name: FRAME[name].to_numpy() for name in FRAME.columns[:4]}
    KINDS_OF_DATA["polars"] = polars.DataFrame(columns), polars.Series("target", IRIS[1])
ROWS += [Row(name, SVC(), {"C": [0.1, 10.0]}, data) for name, data in KINDS_OF_DATA.items()]

LEARNED = ("classes_", "n_features_in_", "feature_names_in_")
BEST = ("best_index_", "best_score_", "best_params_", "n_splits_", "multimetric_")


def require_same(ours: Any, theirs: Any, X: Any, y: Any = None) -> None:
    assert list(ours.cv_results_) == list(theirs.cv_results_)
    for key, expected in theirs.cv_results_.items():
        found = ours.cv_results_[key]
        assert type(found) is type(expected), key
        if key == "params":
            assert [list(each) for each in found] == [list(each) for each in expected]
            assert found == expected and repr(found) == repr(expected)
            continue
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), key
        if key.startswith("param_"):
            np.testing.assert_array_equal(np.ma.getmaskarray(found), expected.mask)
            assert list(found.compressed()) == list(expected.compressed())
        elif "_time" not in key:
            np.testing.assert_array_equal(found, expected, err_msg=key)  # NaN where NaN is, and no tolerance
    fitted = {name for name in vars(theirs) if name.endswith("_") and not name.startswith("__")}
    assert fitted <= set(vars(ours))
    assert type(ours.scorer_) is type(theirs.scorer_)
    for name in (*BEST, *LEARNED):
        assert hasattr(ours, name) == hasattr(theirs, name), name
        assert repr(getattr(ours, name, None)) == repr(getattr(theirs, name, None)), name
    for method in ("predict", "predict_proba", "decision_function", "transform", "score_samples"):
        assert hasattr(ours, method) == hasattr(theirs, method)
        if hasattr(theirs, method):
            np.testing.assert_array_equal(getattr(ours, method)(X), getattr(theirs, method)(X))
    if isinstance(theirs.refit, (str, bool)) and theirs.refit:
        assert ours.score(X, y) == theirs.score(X, y)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_grid_gives_what_grid_search_cv_gives(row: Row) -> None:
    def searched(kind: Any) -> Any:
        settings = {"cv": 3, **row.settings}
        if callable(settings["cv"]):  # an iterator for each, as each takes all of it
            settings["cv"] = settings["cv"]()
        return kind(row.estimator, row.grid, **settings).fit(*row.data, **row.fit)

    with threadpool_limits(1):  # as a candidate has: sums of several threads differ in their last bit
        require_same(searched(TuneGridSearchCV), searched(GridSearchCV), *row.data)


DRAWN = [
    Row("svm", SVC(), {"C": loguniform(1e-2, 1e2), "kernel": ["linear", "rbf"]}, IRIS),
    Row("forest", RandomForestClassifier(5, random_state=0), {"max_depth": randint(1, 9)}, IRIS),
    Row("two spaces", SVC(), [{"C": loguniform(0.1, 9)}, {"gamma": [0.1, 1], "kernel": ["rbf"]}], IRIS),
    Row("all of a list", SVC(), {"C": [1, 2, 3, 4]}, IRIS),
]


@pytest.mark.parametrize(("row", "state"), [*((row, 7) for row in DRAWN), (DRAWN[0], np.random.RandomState)])
def test_random_candidates_give_what_randomized_search_cv_gives(row: Row, state: Any) -> None:
    def fresh() -> Any:  # a generator goes on where the last search left it
        return state if isinstance(state, int) else state(7)

    cv = ShuffleSplit(3, random_state=0)
    theirs = RandomizedSearchCV(row.estimator, row.grid, n_iter=4, cv=cv, random_state=fresh()).fit(*row.data)
    ours = TuneSearchCV(row.estimator, row.grid, n_trials=4, cv=cv, random_state=fresh()).fit(*row.data)
    require_same(ours, theirs, *row.data)


def test_one_generator_serves_candidates_and_folds_in_the_same_order() -> None:
    def search(kind: Any, **count: int) -> Any:
        shared = np.random.RandomState(3)
        folds = ShuffleSplit(3, random_state=shared)
        return kind(SVC(), {"C": loguniform(0.1, 9)}, cv=folds, random_state=shared, **count).fit(*IRIS)

    require_same(search(TuneSearchCV, n_iter=3), search(RandomizedSearchCV, n_iter=3), *IRIS)
