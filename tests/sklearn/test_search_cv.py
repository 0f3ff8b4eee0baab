"""`TuneSearchCV` as a user meets it: its arguments, its candidates, and what is told of wrong ones."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC
from sklearn.utils._param_validation import InvalidParameterError

import trainkit
from tests.sklearn.searches import (  # noqa: F401 - the fixture
    LEARNING,
    C,
    X,
    Y,
    candidates,
    search,
    session,
)
from trainkit import tune
from trainkit.errors import ConfigError, InfeasibleError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.tune.search import BasicVariantGenerator, Searcher
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
        ({"search_optimization": "annealing"}, "not one of random, auto, bayesian, bohb, hyperopt, optuna"),
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


# --- which candidates -----------------------------------------------------------------------------


@pytest.mark.parametrize("optimization", ["random", *LEARNING])
def test_the_same_random_state_gives_the_same_history(optimization: str) -> None:
    # row 1.24
    space = {"C": (1e-2, 1e2, "log-uniform"), "gamma": (0.01, 1.0)}
    kwargs = {"random_search_steps": 2} if optimization == "bayesian" else None
    given = {"search_optimization": optimization, "n_jobs": 1, "search_kwargs": kwargs, "n_trials": 4}
    one, same = (candidates(search(space, random_state=7, **given).fit(X, Y)) for _ in range(2))
    other = candidates(search(space, random_state=8, **given).fit(X, Y))
    assert one == same
    assert one != other


def test_random_candidates_are_the_same_however_many_run_at_once() -> None:
    # row 1.24
    one, four = (candidates(search(n_jobs=n_jobs, n_trials=6).fit(X, Y)) for n_jobs in (1, 4))
    assert one == four


def test_a_generator_goes_on_and_none_follows_numpys() -> None:
    rng = np.random.RandomState(0)
    one = candidates(search(random_state=rng, search_optimization="optuna").fit(X, Y))
    assert one != candidates(search(random_state=rng, search_optimization="optuna").fit(X, Y))
    found = []
    for _ in range(2):
        np.random.seed(11)
        found.append(candidates(search(random_state=None, search_optimization="optuna").fit(X, Y)))
    assert found[0] == found[1]


@pytest.mark.parametrize("optimization", ["random", *LEARNING])
def test_nothing_is_evaluated_twice(optimization: str) -> None:
    # row 2.13: a choice of 2, 6 samples, 2 evaluations
    given = {"search_optimization": optimization, "n_trials": 6, "n_jobs": 1}
    found = search({"kernel": tune.choice(["linear", "rbf"])}, **given)
    if optimization == "random":
        with pytest.warns(UserWarning, match="smaller than n_iter"):  # scikit-learn's own words
            found.fit(X, Y)
    else:
        found.fit(X, Y)
    assert sorted(each["kernel"] for each in candidates(found)) == ["linear", "rbf"]


def test_values_may_be_any_objects() -> None:
    pipe = Pipeline([("scale", "passthrough"), ("svc", SVC())])
    scalers = [StandardScaler(), MinMaxScaler()]
    space = {"scale": [*scalers, "passthrough"], "svc__class_weight": [None, {0: 2, 1: 1, 2: 1}]}
    for optimization in ("random", "optuna"):
        found = TuneSearchCV(
            pipe, space, n_trials=4, cv=3, random_state=0, search_optimization=optimization
        ).fit(X, Y)
        assert not any(hasattr(scaler, "scale_") for scaler in scalers)  # those given stay unfitted
        assert found.best_estimator_.predict(X).shape == Y.shape
        assert {type(each["scale"]) for each in candidates(found)} <= {StandardScaler, MinMaxScaler, str}


def test_parameters_under_conditions_are_there_only_where_these_hold() -> None:
    space = {"kernel": ["rbf", "poly"], "degree": tune.when({"kernel": "poly"}, tune.randint(2, 5))}
    for optimization in ("random", "optuna", "bohb", "hyperopt"):
        found = search(space, n_trials=5, search_optimization=optimization).fit(X, Y)
        assert all(("degree" in each) == (each["kernel"] == "poly") for each in candidates(found))
        if any("degree" not in each for each in candidates(found)):
            degrees = found.cv_results_["param_degree"]
            assert [bool(each) for each in np.ma.getmaskarray(degrees)] == [
                each["kernel"] == "rbf" for each in candidates(found)
            ]


def test_a_searcher_object_and_its_own_space() -> None:
    from optuna.distributions import FloatDistribution

    by_object = search({"C": (1.0, 2.0)}, search_optimization=OptunaSearch(seed=4)).fit(X, Y)
    assert all(1 <= each["C"] <= 2 for each in candidates(by_object))
    own = OptunaSearch(space={"C": FloatDistribution(3.0, 4.0)})
    assert all(3 <= each["C"] <= 4 for each in candidates(search({}, search_optimization=own).fit(X, Y)))
    points = BasicVariantGenerator(points_to_evaluate=[{"C": 1.5}])
    assert candidates(search({"C": (1.0, 2.0)}, search_optimization=points).fit(X, Y))[0] == {"C": 1.5}


def test_a_searcher_is_told_of_the_refit_scorer() -> None:
    told: list[tuple[str, str, list[str]]] = []

    class Telling(Searcher):
        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"C": 1.0 + int(trial_id.rsplit("_", 1)[1])}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            told.append((str(self.metric), str(self.mode), sorted(result)))

        def __deepcopy__(self, memo: Any) -> Telling:
            return self

    search(
        {}, search_optimization=Telling(), scoring=["accuracy", "f1_macro"], refit="f1_macro", mode="max"
    ).fit(X, Y)
    assert {each[:2] for each in told} == {("average_test_f1_macro", "max")}
    assert all("average_test_accuracy" in names for *_, names in told)


@pytest.mark.parametrize(
    ("optimization", "kwargs"),
    [
        ("optuna", {"points_to_evaluate": [{"C": 1.25}]}),
        ("hyperopt", {"points_to_evaluate": [{"C": 1.25}], "n_initial_points": 2}),
        ("bohb", {"points_to_evaluate": [{"C": 1.25}], "bohb_config": {"random_fraction": 0.5}}),
        ("bayesian", {"points_to_evaluate": [{"C": 1.25}], "utility_kwargs": {"kind": "ei"}}),
    ],
)
def test_search_kwargs_go_to_the_searcher(optimization: str, kwargs: dict[str, Any]) -> None:
    found = search({"C": (1.0, 2.0)}, search_optimization=optimization, search_kwargs=kwargs, n_jobs=1)
    assert candidates(found.fit(X, Y))[0]["C"] == pytest.approx(1.25)


def test_n_trials_and_n_iter_are_one_number() -> None:
    assert len(candidates(TuneSearchCV(SVC(), C, n_iter=2, cv=2).fit(X, Y))) == 2
    assert len(candidates(TuneSearchCV(SVC(), C, n_iter=2, n_trials=2, cv=2).fit(X, Y))) == 2
    assert len(candidates(search(n_trials=4).fit(X, Y))) == 4
    with pytest.raises(ConfigError, match="n_trials=3 and n_iter=2"):
        search(n_iter=2).fit(X, Y)
