"""`stop="not_worth_it"`: when a search ends, why, and that a restore decides the same."""

from __future__ import annotations

import math

import pytest

from trainkit import tune
from trainkit.cli.main import main
from trainkit.errors import ConfigError
from trainkit.tune.space.search_space import Space

PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}
SETTINGS = {"metric": "loss", "seed": 1, "search_alg": "gp", "max_concurrent_trials": 1}


def bowl(config):
    return {"loss": (config["x"] - 2) ** 2 + (config["y"] + 1) ** 2}


def simulated(objective, number, stop="not_worth_it", mode="min", **settings):
    def report(config, training_iteration, rng):
        return {**objective(config), "done": True}

    settings = {"metric": "loss", "mode": mode, "num_samples": number, "search_alg": "gp", **settings}
    run = tune.RunConfig(stop=stop)
    return tune.simulate(report, PLANE, tune.TuneConfig(**settings), run_config=run, seed=0)


def test_a_search_ends_when_the_best_is_found():
    results = simulated(bowl, 60)
    assert 31 <= len(results) < 50
    assert results.get_best_result().metrics["loss"] < 0.05


def test_a_search_with_stopped_trials_ends():
    def step(config, training_iteration, rng):
        final = (math.log10(config["rate"]) + 3) ** 2 * 0.15 + (config["x"] - 0.4) ** 2
        gap = 3 * math.exp(-(0.06 + 1.8 * config["rate"]) * training_iteration)
        noise = 0.01 * rng.standard_normal()
        return {"loss": final + gap + noise, "done": training_iteration == 30}

    space = {"rate": tune.loguniform(1e-4, 1), "x": tune.uniform(0, 1)}
    settings = tune.TuneConfig(metric="loss", mode="min", num_samples=100)
    run = tune.RunConfig(stop="not_worth_it")
    results = tune.simulate(step, space, settings, run_config=run, workers=1, seed=0)
    stopped = [each for each in results if each.metrics["training_iteration"] < 30]
    assert len(stopped) > 10 and len(results) < 60
    assert results.get_best_result().metrics["loss"] < 0.45


def test_a_search_goes_on_up_to_the_least_number():
    assert len(simulated(bowl, 40, stop=tune.NotWorthIt(least=40))) == 40


def test_failed_reports_do_not_disturb_it():
    def broken(config):
        return {"loss": float("nan")} if config["x"] > 5 else bowl(config)

    assert 31 <= len(simulated(broken, 100)) < 100


def test_trials_that_violate_a_constraint_are_not_the_best():
    results = simulated(bowl, 60, constraints=["loss >= 20"])
    assert 20 <= results.get_best_result().metrics["loss"] < 21


def test_least_and_patience_count_trials():
    eager = tune.NotWorthIt(threshold=1e6, least=5, patience=3)
    assert len(simulated(bowl, 30, stop=eager)) == 7


def test_the_mode_is_followed():
    def negated(config):
        return {"loss": -bowl(config)["loss"]}

    assert len(simulated(negated, 60, mode="max")) == len(simulated(bowl, 60))


@pytest.mark.parametrize(
    "space, config, message",
    [
        (PLANE, tune.TuneConfig(), "needs one metric and its mode"),
        ({"x": tune.grid_search([1])}, tune.TuneConfig(metric="loss", mode="min"), "without a grid"),
        ({"x": 1}, tune.TuneConfig(metric="loss", mode="min"), "with domains"),
        ({}, tune.TuneConfig(metric="loss", mode="min"), "put the space of a searcher into param_space"),
    ],
)
def test_what_it_needs(space, config, message):
    with pytest.raises(ConfigError, match=message):
        tune.Tuner(
            bowl, param_space=space, tune_config=config, run_config=tune.RunConfig(stop="not_worth_it")
        )


def test_three_trials_are_the_least():
    with pytest.raises(ConfigError, match="least=2: give a whole number of 3 or more"):
        tune.NotWorthIt(least=2)


def test_a_repeated_report_changes_nothing():
    def stopped(repeat):
        stopper = tune.NotWorthIt(threshold=1e6, least=5, patience=3)
        stopper.begin(Space.of(PLANE), "loss", "min", (), 0)
        for number in range(20):
            config = {"x": number - 10.0, "y": 0.0}
            result = {"config": config, "training_iteration": 1, **bowl(config)}
            for _ in range(1 + (number == repeat)):
                stopper(f"t{number}", result)
            if stopper.stop_all():
                return number
        return None

    # A restore passes the report of a trial that was cut off before its end, which is then reported again.
    assert stopped(None) == stopped(5) == 6


def test_a_number_beyond_all_floats_is_like_a_failure():
    stopper = tune.NotWorthIt()
    stopper.begin(Space.of(PLANE), "loss", "min", (), 0)
    assert not stopper("t", {"loss": 10**400, "config": {"x": 1.0, "y": 1.0}})


def test_other_names_are_refused():
    with pytest.raises(ConfigError, match=r"stop='not_worth' is not one of .*Did you mean 'not_worth_it'"):
        tune.RunConfig(stop="not_worth")


def test_it_works_only_in_an_experiment():
    with pytest.raises(ConfigError, match="only in a Tuner"):
        tune.NotWorthIt()("t", {"loss": 1, "config": {}})


@pytest.mark.usefixtures("inline")
def test_the_reason_is_on_record_and_a_restore_decides_the_same(fit, restore, capsys):
    whole = fit(bowl, PLANE, **SETTINGS, num_samples=60, run={"name": "whole", "stop": ["not_worth_it"]})
    assert 31 <= len(whole) < 50
    assert main(["why", whole.experiment_path]) == 0
    assert f"ending: stopped by NotWorthIt: trials {len(whole)}, regret " in capsys.readouterr().out
    for number in (3, 26, len(whole) - 1):
        run = {"name": f"{number} trials", "stop": "not_worth_it"}
        assert len(fit(bowl, PLANE, **SETTINGS, num_samples=number, run=run)) == number
        rest = restore(bowl, f"{number} trials", num_samples=60)
        assert [each.config for each in rest] == [each.config for each in whole]


@pytest.mark.usefixtures("inline")
def test_trials_with_many_reports_count_once_they_have_ended(fit):
    def learning(config):
        for step in range(3):
            yield {"loss": bowl(config)["loss"] + 100 / (step + 1)}

    stop = tune.NotWorthIt(threshold=1e6, least=5, patience=2)
    results = fit(learning, PLANE, **SETTINGS, num_samples=20, run={"stop": stop})
    assert len(results) == 7 and len(results[5].history) == 3
