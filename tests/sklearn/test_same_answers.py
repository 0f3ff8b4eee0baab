"""The searches give scikit-learn's scores, candidates, best parameters and predictions, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import loguniform, randint
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Lasso, LogisticRegression, Ridge, SGDClassifier
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, ShuffleSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KernelDensity, KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor
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

    def __str__(self) -> str:
        return self.name


ROWS = [
    Row("ridge", Ridge(), {"alpha": [0.01, 1.0, 100.0]}, DIABETES),
    Row("lasso", Lasso(random_state=0, selection="random"), {"alpha": [0.1, 1.0]}, DIABETES),
    Row("logistic", LogisticRegression(), [{"C": [0.1, 1]}, {"l1_ratio": [0.0]}], IRIS),
    Row("sgd", SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-2]}, IRIS),
    Row("svm", SVC(), [{"kernel": ["linear"]}, {"kernel": ["rbf"], "gamma": [0.1, 1]}], IRIS),
    Row("probabilities", LogisticRegression(), {"C": [0.1, 10]}, IRIS, {"scoring": "neg_log_loss"}),
    Row("svm, sparse", SVC(), {"C": [0.1, 10]}, (sparse.csr_matrix(DIGITS[0]), DIGITS[1])),
    Row("svm, kernel given", SVC(kernel="precomputed"), {"C": [1, 10]}, (rbf_kernel(IRIS[0]), IRIS[1])),
    Row("forest", RandomForestClassifier(10, random_state=0), {"max_depth": [2, None]}, IRIS),
    Row("boosting", GradientBoostingClassifier(n_estimators=5, random_state=0), {"max_depth": [1, 3]}, IRIS),
    Row("tree", DecisionTreeRegressor(random_state=0), {"max_depth": [2, 4]}, DIABETES),
    Row("neighbours", KNeighborsClassifier(), {"n_neighbors": [1, 5], "weights": ["uniform"]}, DIGITS),
    Row("bayes", GaussianNB(), {"var_smoothing": np.logspace(-9, 0, 3)}, IRIS),
    Row("mlp", MLPClassifier((8,), max_iter=15, random_state=0), {"alpha": [1e-4, 1.0]}, IRIS),
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
"""Each is run by both sides with three folds unless it says otherwise."""


def require_same(ours: Any, theirs: Any, X: Any) -> None:
    assert list(ours.cv_results_) == list(theirs.cv_results_)
    for key, expected in theirs.cv_results_.items():
        if "_time" in key:
            continue
        found = ours.cv_results_[key]
        if key == "params":
            assert [list(each) for each in found] == [list(each) for each in expected]
            assert repr(found) == repr(expected)
        elif not key.startswith("param_"):
            np.testing.assert_array_equal(found, expected)  # NaN where NaN is, and no tolerance
    assert repr(ours.best_params_) == repr(theirs.best_params_)
    assert (ours.best_index_, ours.best_score_) == (theirs.best_index_, theirs.best_score_)
    for method in ("predict", "predict_proba", "decision_function", "transform", "score_samples"):
        assert hasattr(ours, method) == hasattr(theirs, method)
        if hasattr(theirs, method):
            np.testing.assert_array_equal(getattr(ours, method)(X), getattr(theirs, method)(X))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_grid_gives_what_grid_search_cv_gives(row: Row) -> None:
    settings = {"cv": 3, **row.settings}
    with threadpool_limits(1):  # as a candidate has: sums of several threads differ in their last bit
        theirs = GridSearchCV(row.estimator, row.grid, **settings).fit(*row.data)
        ours = TuneGridSearchCV(row.estimator, row.grid, **settings).fit(*row.data)
    require_same(ours, theirs, row.data[0])


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
    require_same(ours, theirs, row.data[0])


def test_one_generator_serves_candidates_and_folds_in_the_same_order() -> None:
    def search(kind: Any, **count: int) -> Any:
        shared = np.random.RandomState(3)
        folds = ShuffleSplit(3, random_state=shared)
        return kind(SVC(), {"C": loguniform(0.1, 9)}, cv=folds, random_state=shared, **count).fit(*IRIS)

    require_same(search(TuneSearchCV, n_iter=3), search(RandomizedSearchCV, n_iter=3), IRIS[0])
