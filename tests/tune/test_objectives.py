"""Several objectives: fronts and ranks, who knows them, and what the others say."""

from __future__ import annotations

import math

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit import tune
from trainkit.errors import ConfigError, MetricError
from trainkit.tune.core.objectives import (
    Objective,
    dominates,
    front_of,
    objectives_of,
    point_of,
)
from trainkit.tune.schedulers import ASHAScheduler, ParetoScheduler
from trainkit.tune.search import BayesOptSearch, ConcurrencyLimiter, HyperOptSearch, OptunaSearch, Repeater

optuna.logging.set_verbosity(optuna.logging.WARNING)

BOTH = {"metric": ["accuracy", "latency"], "mode": ["max", "min"]}
SPACE = {"x": tune.uniform(0, 2), "y": tune.uniform(0, 2)}
numbers = st.floats(-10, 10) | st.just(-math.inf)
clouds = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=25)


def trade_off(config):
    """The front is y = 0 with x in [0, 1]."""
    x, y = config["x"], config["y"]
    return {"accuracy": x - y, "latency": x**2 + y, "other": 1}


def reports(config):
    for step in range(1, 10):
        tune.report({**trade_off(config), "step": step})


# --- fronts --------------------------------------------------------------------------------------


@given(clouds)
def test_a_front_is_what_none_dominates(points):
    expected = [
        place for place, one in enumerate(points) if not any(dominates(other, one) for other in points)
    ]
    assert front_of(points) == expected


def test_a_point_has_more_for_better_and_nan_worst():
    objectives = objectives_of(["a/b", "c"], ["min", "max"])
    assert point_of({"a": {"b": 2}, "c": 3}, objectives) == (-2, 3)
    assert point_of({"a/b": math.nan, "c": math.inf}, objectives) == (-math.inf, -math.inf)
    assert point_of({"c": 3}, objectives) is None


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"metric": ["a", "b"], "mode": "max"},
        {"metric": ["a", "b"], "mode": ["max"]},
        {"metric": ["a"], "mode": ["max"]},
        {"metric": ["a", "a"], "mode": ["max", "min"]},
        {"metric": ["a", 3], "mode": ["max", "min"]},
        {"metric": ["a", "b"], "mode": ["max", "best"]},
        {"metric": "a", "mode": ["max", "min"]},
    ],
)
def test_lists_that_do_not_fit_are_refused(settings):
    for make in (tune.TuneConfig, OptunaSearch):
        with pytest.raises(ConfigError, match="mode"):
            make(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"search_alg": HyperOptSearch()}, "HyperOptSearch optimises one metric.*OptunaSearch"),
        ({"search_alg": BayesOptSearch()}, "BayesOptSearch optimises one metric"),
        ({"search_alg": ConcurrencyLimiter(HyperOptSearch(), 2)}, "HyperOptSearch optimises one metric"),
        ({"search_alg": Repeater(OptunaSearch(), 2), "num_samples": 2}, "Repeater averages one metric"),
        ({"search_alg": OptunaSearch(metric="loss", mode="min")}, "different metrics"),
        (
            {"search_alg": OptunaSearch(sampler=optuna.samplers.CmaEsSampler())},
            "CmaEsSampler optimises one metric",
        ),
        ({"scheduler": ASHAScheduler()}, "supports one metric.*ParetoScheduler"),
        ({"metric": "loss", "mode": "min", "scheduler": ParetoScheduler()}, "ParetoScheduler needs several"),
        ({"scheduler": ParetoScheduler(metric=["a", "b"], mode=["min", "min"])}, "different objectives"),
    ],
)
def test_who_knows_one_metric_only_says_so(fit, inline, settings, words):
    with pytest.raises(ConfigError, match=words):
        fit(trade_off, SPACE, run={"name": "refused"}, **{**BOTH, **settings})


def test_asha_may_be_told_by_which(fit, inline):
    scheduler = ASHAScheduler(metric="accuracy", mode="max", max_t=9, reduction_factor=3)
    grid = fit(reports, SPACE, num_samples=6, seed=0, scheduler=scheduler, **BOTH)
    assert {len(result.metrics_dataframe) for result in grid} != {9}
    assert grid.pareto_front()
    least = min(result.metrics["latency"] for result in grid)
    assert grid.get_best_result("latency").metrics["latency"] == least, "by its own mode, not the scheduler's"


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["random", "optuna"])
def test_the_front_of_an_experiment(fit, inline, tmp_path, name):
    grid = fit(trade_off, SPACE, num_samples=30, seed=0, search_alg=name, **BOTH)
    front = grid.pareto_front()
    rows = [(result.metrics["accuracy"], -result.metrics["latency"]) for result in grid]
    expected = [
        grid[place] for place in range(30) if not any(dominates(other, rows[place]) for other in rows)
    ]
    assert [result.trial_id for result in front] == [result.trial_id for result in expected]
    assert 1 < len(front) < 30
    read = tune.ResultGrid.from_path(tmp_path / "e")
    assert read.objectives == (Objective("accuracy", "max"), Objective("latency", "min"))
    assert [each.trial_id for each in read.pareto_front()] == [each.trial_id for each in front]
    best = grid.get_best_result("latency", "min")
    assert best.metrics["latency"] == min(result.metrics["latency"] for result in grid)
    assert grid.get_best_result("latency").trial_id == best.trial_id, "its mode is known"
    for arguments in ((), (None, "max"), ("other",)):
        with pytest.raises(ConfigError, match=r"\['accuracy', 'latency'\].*pareto_front"):
            grid.get_best_result(*arguments)
    best = grid.get_best_result("accuracy", "max")
    assert grid.pareto_front(["accuracy", "other"], ["max", "max"])[0].trial_id == best.trial_id


