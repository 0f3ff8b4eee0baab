"""What stops candidates of a search, what fails on the way, and what is refused before anything runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from tests.sklearn.by_hand import ALPHAS, FOLDS, SGD, X, Y, by_hand, scores_by_hand, split_scores
from tests.sklearn.scripted_estimator import EndsAfter
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.tune.schedulers import ASHAScheduler, PopulationBasedTraining

pytestmark = pytest.mark.usefixtures("runtime")


# --- schedulers -------------------------------------------------------------------------------------


# row 1.38: those that tune-sklearn knows by name, and ours
@pytest.mark.parametrize(
    "early_stopping",
    [
        "ASHAScheduler",
        "HyperBandScheduler",
        "MedianStoppingRule",
        ASHAScheduler(max_t=9, reduction_factor=2, type="promotion"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_schedulers_by_name_and_as_objects(early_stopping: Any) -> None:
    pipeline = make_pipeline(StandardScaler(), SGD)
    grid = {"sgdclassifier__alpha": ALPHAS}
    # One at a time, as who is stopped depends on who came before.
    arguments: dict[str, Any] = {"early_stopping": early_stopping, "max_iters": 9, "cv": FOLDS, "n_jobs": 1}
    search = TuneGridSearchCV(pipeline, grid, **arguments).fit(X, Y)
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
        pipeline,
        {"pca__n_components": [2, 30]},
        early_stopping=scheduler,
        max_iters=5,
        cv=2,
        error_score="raise",
    )
    with pytest.raises(ConfigError, match="pca__n_components cannot change during training"):
        search.fit(X, Y)


def test_less_is_better_where_mode_says_so() -> None:
    def loss(estimator: Any, X: Any, y: Any) -> float:
        return 1 - float(estimator.score(X, y))

    search = TuneGridSearchCV(
        SGD,
        {"alpha": ALPHAS},
        early_stopping=True,
        max_iters=4,
        cv=FOLDS,
        scoring=loss,
        mode="min",
        n_jobs=1,
    ).fit(X, Y)
    assert search.best_score_ == min(search.cv_results_["mean_test_score"])
    assert search.cv_results_["rank_test_score"][search.best_index_] == 1
    assert search.cv_results_["training_iteration"][-1] == 1  # the worst, which came last


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
        n_jobs=1,
    ).fit(X, Y)
    iterations = search.cv_results_["training_iteration"]
    assert len(iterations) == 9
    assert min(iterations) < 9
    best = clone(SGD).set_params(**search.best_params_)
    rungs = search_optimization != "bohb"  # whose Hyperband is asked after each portion
    refitted = by_hand(best, iterations[search.best_index_], 9, X, Y, from_rung_to_rung=rungs)
    assert np.array_equal(search.best_estimator_.coef_, refitted.coef_)


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


class CountedScorer:
    """Notes who pickles it."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __getstate__(self) -> dict[str, Any]:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return vars(self)

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        return 0.5


def stopping(estimator: Any, bad: list[bool], how: Any = "fifo", **arguments: Any) -> TuneGridSearchCV:
    arguments = {"early_stopping": how, "max_iters": 5, "cv": 2, **arguments}
    return TuneGridSearchCV(estimator, {"bad": bad}, **arguments)


def test_a_search_that_cannot_be_gone_on_with_is_not_read_for_it(tmp_path: Path) -> None:
    counts = []
    for stopper in (None, EndsAfter(1)):
        log = tmp_path / f"log_{len(counts)}"
        search = stopping(Passes(), [False], True, max_iters=3, scoring=CountedScorer(log), stopper=stopper)
        search.set_params(refit=False).fit(X, Y)
        counts.append(log.read_text().splitlines().count(str(os.getpid())))
    assert counts[0] == counts[1] > 0


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
    search = stopping(Passes(), [True, False], error_score=-1.0)
    with pytest.warns(FitFailedWarning, match="overflow in the third portion"):
        search.fit(X, Y)
    assert list(search.cv_results_["mean_test_score"]) == [-1.0, pytest.approx(0.1, abs=0.05)]
    assert list(search.cv_results_["training_iteration"]) == [3, 5]
    assert search.best_params_ == {"bad": False}


def test_the_error_itself_leaves_fit_where_it_is_to() -> None:
    search = stopping(Passes(), [True, False], error_score="raise")
    with pytest.raises(FloatingPointError, match="third portion"):
        search.fit(X, Y)


