"""Searches whose candidates are stopped early, as a user meets them."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.sklearn.piecewise import Piecewise
from trainkit.tune import Stopper
from trainkit.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)

pytestmark = pytest.mark.usefixtures("runtime")
PRELOAD = ("trainkit.sklearn.epochs",)

X, Y = load_digits(return_X_y=True)
X, Y = X[:180] / 16, Y[:180]
ALPHAS = [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0]
SGD = SGDClassifier(random_state=0)
FOLDS = 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """What is trained here, to compare, takes one CPU, as a trial does."""
    with threadpool_limits(1):
        yield


def by_hand(estimator: Any, done: int, portions: int, X: Any, y: Any) -> Any:
    """The estimator after so many portions, trained here; `test_piecewise` shows what that comes to."""
    piecewise = Piecewise(clone(estimator), portions, last_step=True, labels=Y)
    for _ in range(done):
        piecewise.advance(lambda: (X, y, {}))
    return piecewise.estimator


def scores_by_hand(estimator: Any, done: int, portions: int) -> list[float]:
    """Its score in each fold."""
    return [
        by_hand(estimator, done, portions, X[train], Y[train]).score(X[test], Y[test])
        for train, test in StratifiedKFold(FOLDS).split(X, Y)
    ]


def split_scores(search: Any, candidate: int) -> list[float]:
    """The score of a candidate in each fold."""
    return [float(search.cv_results_[f"split{split}_test_score"][candidate]) for split in range(FOLDS)]


# --- what a candidate's scores are ------------------------------------------------------------------


# row 1.38
@pytest.mark.parametrize(
    ("estimator", "grid", "portions"),
    [
        (SGD, {"alpha": [1e-4, 1.0, 1000.0]}, 4),
        (MLPClassifier((8,), random_state=0), {"alpha": [1e-4, 100.0]}, 3),
        (MLPClassifier((8,), solver="lbfgs", max_iter=9, random_state=0), {"alpha": [1e-4, 100.0]}, 3),
        (LogisticRegression(max_iter=20), {"C": [1e-4, 1.0]}, 4),
        (RandomForestClassifier(n_estimators=8, random_state=0), {"max_depth": [1, 4]}, 4),
        (
            GradientBoostingClassifier(n_estimators=4, max_depth=1, random_state=0),
            {"subsample": [0.5, 1.0]},
            2,
        ),
        (
            HistGradientBoostingClassifier(max_iter=2, max_leaf_nodes=2, random_state=0),
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
    search = TuneGridSearchCV(estimator, grid, early_stopping=True, max_iters=portions, cv=FOLDS).fit(X, Y)
    iterations = search.cv_results_["training_iteration"]
    assert max(iterations) == portions
    for candidate, parameters in enumerate(search.cv_results_["params"]):
        itself = clone(estimator).set_params(**parameters)
        assert split_scores(search, candidate) == scores_by_hand(itself, iterations[candidate], portions)
    best = clone(estimator).set_params(**search.best_params_)
    refitted = by_hand(best, iterations[search.best_index_], portions, X, Y)
    how = "predict_proba" if hasattr(refitted, "predict_proba") else "decision_function"
    assert np.array_equal(getattr(search, how)(X), getattr(refitted, how)(X))


# row 1.38
def test_a_candidate_that_was_stopped_has_the_scores_of_its_last_report() -> None:
    search = TuneGridSearchCV(SGD, {"alpha": ALPHAS}, early_stopping=True, max_iters=16, cv=FOLDS).fit(X, Y)
    iterations = list(search.cv_results_["training_iteration"])
    assert set(iterations) <= {1, 4, 16}  # the rungs of ASHA
    assert min(iterations) < 16
    for candidate, done in enumerate(iterations):
        itself = clone(SGD).set_params(alpha=ALPHAS[candidate])
        assert split_scores(search, candidate) == scores_by_hand(itself, done, 16)


# row 1.38
def test_the_best_may_be_one_that_was_stopped() -> None:
    class Last(MedianStoppingRule):
        """Stops all at their second report."""

        def decide(self, trial_id: str, time: float | None, score: float | None) -> Any:
            from trainkit.tune.schedulers.base import CONTINUE, Decision, Verdict

            return Decision(Verdict.STOP) if time is not None and time >= 2 else CONTINUE

    scheduler = Last(time_attr="training_iteration", grace_period=1)
    search = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, early_stopping=scheduler, max_iters=9, cv=FOLDS).fit(
        X, Y
    )
    assert list(search.cv_results_["training_iteration"]) == [2]
    refitted = by_hand(clone(SGD).set_params(alpha=1e-3), 2, 9, X, Y)
    assert np.array_equal(search.best_estimator_.coef_, refitted.coef_)
    assert search.best_estimator_.t_ == 2 * len(Y) + 1


# row 1.38
def test_an_ensemble_that_was_stopped_says_how_many_it_has() -> None:
    forest = RandomForestClassifier(n_estimators=30, random_state=0)
    search = TuneGridSearchCV(forest, {"max_depth": [4]}, early_stopping="fifo", max_iters=3, cv=2)
    search.fit(X, Y)
    assert search.best_estimator_.get_params() == {**forest.get_params(), "max_depth": 4}
    assert np.array_equal(search.predict_proba(X), search.best_estimator_.fit(X, Y).predict_proba(X))


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


# --- schedulers -------------------------------------------------------------------------------------


# row 1.38: those that tune-sklearn knows by name, and ours
@pytest.mark.parametrize(
    "early_stopping",
    [
        "AsyncHyperBandScheduler",
        "ASHAScheduler",
        "HyperBandScheduler",
        "MedianStoppingRule",
        "hyperband",
        ASHAScheduler(max_t=9, reduction_factor=2, type="promotion"),
        HyperBandScheduler(max_t=9),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_schedulers_by_name_and_as_objects(early_stopping: Any) -> None:
    pipeline = make_pipeline(StandardScaler(), SGD)
    grid = {"sgdclassifier__alpha": ALPHAS}
    search = TuneGridSearchCV(pipeline, grid, early_stopping=early_stopping, max_iters=9, cv=FOLDS).fit(X, Y)
    iterations = list(search.cv_results_["training_iteration"])
    assert max(iterations) >= 8  # its last rung, where promotion comes to an end
    assert sum(iterations) < 9 * len(ALPHAS)
    # Paused and gone on with, or not: the scores are those of a training without a pause.
    for candidate, done in enumerate(iterations):
        itself = clone(pipeline).set_params(**search.cv_results_["params"][candidate])
        assert split_scores(search, candidate) == scores_by_hand(itself, done, 9)


# row 1.38
def test_a_population_changes_parameters_on_the_way_and_so_does_the_refit() -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"alpha": tune.loguniform(1e-5, 1e-1)},
        quantile_fraction=0.5,
        synch=True,
    )
    search = TuneGridSearchCV(SGD, {"alpha": [1e-4, 10.0]}, early_stopping=scheduler, max_iters=6, cv=2)
    search.fit(X, Y)
    assert 10.0 not in [parameters["alpha"] for parameters in search.cv_results_["params"]]
    assert search.best_estimator_.alpha == search.best_params_["alpha"]
    assert search.best_estimator_.t_ == 6 * len(Y) + 1


def test_a_population_cannot_change_what_is_fitted_once() -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_mutations={"pca__n_components": [2, 4, 8]},
        quantile_fraction=0.5,
        resample_probability=1.0,
        synch=True,
    )
    pipeline = Pipeline([("pca", PCA()), ("sgd", SGD)])
    search = TuneGridSearchCV(
        pipeline, {"pca__n_components": [2, 30]}, early_stopping=scheduler, max_iters=5, cv=2
    )
    with pytest.raises(ConfigError, match="pca__n_components can't change in the course of a training"):
        search.fit(X, Y)


def test_less_is_better_where_mode_says_so() -> None:
    def loss(estimator: Any, X: Any, y: Any) -> float:
        return 1 - float(estimator.score(X, y))

    search = TuneGridSearchCV(
        SGD, {"alpha": ALPHAS}, early_stopping=True, max_iters=4, cv=FOLDS, scoring=loss, mode="min"
    ).fit(X, Y)
    assert search.best_score_ == min(search.cv_results_["mean_test_score"])
    assert search.cv_results_["rank_test_score"][search.best_index_] == 1
    assert search.cv_results_["training_iteration"][-1] == 1  # the worst, which came last


# --- failures ---------------------------------------------------------------------------------------


class Passes(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns nothing, one call after another."""

    def __init__(self, bad: bool = False) -> None:
        self.bad = bad

    def fit(self, X: Any, y: Any) -> Self:
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        self.calls_ = getattr(self, "calls_", 0) + 1
        self.classes_ = np.arange(10)
        if self.bad and self.calls_ == 3:
            self.fail()
        return self

    def fail(self) -> None:
        raise FloatingPointError("overflow in the third portion")

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X), dtype=int)


