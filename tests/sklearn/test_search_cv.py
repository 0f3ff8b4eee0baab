"""`TuneSearchCV` as a user meets it: its arguments, and what is told of wrong ones."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.utils._param_validation import InvalidParameterError

import trainkit
from tests.sklearn.searches import LEARNING, C, X, Y, search, session  # noqa: F401 - the fixture
from trainkit.errors import ConfigError, InfeasibleError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.tune.search.optuna import OptunaSearch

# --- the constructor: row 1.8 and section 3.4 of the conventions ----------------------------------

SIGNATURES = {
    TuneGridSearchCV: """estimator, param_grid, early_stopping=None, scoring=None, n_jobs=None, cv=5,
        refit=True, verbose=0, error_score=nan, return_train_score=False, local_dir=None, name=None,
        max_iters=1, use_gpu=False, loggers=None, pipeline_auto_early_stop=True, stopper=None,
        time_budget_s=None, sk_n_jobs=None, mode=None""",
    TuneSearchCV: """estimator, param_distributions, early_stopping=None, n_trials=10, scoring=None,
        n_jobs=None, refit=True, cv=None, verbose=0, random_state=None, error_score=nan,
        return_train_score=False, local_dir=None, name=None, max_iters=1, search_optimization='random',
        use_gpu=False, loggers=None, pipeline_auto_early_stop=True, stopper=None, time_budget_s=None,
        sk_n_jobs=None, mode=None, search_kwargs=None""",
}
"""The arguments of tune-sklearn; error_score is scikit-learn's."""


@pytest.mark.parametrize("cls", SIGNATURES)
def test_names_order_and_defaults_are_tune_sklearns(cls: Any) -> None:
    theirs = inspect.signature(eval(f"(lambda {SIGNATURES[cls]}: 0)", {"nan": math.nan})).parameters  # noqa: S307 - as above
    ours = inspect.signature(cls).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, each in theirs.items():
        assert ours[name].default is each.default or ours[name].default == each.default, name


def test_the_constructor_only_stores() -> None:
    given = {name: object() for name in inspect.signature(TuneSearchCV).parameters}
    made = TuneSearchCV(**given)
    assert all(getattr(made, name) is value for name, value in given.items())
    assert clone(search(n_iter=4)).get_params()["n_iter"] == 4


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"search_optimization": "annealing"}, "not one of random, bayesian, bohb, hyperopt, optuna"),
        ({"search_optimization": "optun"}, "Did you mean 'optuna'?"),
        ({"search_optimization": 3}, "not one of random"),
        ({"search_kwargs": {"seed": 1}}, "random search takes no arguments"),
        (
            {"search_optimization": "optuna", "search_kwargs": {"gama": 1}},
            "OptunaSearch has no arguments gama",
        ),
        (
            {"search_optimization": OptunaSearch(), "search_kwargs": {"seed": 1}},
            "not an existing OptunaSearch",
        ),
        ({"search_optimization": "optuna", "scoring": ["f1_macro", "accuracy"], "refit": False}, "refit="),
        ({"n_jobs": 0}, "n_jobs must be at least 1"),
        ({"sk_n_jobs": 0}, "sk_n_jobs must be at least 1"),
        ({"stopper": 3}, "stopper=3"),
        ({"local_dir": ""}, "local_dir=''"),
        (
            {"search_optimization": OptunaSearch(metric="loss", mode="min")},
            "OptunaSearch(metric='loss') contradicts the search",
        ),
        ({"loggers": "csv"}, "loggers must be a list"),
        ({"mode": "best"}, "mode must be 'max', 'min'"),
        ({"time_budget_s": -1}, "time_budget_s=-1"),
        ({"name": "a/b"}, "name='a/b'"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        search(**given).fit(X, Y)
    assert words in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "given",
    [
        {"n_trials": 0},
        {"n_trials": 2.5},
        {"n_iter": 0},
        {"n_jobs": "two"},
        {"sk_n_jobs": 1.5},
        {"use_gpu": 3},
        {"random_state": "seed"},
        {"random_state": -1},
        {"search_kwargs": [1]},
        {"verbose": -1},
    ],
)
def test_a_wrong_type_is_scikit_learns_error(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(InvalidParameterError, match=f"'{name}' parameter of TuneSearchCV"):
        search(**given).fit(X, Y)


@pytest.mark.parametrize("optimization", LEARNING)
def test_what_a_searcher_cannot_draw_names_the_random_search(optimization: str) -> None:
    with pytest.raises(ConfigError, match=r"C: expon cannot be translated exactly.*'random'"):
        search({"C": stats.expon()}, search_optimization=optimization).fit(X, Y)
    with pytest.raises(ConfigError, match=r"has 2 dictionaries.*'random'"):
        search([{"C": [1]}, {"C": [2]}], search_optimization=optimization).fit(X, Y)


def test_a_gpu_that_is_not_there_is_refused_at_once() -> None:
    if trainkit.cluster_resources().get("GPU"):
        pytest.skip("there is one")
    with pytest.raises(InfeasibleError, match="not enough GPU"):
        search(use_gpu=True).fit(X, Y)