def test_a_candidate_whose_process_dies_has_failed_with_all_that_it_had_reached() -> None:
    search = stopping(Dies(), [True, False], error_score=2.0)
    with pytest.warns(FitFailedWarning, match="SIGKILL"):
        search.fit(X, Y)
    assert search.cv_results_["mean_test_score"][0] == 2.0
    assert list(search.cv_results_["training_iteration"]) == [2, 5]


def test_when_the_search_ends_what_was_reported_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "0.5")
    search = stopping(Lingers(), [False, True], max_iters=10_000, stopper=EndsAfter(3))
    with pytest.warns(
        UserWarning, match=r"1 candidate was incomplete .* a second fit starts from the beginning"
    ):
        search.fit(X, Y)
    assert search.cv_results_["params"] == [{"bad": False}]
    done = search.cv_results_["training_iteration"][0]
    assert 3 <= done < 10_000
    assert search.best_estimator_.calls_ == done


# --- what is refused --------------------------------------------------------------------------------


def refused(estimator: Any, grid: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TuneGridSearchCV(estimator, grid, **{"max_iters": 5, "cv": 2, **settings}).fit(X, Y)


SCALED, SCALED_SGD = (make_pipeline(StandardScaler(), each) for each in (SVC(), SGD))
FOREST, SMALL = RandomForestClassifier(), RandomForestClassifier(n_estimators=3)


# row 1.38
@pytest.mark.parametrize(
    ("estimator", "grid", "settings", "words"),
    [
        (SVC(), {"C": [1]}, {}, "SVC can't be trained a portion at a time"),
        (SCALED, {"svc__C": [1]}, {}, "SVC can't be trained a portion at a time"),
        (SCALED_SGD, {}, {"pipeline_auto_early_stop": False}, "pipeline_auto_early_stop=True"),
        (FOREST, {"n_estimators": [10]}, {}, "n_estimators cannot be searched.*remove n_estimators from the"),
        (SMALL, [{"max_depth": [1]}], {}, "n_estimators=3 cannot be divided into max_iters=5"),
    ],
)
def test_an_estimator_that_cannot_be_stopped_is_refused(
    estimator: Any, grid: Any, settings: dict[str, Any], words: str
) -> None:
    refused(estimator, grid, {"early_stopping": True, **settings}, words)


# row 1.38
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nobody", "early_stopping='nobody' is not one of asha"),
        ("Ahsa", "Did you mean 'asha'"),
        (3, "early_stopping must be True"),
        (
            ASHAScheduler(metric="loss", mode="max"),
            r"ASHAScheduler\(metric='loss'\) contradicts the search, whose metric is 'average_test_score'",
        ),
        (
            ASHAScheduler(mode="min"),
            r"ASHAScheduler\(mode='min'\) contradicts the search, whose mode is 'max'",
        ),
        (
            ASHAScheduler(time_attr="epoch"),
            "needs a count that candidates don't report: use time_attr='training_iteration'",
        ),
        (
            ASHAScheduler(grace_period=20),
            "makes no decision before training_iteration=20, but max_iters=5",
        ),
        ("pareto", "ParetoScheduler compares several metrics"),
        (
            "PopulationBasedTraining",
            r"PopulationBasedTraining\(time_attr='training_iteration', perturbation_interval=1, "
            r"hyperparam_mutations=\{'alpha': .*has nothing to explore",
        ),
    ],
)
def test_what_cannot_stop_candidates_is_refused(how: Any, words: str) -> None:
    refused(SGD, {"alpha": [1]}, {"early_stopping": how}, words)


# row 1.38
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_iters": 0}, "max_iters must be a positive integer, not 0"),
        (
            {"scoring": ["accuracy", "f1_macro"], "refit": False},
            "refit=False names none of the scorers 'accuracy', 'f1_macro', but early_stopping needs one",
        ),
    ],
)
def test_other_arguments_are_refused_with_it(settings: dict[str, Any], words: str) -> None:
    refused(SGD, {"alpha": [1]}, {"early_stopping": True, **settings}, words)


# row 1.38
def test_one_report_is_no_early_stopping() -> None:
    search = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, early_stopping=True, cv=2)
    with pytest.warns(UserWarning, match="max_iters=1 stops no candidate.*set max_iters to") as told:
        search.fit(X, Y)
    assert {warning.filename for warning in told} == {__file__}
    assert list(search.cv_results_["training_iteration"]) == [1]


# row 1.38
def test_many_reports_without_early_stopping_are_none() -> None:
    search = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, max_iters=5, cv=2)
    with pytest.warns(UserWarning, match="max_iters=5 has no effect without early_stopping"):
        search.fit(X, Y)
    assert "training_iteration" not in search.cv_results_
