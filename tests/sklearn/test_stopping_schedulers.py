"""What stops candidates of a search: schedulers by name and as objects, populations, what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.sklearn.by_hand import ALPHAS, FOLDS, SGD, X, Y, by_hand, scores_by_hand, split_scores
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
