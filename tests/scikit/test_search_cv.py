"""`TuneSearchCV` as a user meets it: every argument is heeded, and what it finds can be kept."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import KFold, RandomizedSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils._param_validation import InvalidParameterError

import trainkit
from trainkit import tune
from trainkit.errors import ConfigError, InfeasibleError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.tune.callbacks import Callback
from trainkit.tune.schedulers import ASHAScheduler
from trainkit.tune.search import BasicVariantGenerator, Searcher
from trainkit.tune.search.optuna import OptunaSearch
from trainkit.tune.stoppers import Stopper

X, Y = load_iris(return_X_y=True)
LEARNING = ["bayesian", "bohb", "hyperopt", "optuna"]
C = {"C": stats.loguniform(1e-2, 1e2)}


@pytest.fixture(autouse=True, scope="module")
def session() -> Iterator[None]:
    """One for all of these, as each would begin its own."""
    trainkit.init(engine="inline", num_cpus=2)
    yield
    trainkit.shutdown()


def search(space: Any = C, **given: Any) -> TuneSearchCV:
    return TuneSearchCV(SVC(), space, **{"n_trials": 3, "cv": 3, "random_state": 1, **given})


def candidates(found: Any) -> list[dict[str, Any]]:
    return list(found.cv_results_["params"])


# --- the constructor: row 1.8 and section 3.4 of the conventions ----------------------------------

SHARED_END = {
    "local_dir": None,
    "name": None,
    "max_iters": 1,
    "use_gpu": False,
    "loggers": None,
    "pipeline_auto_early_stop": True,
    "stopper": None,
    "time_budget_s": None,
    "sk_n_jobs": None,
    "mode": None,
}
GRID = {
    "estimator": inspect.Parameter.empty,
    "param_grid": inspect.Parameter.empty,
    "early_stopping": None,
    "scoring": None,
    "n_jobs": None,
    "cv": 5,
    "refit": True,
    "verbose": 0,
    "error_score": "raise",
    "return_train_score": False,
    **SHARED_END,
}
SEARCH = {
    "estimator": inspect.Parameter.empty,
    "param_distributions": inspect.Parameter.empty,
    "early_stopping": None,
    "n_trials": 10,
    "scoring": None,
    "n_jobs": None,
    "refit": True,
    "cv": None,
    "verbose": 0,
    "random_state": None,
    "error_score": np.nan,
    "return_train_score": False,
    "local_dir": None,
    "name": None,
    "max_iters": 1,
    "search_optimization": "random",
    **{name: value for name, value in SHARED_END.items() if name not in ("local_dir", "name", "max_iters")},
    "search_kwargs": None,
}


@pytest.mark.parametrize(("cls", "expected"), [(TuneGridSearchCV, GRID), (TuneSearchCV, SEARCH)])
def test_names_order_and_defaults_are_tune_sklearns(cls: Any, expected: dict[str, Any]) -> None:
    found = {name: each.default for name, each in inspect.signature(cls).parameters.items()}
    assert list(found)[: len(expected)] == list(expected)
    for name, default in expected.items():
        assert found[name] is default or found[name] == default or (found[name] != found[name]), name


def test_the_constructor_only_stores() -> None:
    given = {name: object() for name in SEARCH}
    made = TuneSearchCV(**given)
    assert all(getattr(made, name) is value for name, value in given.items())
    assert clone(search(n_iter=4)).get_params()["n_iter"] == 4


# --- which candidates -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        {"C": stats.loguniform(1e-2, 1e2), "kernel": ["linear", "rbf"]},
        {"C": [1, 2, 3], "kernel": ("linear", "rbf"), "degree": np.array([2, 3])},
        [{"kernel": ["linear"], "C": stats.expon()}, {"kernel": ["rbf"], "gamma": stats.uniform(0.1, 1)}],
    ],
)
def test_random_candidates_are_those_of_scikit_learn(space: Any) -> None:
    theirs = RandomizedSearchCV(SVC(), space, n_iter=4, random_state=3, cv=3).fit(X, Y)
    ours = search(space, n_trials=4, random_state=3).fit(X, Y)
    assert candidates(ours) == candidates(theirs)
    assert np.array_equal(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])
    assert ours.best_params_ == theirs.best_params_


def test_one_generator_for_candidates_and_folds_is_drawn_from_as_in_scikit_learn() -> None:
    found = []
    for cls in (RandomizedSearchCV, TuneSearchCV):
        rng = np.random.RandomState(5)
        cv = KFold(3, shuffle=True, random_state=rng)
        found.append(cls(SVC(), C, n_iter=3, random_state=rng, cv=cv).fit(X, Y))
    assert candidates(found[0]) == candidates(found[1])
    assert np.array_equal(*(each.cv_results_["split2_test_score"] for each in found))


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


def test_a_space_of_hyperopts_own() -> None:
    from hyperopt import hp

    space = {"C": (0.5, 2.0), "degree": hp.uniformint("degree", 2, 4), "kernel": ["rbf", "poly"]}
    found = search(space, search_optimization="hyperopt").fit(X, Y)
    assert all(each["degree"] in (2, 3, 4) and 0.5 <= each["C"] <= 2 for each in candidates(found))


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


def test_bohb_stops_early_by_its_own_scheduler() -> None:
    found = TuneSearchCV(
        SGDClassifier(random_state=0),
        {"alpha": (1e-5, 1e-1, "log-uniform")},
        n_trials=5,
        cv=2,
        max_iters=4,
        search_optimization="BOHB",
        random_state=0,
    ).fit(X, Y)
    assert found.analysis_.runner_data()["tune_config"]["scheduler"]["class"] == "HyperBandForBOHB"
    assert found.cv_results_["training_iteration"].max() == 4


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"search_optimization": "annealing"}, "none of random, bayesian, bohb, hyperopt, optuna"),
        ({"search_optimization": 3}, "none of random"),
        ({"search_kwargs": {"seed": 1}}, "random search takes none"),
        ({"search_optimization": "optuna", "search_kwargs": {"gama": 1}}, "OptunaSearch takes no gama"),
        ({"search_optimization": OptunaSearch(), "search_kwargs": {"seed": 1}}, "made already"),
        ({"search_optimization": "optuna", "scoring": ["f1_macro", "accuracy"], "refit": False}, "refit="),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"sk_n_jobs": 0}, "sk_n_jobs=0"),
        ({"stopper": 3}, "stop=3"),
        ({"loggers": "csv"}, "loggers='csv'"),
        ({"mode": "best"}, "mode='best'"),
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
    with pytest.raises(ConfigError, match=r"C: expon has no exact translation.*'random'"):
        search({"C": stats.expon()}, search_optimization=optimization).fit(X, Y)
    with pytest.raises(ConfigError, match=r"list of 2 dictionaries.*'random'"):
        search([{"C": [1]}, {"C": [2]}], search_optimization=optimization).fit(X, Y)


def test_a_gpu_that_is_not_there_is_refused_at_once() -> None:
    if trainkit.cluster_resources().get("GPU"):
        pytest.skip("there is one")
    with pytest.raises(InfeasibleError, match="not enough GPU"):
        search(use_gpu=True).fit(X, Y)


# --- how it ends ----------------------------------------------------------------------------------


class EndsAll(Stopper):
    """After the first report that it is asked about."""

    asked = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.asked = True
        return True

    def stop_all(self) -> bool:
        return self.asked


def test_a_stopper_ends_the_search_with_a_whole_candidate() -> None:
    found = search(n_trials=50, n_jobs=1, stopper=EndsAll()).fit(X, Y)
    assert len(candidates(found)) < 50
    assert not np.isnan(found.cv_results_["split2_test_score"]).any()


def test_mode_min_takes_the_lowest() -> None:
    def loss(estimator: Any, X: Any, y: Any) -> float:
        return 1 - accuracy_score(y, estimator.predict(X))

    found = search({"max_depth": [1, 2, 5]}, scoring=loss, mode="min")
    found.estimator = DecisionTreeClassifier(random_state=0)
    found.fit(X, Y)
    assert found.best_score_ == found.cv_results_["mean_test_score"].min()
    assert found.cv_results_["rank_test_score"][found.best_index_] == 1


# --- what is told ---------------------------------------------------------------------------------


def test_verbose(capfd: pytest.CaptureFixture[str]) -> None:
    search(verbose=0).fit(X, Y)
    assert capfd.readouterr() == ("", "")
    search(verbose=1).fit(X, Y)
    told = capfd.readouterr().out
    assert "Fitting 3 folds for each of 3 candidates, totalling 9 fits" in told
    assert "3 trials" in told or "TERMINATED" in told


def test_tune_params(tmp_path: Path) -> None:
    ended: list[str] = []

    class Telling(Callback):
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ended.append(trial.trial_id)

    search().fit(X, Y, tune_params={"callbacks": [Telling()], "local_dir": tmp_path, "name": "by_fit"})
    assert len(ended) == 3
    assert len(tune.ResultGrid.from_path(tmp_path / "by_fit")) == 3
    with pytest.raises(ConfigError, match="Did you mean 'verbose'"):
        search().fit(X, Y, tune_params={"verbos": 1})


# --- what is kept ---------------------------------------------------------------------------------


def test_an_experiment_that_is_kept_is_read_back(tmp_path: Path) -> None:
    found = search(local_dir=str(tmp_path), name="kept", loggers=["tensorboard"]).fit(X, Y)
    grid = tune.ResultGrid.from_path(tmp_path / "kept")
    assert [result.config["C"] for result in grid] == [each["C"] for each in candidates(found)]
    assert [result.metrics["average_test_score"] for result in grid] == pytest.approx(
        found.cv_results_["mean_test_score"]
    )
    assert grid.get_best_result().config == found.best_params_
    for pattern in ("result.json", "progress.csv", "events.out.tfevents.*"):
        assert len(list(tmp_path.glob(f"kept/*/{pattern}"))) == 3


def test_loggers_without_a_place_are_kept_where_experiments_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(tmp_path))
    search(loggers=["json"]).fit(X, Y)
    assert len(list(tmp_path.glob("*/*/result.json"))) == 3


def test_the_same_name_again_does_not_fail(tmp_path: Path) -> None:
    found = [search(local_dir=str(tmp_path), name="twice").fit(X[start:], Y[start:]) for start in (0, 0, 3)]
    assert candidates(found[0]) == candidates(found[1]) == candidates(found[2])
    kept = sorted(each.name for each in tmp_path.iterdir())
    assert len(kept) == 3 and all(name.startswith("twice") for name in kept)


FRESH = """
import json, sys
from scipy.stats import loguniform
from sklearn.datasets import load_iris
from sklearn.svm import SVC
from trainkit.sklearn import TuneSearchCV

