"""Training by portions comes to the same, to the last bit, as the calls of scikit-learn made by hand."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import (
    ElasticNet,
    LogisticRegression,
    Perceptron,
    SGDClassifier,
    SGDOneClassSVM,
    SGDRegressor,
)
from sklearn.mixture import GaussianMixture
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler, TargetEncoder

from trainkit.sklearn.incremental_fit import IncrementalFit

X, Y = load_digits(return_X_y=True)
X, Y = X[:150] / 16, Y[:150]
FEW = Y < 3
WEIGHTS = np.random.default_rng(0).uniform(0.1, 2, len(Y))


def trained(
    estimator: Any, done: int, portions: int, X: Any = X, y: Any = Y, *, labels: Any = None, **params: Any
) -> Any:
    """The estimator after `done` of so many portions."""
    piecewise = IncrementalFit(
        clone(estimator), portions, last_step=True, labels=y if labels is None else labels
    )
    for _ in range(done):
        piecewise.advance(lambda: (X, y, params))
    return piecewise.estimator


def passed(estimator: Any, passes: int, X: Any = X, y: Any = Y, **params: Any) -> Any:
    """The estimator after so many calls of `partial_fit`, as a user makes them."""
    for _ in range(passes):
        estimator.partial_fit(X, y, **{"classes": np.unique(Y), **params})
    return estimator


def same(one: Any, other: Any, X: Any = X) -> bool:
    """Whether two fitted estimators predict the same, to the last bit."""
    how = next(name for name in ("predict_proba", "decision_function", "predict") if hasattr(one, name))
    return np.array_equal(getattr(one, how)(X), getattr(other, how)(X))


# --- partial_fit ------------------------------------------------------------------------------------


def test_classes_that_a_fold_lacks_are_told() -> None:
    ours = trained(SGDClassifier(random_state=0), 2, 4, X[FEW], Y[FEW], labels=Y)
    assert list(ours.classes_) == list(range(10))
    assert same(ours, passed(SGDClassifier(random_state=0), 2, X[FEW], Y[FEW]))


def test_regressors_and_clusterers_have_no_classes() -> None:
    by_hand = SGDRegressor(random_state=0).partial_fit(X, Y).partial_fit(X, Y)
    assert same(trained(SGDRegressor(random_state=0), 2, 2), by_hand)
    clusters = MiniBatchKMeans(3, n_init=1, random_state=0)
    piecewise = IncrementalFit(clone(clusters), 3, last_step=True, labels=None)
    piecewise.advance(lambda: (X, None, {}))
    assert same(piecewise.estimator, clone(clusters).partial_fit(X))


def test_many_outputs_have_classes_each() -> None:
    many = np.stack([Y, Y % 3], axis=1)
    ours = trained(MultiOutputClassifier(SGDClassifier(random_state=0)), 2, 2, y=many)
    classes = [np.unique(many[:, 0]), np.unique(many[:, 1])]
    assert same(
        ours, passed(MultiOutputClassifier(SGDClassifier(random_state=0)), 2, y=many, classes=classes)
    )


def test_labels_that_go_together_are_classes() -> None:
    points, labels = make_multilabel_classification(60, n_classes=4, random_state=0)
    ours = trained(MLPClassifier((4,), random_state=0), 3, 3, points, labels)
    assert ours.predict(points).shape == labels.shape


# row 1.38
@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor, Perceptron, SGDOneClassSVM])
def test_several_portions_at_once_are_the_passes_of_one_fit(kind: Any) -> None:
    labels = None if kind is SGDOneClassSVM else Y
    piecewise = IncrementalFit(kind(random_state=0), 9, last_step=True, labels=Y)
    piecewise.advance(lambda: (X, labels, {}), 6)
    whole = kind(random_state=0, max_iter=6, tol=None).fit(X, labels)
    assert np.array_equal(piecewise.estimator.coef_, whole.coef_)
    assert piecewise.estimator.get_params() == kind(random_state=0).get_params()
    piecewise.advance(lambda: (X, labels, {}), 3)
    assert piecewise.done == 9
    assert piecewise.estimator.t_ == 9 * len(X) + 1
    pickle.loads(pickle.dumps(piecewise.estimator))


class Counts(SGDClassifier):
    """Counts its calls."""

    calls = 0

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        self.calls += 1
        return super().partial_fit(X, y, classes, sample_weight)


@pytest.mark.parametrize(
    "estimator", [Counts(random_state=0), MLPClassifier((8,), random_state=0)], ids=["own class", "MLP"]
)
def test_others_are_called_once_for_each_of_several_portions(estimator: Any) -> None:
    piecewise = IncrementalFit(clone(estimator), 4, last_step=True, labels=Y)
    piecewise.advance(lambda: (X, Y, {}), 3)
    assert same(piecewise.estimator, passed(clone(estimator), 3))
    assert getattr(piecewise.estimator, "calls", 3) == 3


# --- warm starts ------------------------------------------------------------------------------------


# row 1.38
@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(max_iter=9),
        ElasticNet(alpha=0.01, max_iter=9),
        MLPClassifier((8,), solver="lbfgs", max_iter=9, random_state=0),
        GaussianMixture(3, covariance_type="diag", reg_covar=0.1, tol=0, max_iter=9, random_state=0),
    ],
)
def test_iterations_go_on_where_they_ended(estimator: Any) -> None:
    by_hand = clone(estimator).set_params(warm_start=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for size in (2, 2, 2):  # of nine, in four portions: 2, 2, 2, 3
            by_hand.set_params(max_iter=size).fit(X, Y)
    ours = trained(estimator, 3, 4)
    assert same(ours, by_hand)
    assert ours.get_params() == estimator.get_params()  # as if it had been fitted whole


# row 1.38
@pytest.mark.parametrize(
    "estimator",
    [
        RandomForestClassifier(n_estimators=10, random_state=0),
        BaggingClassifier(n_estimators=10, random_state=0),
        GradientBoostingClassifier(n_estimators=10, max_depth=2, subsample=0.8, random_state=0),
    ],
)
@pytest.mark.parametrize(("done", "grown"), [(2, 6), (3, 10)])
def test_an_ensemble_that_has_grown_is_one_fitted_at_once(estimator: Any, done: int, grown: int) -> None:
    ours = trained(estimator, done, 3, X[FEW], Y[FEW])
    at_once = clone(estimator).set_params(n_estimators=grown).fit(X[FEW], Y[FEW])
    assert same(ours, at_once)
    assert ours.get_params() == at_once.get_params()


def test_several_portions_of_an_ensemble_are_one_fit() -> None:
    forest = RandomForestClassifier(n_estimators=9, random_state=0)
    piecewise = IncrementalFit(clone(forest), 9, last_step=True, labels=Y)
    for portions in (1, 3, 5):
        piecewise.advance(lambda: (X, Y, {}), portions)
    assert same(piecewise.estimator, clone(forest).fit(X, Y))


# row 1.38
def test_histogram_boosting_grows_too() -> None:
    boosting = HistGradientBoostingClassifier(max_iter=4, max_leaf_nodes=3, random_state=0)
    ours = trained(boosting, 1, 2, X[FEW], Y[FEW])
    assert same(ours, clone(boosting).set_params(max_iter=2).fit(X[FEW], Y[FEW]))
    ours = trained(boosting, 2, 2, X[FEW], Y[FEW])
    assert ours.n_iter_ == 4
    assert same(ours, clone(boosting).fit(X[FEW], Y[FEW]))


# --- warnings ---------------------------------------------------------------------------------------


def test_the_end_of_a_portion_is_no_failure_to_converge() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(LogisticRegression(max_iter=9), 2, 3)


def test_the_end_of_the_whole_training_is_told_as_ever() -> None:
    with pytest.warns(ConvergenceWarning):
        trained(LogisticRegression(max_iter=9), 3, 3)


class Worried(BaseEstimator):  # type: ignore[misc]
    """Warns at each fit that it does not converge, long before it comes to its limit."""

    def __init__(self, warm_start: bool = False, max_iter: int = 9) -> None:
        self.warm_start = warm_start
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any) -> Worried:
        self.n_iter_ = 1
        warnings.warn("ABNORMAL", ConvergenceWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
        return self


def test_what_has_another_reason_is_told() -> None:
    with (
        pytest.warns(ConvergenceWarning, match="ABNORMAL"),
        pytest.warns(UserWarning, match="something else"),
    ):
        trained(Worried(), 1, 3)


def test_a_forest_does_not_warn_of_data_that_differ() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(RandomForestClassifier(4, class_weight="balanced", random_state=0), 2, 2)


# --- pipelines --------------------------------------------------------------------------------------


class Counted(StandardScaler):  # type: ignore[misc]
    """Counts how often it is fitted."""

    fits = 0

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Counted:
        type(self).fits += 1
        fitted: Counted = super().fit(X, y, sample_weight)
        return fitted


# row 1.38
@pytest.mark.parametrize("final", [SGDClassifier(random_state=0), LogisticRegression(max_iter=9)])
def test_transformers_are_fitted_once(final: Any) -> None:
    Counted.fits = 0
    ours = trained(make_pipeline(Counted(), PCA(8, random_state=0), final), 3, 3)
    assert Counted.fits == 1
    scaler = StandardScaler().fit(X)
    pca = PCA(8, random_state=0)
    reduced = pca.fit_transform(scaler.transform(X))
    by_hand = trained(final, 3, 3, reduced)
    assert np.array_equal(ours.predict(X), by_hand.predict(pca.transform(scaler.transform(X))))


def test_a_pipeline_is_left_as_it_was_made() -> None:
    pipeline = Pipeline([("scale", "passthrough"), ("sgd", SGDClassifier(random_state=0))])
    ours = trained(pipeline, 2, 2)
    assert [name for name, _ in ours.steps] == ["scale", "sgd"]
    assert type(ours.named_steps["sgd"]) is SGDClassifier
    assert same(ours, trained(SGDClassifier(random_state=0), 2, 2))


def test_sparse_text_goes_through() -> None:
    texts = ["warm start", "cold start", "warm end", "cold end"] * 5
    labels = [1, 0, 1, 0] * 5
    pipeline = make_pipeline(CountVectorizer(), TfidfTransformer(), SGDClassifier(random_state=0))
    ours = trained(pipeline, 3, 3, texts, labels)
    assert list(ours.predict(["warm", "cold"])) == [1, 0]


# --- arguments of fit -------------------------------------------------------------------------------


# row 1.37
def test_weights_find_their_step() -> None:
    pipeline = Pipeline([("scale", StandardScaler()), ("sgd", SGDClassifier(random_state=0))])
    ours = trained(pipeline, 2, 2, sgd__sample_weight=WEIGHTS, scale__sample_weight=WEIGHTS)
    scaled = StandardScaler().fit_transform(X, sample_weight=WEIGHTS)
    by_hand = passed(SGDClassifier(random_state=0), 2, scaled, sample_weight=WEIGHTS)
    assert same(ours.named_steps["sgd"], by_hand, scaled)


# row 1.37
def test_weights_are_routed_where_they_were_asked_for() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        sgd = SGDClassifier(random_state=0).set_fit_request(sample_weight=True)
        scale = StandardScaler().set_fit_request(sample_weight=False)
        ours = trained(Pipeline([("scale", scale), ("sgd", sgd)]), 2, 2, sample_weight=WEIGHTS)
    scaled = StandardScaler().fit_transform(X)
    by_hand = passed(SGDClassifier(random_state=0), 2, scaled, sample_weight=WEIGHTS)
    assert same(ours.named_steps["sgd"], by_hand, scaled)


# --- states -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*TargetEncoder:FutureWarning")
@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (lambda: SGDClassifier(random_state=0), False),
        (lambda: SGDClassifier(random_state=np.random.RandomState(0)), False),
        (lambda: LogisticRegression(max_iter=20), False),
        (lambda: RandomForestClassifier(n_estimators=4, random_state=0), False),
        (lambda: make_pipeline(StandardScaler(), SGDClassifier(random_state=0)), False),
        (lambda: make_pipeline(PCA(4, svd_solver="full"), SGDClassifier(random_state=0)), None),
        # What it makes of the data when it is fitted, and afterwards, differs.
        (lambda: make_pipeline(TargetEncoder(cv=3, random_state=0), SGDClassifier(random_state=0)), True),
        (lambda: make_pipeline("passthrough", SGDClassifier(random_state=0)), False),
    ],
)
def test_a_training_goes_on_from_its_state_as_if_never_interrupted(
    make: Callable[[], Any], kept: bool | None
) -> None:
    straight = trained(make(), 4, 4, X[:60], Y[:60])
    first = IncrementalFit(make(), 4, last_step=True, labels=Y)
    for _ in range(2):
        first.advance(lambda: (X[:60], Y[:60], {}))
    state = first.state(lambda: (X[:60], Y[:60], {}))
    assert kept in (None, state["data"] is not None and state["data"][0] is not None)
    second = IncrementalFit(make(), 4, last_step=True, labels=Y)
    second.resume(state, lambda: (X[:60], Y[:60], {}))
    for _ in range(2):
        second.advance(lambda: (X[:60], Y[:60], {}))
    assert second.done == 4
    assert same(second.estimator, straight)


def test_parameters_may_change_on_the_way() -> None:
    piecewise = IncrementalFit(
        make_pipeline(StandardScaler(), SGDClassifier(random_state=0)), 3, last_step=True, labels=Y
    )
    piecewise.advance(lambda: (X, Y, {}))
    piecewise.change({"sgdclassifier__alpha": 1.0})
    piecewise.advance(lambda: (X, Y, {}))
    scaled = StandardScaler().fit_transform(X)
    by_hand = SGDClassifier(random_state=0).partial_fit(scaled, Y, classes=np.unique(Y))
    by_hand.set_params(alpha=1.0).partial_fit(scaled, Y)
    assert same(piecewise.estimator.named_steps["sgdclassifier"], by_hand, scaled)


def test_a_transformer_that_fails_leaves_the_pipeline_whole() -> None:
    def fail(X: Any) -> Any:
        raise ValueError("no such column")

    piecewise = IncrementalFit(
        make_pipeline(FunctionTransformer(fail), SGDClassifier(random_state=0)), 3, last_step=True, labels=Y
    )
    with pytest.raises(ValueError, match="no such column"):
        piecewise.advance(lambda: (X, Y, {}))
    assert type(piecewise.estimator.steps[-1][1]) is SGDClassifier
    assert piecewise.done == 0