def test_the_older_door_takes_several(inline, tmp_path):
    settings = {"num_samples": 4, "storage_path": tmp_path, "name": "r", "verbose": 0}
    analysis = tune.run(trade_off, config=SPACE, **settings, **BOTH)
    assert analysis.get_best_trial("latency").trial_id in {trial.trial_id for trial in analysis.trials}
    with pytest.raises(ConfigError, match=r"\['accuracy', 'latency'\].* use pareto_front\(\)"):
        _ = analysis.best_trial
    front = tune.ResultGrid.from_path(tmp_path / "r").pareto_front()
    assert [trial.trial_id for trial in analysis.pareto_front()] == [trial.trial_id for trial in front]
    (best,) = analysis.pareto_front(["accuracy", "latency"], ["max", "max"])[:1]
    assert best.trial_id in {trial.trial_id for trial in analysis.trials}


def test_a_front_of_one_metric_is_asked_for_two(fit, inline):
    grid = fit(trade_off, SPACE, metric="accuracy", mode="max", num_samples=2)
    with pytest.raises(ConfigError, match="several objectives"):
        grid.pareto_front()
    assert grid.pareto_front(["accuracy", "latency"], ["max", "min"])


def test_failed_trials_and_nan_are_not_on_the_front(fit, inline):
    def fails(config):
        if config["n"] == 0:
            return {"accuracy": math.nan, "latency": 0}
        if config["n"] == 1:
            tune.report({"accuracy": 99, "latency": -9})
            raise RuntimeError("no luck")
        return {"accuracy": config["n"], "latency": 1}

    grid = fit(fails, {"n": tune.grid_search([0, 1, 2, 3, 3])}, **BOTH)
    assert [result.config["n"] for result in grid.pareto_front()] == [3, 3]


def test_a_trial_that_lacks_an_objective_has_failed_and_a_misspelt_one_ends_the_experiment(fit, inline):
    grid = fit(lambda config: {"accuracy": 1, "speed": 2}, SPACE, num_samples=1, **BOTH)
    assert isinstance(grid.errors[0], MetricError)
    assert "'latency'" in str(grid.errors[0])
    with pytest.raises(MetricError, match="Did you mean 'latencyy'"):
        fit(lambda config: {"accuracy": 1, "latencyy": 2}, SPACE, num_samples=1, run={"name": "b"}, **BOTH)


def test_the_console_shows_all(fit, inline, capfd):
    fit(trade_off, {"x": 0.5, "y": 0.25}, run={"verbose": 1}, **BOTH)
    shown = capfd.readouterr()
    assert "accuracy=0.25 latency=0.5" in shown.out + shown.err


def test_an_optuna_study_of_all(fit, inline):
    grid = fit(trade_off, SPACE, num_samples=12, seed=0, **BOTH)
    study = grid.to_optuna()
    assert [each.name for each in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    ids = [trial.user_attrs["trial_id"] for trial in study.best_trials]
    assert sorted(ids) == sorted(result.trial_id for result in grid.pareto_front())
    assert (
        grid.to_optuna("latency", "min").best_value
        == grid.get_best_result("latency", "min").metrics["latency"]
    )


# --- searching ------------------------------------------------------------------------------------


# row 1.5
@pytest.mark.parametrize("own", [True, False])
def test_an_interrupted_search_goes_on(fit, inline, restore, own):
    search = OptunaSearch(**BOTH) if own else OptunaSearch()
    settings = {"seed": 2, "max_concurrent_trials": 1, **({} if own else BOTH)}
    whole = fit(trade_off, SPACE, num_samples=16, search_alg=search, run={"name": "w"}, **settings)
    fit(trade_off, SPACE, num_samples=12, search_alg=search, **settings)
    restored = restore(trade_off, num_samples=16)
    assert [result.config for result in restored] == [result.config for result in whole]
    assert [each.trial_id for each in restored.pareto_front()]