class Dies(Passes):
    """Ends its process."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Lingers(Passes):
    """Takes its time for each portion, or for ever."""

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        time.sleep(600 if self.bad else 0)
        return super().partial_fit(X, y, classes)


# row 1.38
def test_a_candidate_that_fails_on_the_way_gets_the_error_score() -> None:
    search = TuneGridSearchCV(
        Passes(), {"bad": [True, False]}, early_stopping="fifo", max_iters=5, cv=2, error_score=-1.0
    )
    with pytest.warns(FitFailedWarning, match="overflow in the third portion"):
        search.fit(X, Y)
    assert list(search.cv_results_["mean_test_score"]) == [-1.0, pytest.approx(0.1, abs=0.05)]
    assert list(search.cv_results_["training_iteration"]) == [3, 5]
    assert search.best_params_ == {"bad": False}


def test_the_error_itself_leaves_fit_where_it_is_to() -> None:
    search = TuneGridSearchCV(Passes(), {"bad": [True, False]}, early_stopping="fifo", max_iters=5, cv=2)
    with pytest.raises(FloatingPointError, match="third portion"):
        search.fit(X, Y)


def test_a_candidate_whose_process_dies_has_failed_with_all_that_it_had_reached() -> None:
    search = TuneGridSearchCV(
        Dies(), {"bad": [True, False]}, early_stopping="fifo", max_iters=5, cv=2, error_score=2.0
    )
    with pytest.warns(FitFailedWarning, match="SIGKILL"):
        search.fit(X, Y)
    assert search.cv_results_["mean_test_score"][0] == 2.0
    assert list(search.cv_results_["training_iteration"]) == [2, 5]


class ThirdReport(Stopper):
    """Ends the search with the third report of all."""

    def __init__(self) -> None:
        self.reports = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.reports += 1
        return False

    def stop_all(self) -> bool:
        return self.reports >= 3


def test_when_the_search_ends_what_was_reported_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "0.5")
    search = TuneGridSearchCV(
        Lingers(),
        {"bad": [False, True]},
        early_stopping="fifo",
        max_iters=10_000,
        cv=2,
        stopper=ThirdReport(),
    )
    with pytest.warns(UserWarning, match="1 candidate was not complete"):
        search.fit(X, Y)
    assert search.cv_results_["params"] == [{"bad": False}]
    done = search.cv_results_["training_iteration"][0]
    assert 3 <= done < 10_000
    assert search.best_estimator_.calls_ == done


def test_a_parameter_that_is_out_of_range_fails_its_candidate_alone() -> None:
    search = TuneGridSearchCV(
        SGDClassifier(penalty="elasticnet", random_state=0),
        {"l1_ratio": [0.9, 1.2]},
        early_stopping=True,
        max_iters=2,
        cv=2,
        error_score=np.nan,
    )
    with pytest.warns(FitFailedWarning, match="l1_ratio"):
        search.fit(X, Y)
    assert np.isnan(search.cv_results_["mean_test_score"][1])
    assert search.best_index_ == 0


# --- what is refused --------------------------------------------------------------------------------


# row 1.38
@pytest.mark.parametrize(
    ("estimator", "grid", "settings", "words"),
    [
        (SVC(), {"C": [1]}, {"early_stopping": True}, "SVC can't be trained a portion at a time"),
        (
            make_pipeline(StandardScaler(), SVC()),
            {"svc__C": [1]},
            {"early_stopping": True},
            "SVC can't be trained a portion at a time",
        ),
        (
            make_pipeline(StandardScaler(), SGD),
            {"sgdclassifier__alpha": [1]},
            {"early_stopping": True, "pipeline_auto_early_stop": False},
            "pipeline_auto_early_stop=True",
        ),
        (
            RandomForestClassifier(),
            {"n_estimators": [10, 20]},
            {"early_stopping": True},
            "n_estimators is searched.*take n_estimators out of the search",
        ),
        (
            RandomForestClassifier(n_estimators=3),
            [{"max_depth": [1]}, {"max_depth": [2]}],
            {"early_stopping": True},
            "n_estimators=3 can't be divided into max_iters=5",
        ),
        (SGD, {"alpha": [1]}, {"early_stopping": "nobody"}, "'nobody' is none of asha"),
        (SGD, {"alpha": [1]}, {"early_stopping": 3}, "early_stopping=3: give True"),
        (SGD, {"alpha": [1]}, {"early_stopping": True, "max_iters": 0}, "max_iters=0: give a whole number"),
        (
            SGD,
            {"alpha": [1]},
            {"early_stopping": ASHAScheduler(metric="loss", mode="max")},
            r"ASHAScheduler\(metric='loss'\) contradicts the search, whose metric is 'average_test_score'",
        ),
        (
            SGD,
            {"alpha": [1]},
            {"early_stopping": ASHAScheduler(mode="min")},
            r"ASHAScheduler\(mode='min'\) contradicts the search, whose mode is 'max'",
        ),
        (
            SGD,
            {"alpha": [1]},
            {"early_stopping": ASHAScheduler(time_attr="epoch")},
            "counts by what candidates don't report: take time_attr='training_iteration'",
        ),
        (
            SGD,
            {"alpha": [1]},
            {"early_stopping": ASHAScheduler(grace_period=20)},
            "judges nobody before training_iteration=20, and max_iters=5",
        ),
        (
            SGD,
            {"alpha": [1]},
            {"early_stopping": "PopulationBasedTraining"},
            "has nothing to explore: give hyperparam_mutations",
        ),
        (
            SGD,
            {"alpha": [1]},
            {"early_stopping": True, "scoring": ["accuracy", "f1_macro"], "refit": False},
            "refit=False names none of the scorers 'accuracy', 'f1_macro', and early_stopping needs to know",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    estimator: Any, grid: Any, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        TuneGridSearchCV(estimator, grid, **{"max_iters": 5, "cv": 2, **settings}).fit(X, Y)


# row 1.38
def test_one_report_is_no_early_stopping() -> None:
    search = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, early_stopping=True, cv=2)
    with pytest.warns(UserWarning, match="max_iters=1 stops nothing.*set max_iters to"):
        search.fit(X, Y)
    assert list(search.cv_results_["training_iteration"]) == [1]


# row 1.38
def test_many_reports_without_early_stopping_are_none() -> None:
    search = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, max_iters=5, cv=2)
    with pytest.warns(UserWarning, match="max_iters=5 has no effect without early_stopping"):
        search.fit(X, Y)
    assert "training_iteration" not in search.cv_results_


# --- the other search -------------------------------------------------------------------------------


# row 1.38
@pytest.mark.parametrize("search_optimization", ["random", "bohb"])
def test_searches_that_draw_stop_early_too(search_optimization: str) -> None:
    search = TuneSearchCV(
        SGD,
        {"alpha": tune.loguniform(1e-4, 1e3)},
        n_trials=9,
        search_optimization=search_optimization,
        early_stopping=True,
        max_iters=9,
        random_state=0,
        cv=FOLDS,
    ).fit(X, Y)
    iterations = search.cv_results_["training_iteration"]
    assert len(iterations) == 9
    assert min(iterations) < 9
    refitted = by_hand(clone(SGD).set_params(**search.best_params_), iterations[search.best_index_], 9, X, Y)
    assert np.array_equal(search.best_estimator_.coef_, refitted.coef_)


def test_the_resource_cannot_be_drawn_either() -> None:
    forest = RandomForestClassifier()
    for space in ({"n_estimators": [5, 10]}, [{"max_depth": [1]}, {"n_estimators": [5, 10]}]):
        search = TuneSearchCV(forest, space, early_stopping=True, max_iters=5)
        with pytest.raises(ConfigError, match="n_estimators is searched"):
            search.fit(X, Y)


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
    with pytest.warns(FitFailedWarning, match="begins anew with each fit"):
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


def test_ends_of_portions_warn_nobody() -> None:
    search = TuneGridSearchCV(
        LogisticRegression(max_iter=400), {"C": [1.0]}, early_stopping=True, max_iters=4, cv=2
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search.fit(X, Y)


def test_a_scorer_that_needs_probabilities_is_given_them() -> None:
    scorer = make_scorer(accuracy_score)
    for scoring in ("neg_log_loss", scorer):
        search = TuneGridSearchCV(
            make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)),
            {"sgdclassifier__alpha": [1e-2]},
            early_stopping=True,
            max_iters=2,
            cv=2,
            scoring=scoring,
        ).fit(X, Y)
        train, test = next(StratifiedKFold(2).split(X, Y))
        itself = by_hand(search.best_estimator_, 2, 2, X[train], Y[train])
        expected = search.scorer_(itself, X[test], Y[test])
        assert search.cv_results_["split0_test_score"][0] == expected
