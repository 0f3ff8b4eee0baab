"""What the arguments of a search mean to the tuner."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.svm import SVC

from trainkit.errors import ConfigError
from trainkit.plugins.integrations.mlflow import MLflowLoggerCallback
from trainkit.plugins.integrations.wandb import WandbLoggerCallback
from trainkit.sklearn import TuneSearchCV
from trainkit.sklearn.candidates import CandidateList, CandidateSource
from trainkit.sklearn.settings import (
    TUNE_PARAMS,
    AfterAllFolds,
    Settings,
    loggers_of,
    metric_of,
    names_of_settings,
    settings_of,
    trials_at_once,
)
from trainkit.tune.callbacks import Callback, CSVLoggerCallback
from trainkit.tune.controller.rules import words_of
from trainkit.tune.core.setting_names import named_as
from trainkit.tune.core.stoppers import MaximumIterationStopper


def settled(tune_params: Any = None, scheduler: Any = None, **arguments: Any) -> Settings:
    return settings_of(
        TuneSearchCV(SVC(), {"C": [1, 2]}, **arguments),
        CandidateSource(CandidateList([{"C": 1}, {"C": 2}]), seed=3),
        metric="average_test_score",
        scheduler=scheduler,
        folds=4,
        machine_cpus=8,
        results_dir="/results",
        tune_params=tune_params,
    )


# --- what runs at once ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_jobs", "at_once"), [(None, None), (-1, None), (1, 1), (20, 20), (-2, 7), (-99, 1)]
)
def test_n_jobs_counts_as_joblib_does(n_jobs: int | None, at_once: int | None) -> None:
    assert trials_at_once(n_jobs, 8) == at_once


@pytest.mark.parametrize(
    ("arguments", "session", "at_once", "request_"),
    [
        ({}, 8, None, {"cpu": 1, "gpu": 0}),
        ({"n_jobs": 3}, 3, 3, {"cpu": 1, "gpu": 0}),
        ({"n_jobs": 12}, 12, 12, {"cpu": 1, "gpu": 0}),
        ({"n_jobs": 2, "sk_n_jobs": 3}, 6, 2, {"cpu": 3, "gpu": 0}),
        ({"sk_n_jobs": 16}, 16, None, {"cpu": 16, "gpu": 0}),
        ({"use_gpu": True}, 8, None, {"cpu": 1, "gpu": 1}),
    ],
)
def test_session_and_request(
    arguments: dict[str, Any], session: int, at_once: int | None, request_: dict[str, float]
) -> None:
    found = settled(**arguments)
    assert (found.cpus, found.tune.max_concurrent_trials, found.resources) == (session, at_once, request_)


# --- where it is kept, and who is told ------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "name", "place", "files"),
    [
        ({}, None, None, ()),
        ({"name": "mine"}, "mine", None, ("json", "csv")),
        ({"local_dir": "/here"}, None, "/here", ("json", "csv")),
        ({"loggers": ["tensorboard"]}, None, "/results", ("json", "csv", "tensorboard")),
        ({"loggers": ["csv"], "local_dir": "/here"}, None, "/here", ("json", "csv")),
        ({"loggers": []}, None, None, ()),
    ],
)
def test_where_an_experiment_is_kept(
    arguments: dict[str, Any], name: str | None, place: str | None, files: tuple[str, ...]
) -> None:
    run = settled(**arguments).run
    assert (run.name, run.storage_path, run.default_loggers) == (name, place, files)


def test_loggers_by_name_class_and_object() -> None:
    made = CSVLoggerCallback()
    callbacks, files = loggers_of(["json", "mlflow", "wandb", CSVLoggerCallback, made])
    assert files == ("json",)
    kinds = [MLflowLoggerCallback, WandbLoggerCallback, CSVLoggerCallback, CSVLoggerCallback]
    assert [type(each) for each in callbacks] == kinds
    assert callbacks[-1] is made


@pytest.mark.parametrize("wrong", ["csv", ["excel"], [3], [SVC], 3])
def test_what_is_no_logger_is_told(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"loggers.*csv, json, mlflow, tensorboard, wandb"):
        loggers_of(wrong)


# --- when it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"average_test_score": 0.9}, "stopped by stopper: average_test_score=0.95 reached 0.9"),
        (lambda trial_id, result: True, "stopped by stopper"),
        (MaximumIterationStopper(1), "stopped by MaximumIterationStopper: training_iteration 1, max_iter 1"),
    ],
)
def test_a_stopper_is_said_to_have_stopped_what_it_has(rule: Any, words: str) -> None:
    with named_as(names_of_settings("param_grid", True, None)):
        stop = AfterAllFolds(rule, folds=1)
    assert stop("a", {"training_iteration": 1, "split0_fit_time": 0.1, "average_test_score": 0.95})
    assert words_of(stop) == words


# --- tune_params ----------------------------------------------------------------------------------


def test_tune_params_go_before_the_constructor() -> None:
    told = Callback()
    found = settled(
        {
            "verbose": 2,
            "name": "other",
            "local_dir": "/there",
            "max_failures": 2,
            "resources_per_trial": {"gpu": 0.5},
            "callbacks": [told],
            "trial_timeout_s": 9,
            "seed": 8,
        },
        verbose=0,
        loggers=[CSVLoggerCallback],
    )
    assert (found.run.verbose, found.run.name, found.run.storage_path) == (2, "other", "/there")
    assert found.run.failure_config.max_failures == 2
    assert found.resources == {"cpu": 1, "gpu": 0.5}
    assert [type(each) for each in found.run.callbacks] == [CSVLoggerCallback, Callback]
    assert (found.tune.trial_timeout_s, found.tune.seed) == (9, 8)


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"verbosity": 2}, "Did you mean 'verbose'"),
        ({"timeout": 2}, "Did you mean 'trial_timeout_s'"),
        ({"nonsense": 2}, TUNE_PARAMS[0]),
        ({"num_samples": 3}, "n_trials"),
        ({"scheduler": "asha"}, "early_stopping"),
        ({"metric": "loss"}, "scoring and refit"),
        ([1], "dictionary"),
        ({"constraints": ["a >= 0.9"]}, "can't have 'constraints': use a function as refit"),
    ],
)
def test_tune_params_that_are_not_taken(given_: Any, words: str) -> None:
    with pytest.raises(ConfigError, match="tune_params") as caught:
        settled(given_)
    assert words in str(caught.value)


def test_trials_that_are_tried_again_and_an_error_that_ends_the_search_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="max_failures=1, but error_score='raise'"):
        settled({"max_failures": 1}, error_score="raise")


# --- what is optimised ----------------------------------------------------------------------------


def by_scores(estimator: Any, X: Any, y: Any) -> dict[str, float]:
    return {"a": 1.0}


@pytest.mark.parametrize(
    ("scoring", "refit", "needed_by", "metric"),
    [
        (None, True, None, "average_test_score"),
        ("accuracy", False, None, "average_test_score"),
        (None, len, None, "average_test_score"),
        (["a", "b"], "b", None, "average_test_b"),
        ({"a": "accuracy"}, "a", "a searcher", "average_test_a"),
        (("a", "b"), False, None, None),
        (["a", "b"], len, None, None),
        (make_scorer(accuracy_score), True, None, "average_test_score"),
        (make_scorer(accuracy_score), False, None, "average_test_score"),
        (by_scores, "a", None, "average_test_a"),
        (by_scores, True, None, None),
        (by_scores, True, "a searcher", "average_test_score"),
    ],
)
def test_the_metric_is_the_mean_of_the_refit_scorer(
    scoring: Any, refit: Any, needed_by: str | None, metric: str | None
) -> None:
    assert metric_of(scoring, refit, needed_by=needed_by) == metric