where = json.loads(sys.argv[1])
search = TuneSearchCV(SVC(), {"C": loguniform(1e-2, 1e2)}, n_trials=2, cv=2, random_state=0, **where)
search.fit(*load_iris(return_X_y=True))
"""


@pytest.mark.parametrize("named", [True, False])
def test_files_lie_in_one_place_or_nowhere(tmp_path: Path, named: bool) -> None:
    # row 1.11
    places = {name: tmp_path / name for name in ("home", "tmp", "work", "results")}
    for place in places.values():
        place.mkdir()
    where = {"local_dir": str(places["results"]), "name": "mine"} if named else {}
    environment = {**os.environ, "HOME": str(places["home"]), "TMPDIR": str(places["tmp"])}
    environment.pop("TRAINKIT_RESULTS_DIR", None)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [sys.executable, "-c", FRESH, json.dumps(where)],
        cwd=places["work"],
        env=environment,
        check=True,
        timeout=120,
    )
    left = {each for place in places.values() for each in place.rglob("*") if each.is_file()}
    inside = {each for each in left if each.is_relative_to(places["results"] / "mine")}
    assert left == inside
    assert bool(inside) == named


def test_without_abandoned_packages_every_search_runs() -> None:
    # row 1.29: none of these is loaded, whatever is searched by
    for name in ("ConfigSpace", "hpbandster", "GPy", "skopt"):
        assert name not in sys.modules
    for optimization in ("random", "bohb", "optuna"):
        search({"C": (0.1, 1.0)}, search_optimization=optimization).fit(X, Y)
    assert not {"ConfigSpace", "hpbandster", "GPy", "skopt"} & sys.modules.keys()


@pytest.mark.parametrize("kept", [True, False])
def test_the_analysis_and_pickles(tmp_path: Path, kept: bool) -> None:
    where = {"local_dir": str(tmp_path), "name": "mine"} if kept else {}
    found = search(scoring="accuracy", **where).fit(X, Y)
    joblib.dump(found, tmp_path / "search.joblib")
    for each in (found, pickle.loads(pickle.dumps(found)), joblib.load(tmp_path / "search.joblib")):
        assert np.array_equal(each.predict(X), found.predict(X))
        analysis = each.analysis_
        assert analysis.best_config == found.best_params_
        assert analysis.default_metric == "average_test_score" and analysis.default_mode == "max"
        assert len(analysis.trials) == len(analysis.results_df) == len(analysis.trial_dataframes) == 3
        assert analysis.best_result["average_test_score"] == pytest.approx(found.best_score_)
        assert set(analysis.get_all_configs().values().__iter__().__next__()) == {"C"}
        assert analysis.runner_data()["seed"] == 1


def test_a_lambda_scorer_is_no_hindrance() -> None:
    scorer = make_scorer(lambda y, predicted: float(np.mean(y == predicted)))
    found = search(scoring=scorer, search_optimization="optuna").fit(X, Y)
    assert found.best_score_ > 0.8


def test_early_stopping_by_an_object_goes_with_a_searcher() -> None:
    found = TuneSearchCV(
        SGDClassifier(random_state=0),
        {"alpha": (1e-5, 1e-1, "log-uniform")},
        early_stopping=ASHAScheduler(max_t=5, grace_period=1),
        max_iters=5,
        n_trials=4,
        cv=2,
        search_optimization="optuna",
        random_state=0,
    ).fit(X, Y)
    assert found.cv_results_["training_iteration"].max() == 5


def test_logistic_regression_with_tuples_of_whole_numbers() -> None:
    found = TuneSearchCV(
        LogisticRegression(C=1e-3),
        {"max_iter": (50, 60)},
        n_trials=3,
        cv=2,
        random_state=0,
        error_score="raise",
    ).fit(X, Y)
    assert all(each["max_iter"] in range(50, 61) for each in candidates(found))
