"""Learned stopping as the scheduler of a Tuner for which no scheduler is named."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from trainkit import tune
from trainkit.tune.space.domains import Domain
from trainkit.tune.store.schema import FILENAME

LINE = {"x": tune.uniform(0, 1)}
GOAL = {"metric": "loss", "mode": "min", "seed": 4, "max_concurrent_trials": 1}
LAST = 12


class Own(Domain):
    """A domain that the Gaussian process does not support."""

    cardinality = None
    spelling = "Own", []

    def draw(self, rng):
        return rng.uniform()

    def contains(self, value):
        return 0 <= value <= 1

    def values(self):
        raise TypeError("the domain is infinite")


def objective(config):
    for step in range(1, LAST + 1):
        tune.report({"loss": (config["x"] - 0.7) ** 2 + 1 / step})


def lengths(results):
    return [each.metrics["training_iteration"] for each in results]


@pytest.mark.usefixtures("inline")
class TestTuner:
    def test_it_stops_poor_trials(self, fit):
        results = fit(objective, LINE, **GOAL, num_samples=12)
        assert LAST in lengths(results) and min(lengths(results)) < LAST
        assert results.get_best_result().metrics["training_iteration"] == LAST
        again = fit(objective, LINE, **GOAL, num_samples=12, search_alg="auto", run={"name": "again"})
        assert lengths(again) == lengths(results)

    @pytest.mark.parametrize(
        ("space", "settings"),
        [
            (LINE, {"scheduler": "fifo"}),
            (LINE, {"search_alg": "random"}),
            (LINE, {"metric": None, "mode": None}),
            (LINE, {"metric": ["loss", "training_iteration"], "mode": ["min", "min"]}),
            ({"x": tune.grid_search([0.1 * place for place in range(12)])}, {"num_samples": 1}),
        ],
    )
    def test_it_stops_no_trial_elsewhere(self, fit, space, settings):
        results = fit(objective, space, **{**GOAL, "num_samples": 12, **settings})
        assert lengths(results) == [LAST] * 12

    @pytest.mark.parametrize(("num_samples", "stops"), [(9, False), (10, True)])
    def test_it_stops_trials_of_ten_or_more(self, fit, num_samples, stops):
        results = fit(objective, LINE, **GOAL, num_samples=num_samples)
        assert (min(lengths(results)[:9]) < LAST) == stops

    def test_few_samples_stop_no_trial_after_an_extension_either(self, fit, restore):
        fit(objective, LINE, **GOAL, num_samples=3)
        assert lengths(restore(objective, num_samples=12)) == [LAST] * 12

    def test_a_restore_repeats_it_at_every_trial(self, fit, restore):
        settings = {**GOAL, "scheduler": "auto"}
        whole = fit(objective, LINE, **settings, num_samples=9, run={"name": "whole"})
        assert min(lengths(whole)) < LAST
        for number in range(2, 9):
            fit(objective, LINE, **settings, num_samples=number, run={"name": f"part {number}"})
            rest = restore(objective, f"part {number}", num_samples=9)
            assert [each.config for each in rest] == [each.config for each in whole]
            assert lengths(rest) == lengths(whole)

    def test_experiments_of_earlier_versions_stop_no_trial(self, fit, restore, tmp_path):
        fit(objective, LINE, **GOAL, num_samples=3)
        with closing(sqlite3.connect(tmp_path / "e" / FILENAME)) as file, file:
            ((text,),) = file.execute("SELECT value FROM experiment WHERE key = 'tune_config'")
            stored = {**json.loads(text), "scheduler": None}
            file.execute("UPDATE experiment SET value = ? WHERE key = 'tune_config'", [json.dumps(stored)])
        assert lengths(restore(objective, num_samples=12)) == [LAST] * 12

    def test_rays_run_stops_no_trial(self, tmp_path):
        found = tune.run(
            objective,
            config=LINE,
            metric="loss",
            mode="min",
            num_samples=12,
            max_concurrent_trials=1,
            storage_path=str(tmp_path),
            verbose=0,
        )
        assert [each.last_result["training_iteration"] for each in found.trials] == [LAST] * 12


@pytest.mark.parametrize(
    ("space", "num_samples", "stops"), [(LINE, 12, True), (LINE, -1, True), ({"x": Own()}, 12, False)]
)
def test_a_simulation_stops_as_a_tuner_does(space, num_samples, stops):
    def step(config, training_iteration, rng):
        return {
            "loss": (config["x"] - 0.7) ** 2 + 1 / training_iteration,
            "done": training_iteration == LAST,
        }

    settings = tune.TuneConfig(metric="loss", mode="min", num_samples=num_samples)
    results = tune.simulate(step, space, settings, workers=1, seed=4, max_work=12 * LAST)
    assert (min(lengths(results)[:9]) < LAST) == stops


def test_trials_of_very_different_lengths_are_not_stopped():
    def step(config, training_iteration, rng):
        loss = (config["x"] - 0.7) ** 2 + 1 / training_iteration
        return {"loss": loss, "done": training_iteration == config["steps"]}

    space = {**LINE, "steps": tune.choice([2, 8, 32, 128])}
    settings = tune.TuneConfig(
        metric="loss", mode="min", num_samples=16, search_alg="random", scheduler="auto"
    )
    results = tune.simulate(step, space, settings, workers=1, seed=4)
    assert lengths(results)[4:] == [each.config["steps"] for each in results][4:]
