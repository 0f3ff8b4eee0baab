"""How an experiment ends, and that the same seed gives the same one."""

from __future__ import annotations

import math
import time

import pytest

from trainkit import tune
from trainkit.errors import ConfigError, MetricError

pytestmark = pytest.mark.usefixtures("inline")


def reporting(config):
    for step in range(3):
        tune.report({"loss": config["x"] / (step + 1), "step": step})


def test_the_time_budget_ends_an_endless_search(fit):
    def trainable(config):
        time.sleep(0.01)
        return {"loss": config["x"]}

    grid = fit(trainable, {"x": tune.uniform(0, 1)}, metric="loss", num_samples=-1, time_budget_s=0.3)
    assert len(grid) >= 1
    assert {result.status for result in grid} == {"TERMINATED"}


def test_the_time_budget_ends_an_endless_search_of_trials_that_never_start(fit):
    calls = []

    def request(config):
        calls.append(config)
        if len(calls) > 2:
            raise ValueError("no more")
        return {"cpu": 1}

    trainable = tune.with_resources(reporting, request)
    grid = fit(trainable, {"x": tune.uniform(0, 1)}, num_samples=-1, time_budget_s=0.1)
    assert grid.num_terminated >= 1
    assert grid.num_errors >= 1
    assert all("no more" in str(error) for error in grid.errors)


def test_a_metric_never_reported_or_misspelt_is_an_error_that_names_the_others(fit):
    grid = fit(lambda config: {"acuracy": 0.5}, metric="accuracy", mode="max", num_samples=2)
    assert grid.num_errors == 2
    assert isinstance(grid.errors[0], MetricError)
    assert "Did you mean 'acuracy'?" in str(grid.errors[0])
    with pytest.raises(MetricError, match="Did you mean 'acuracy'"):
        grid.get_best_result()
    assert grid.get_best_result("acuracy", "max").metrics["acuracy"] == 0.5


def test_nan_everywhere_ends_and_says_so(fit):
    scheduler = tune.schedulers.ASHAScheduler(max_t=5)
    grid = fit(
        lambda config: ({"loss": math.nan} for _ in range(9)),
        metric="loss",
        num_samples=3,
        scheduler=scheduler,
    )
    assert [result.metrics["training_iteration"] for result in grid] == [1, 1, 1]
    assert grid.num_terminated == 3
    with pytest.raises(MetricError, match="finite number"):
        grid.get_best_result()
    assert math.isnan(grid.get_best_result(filter_nan_and_inf=False).metrics["loss"])


def test_an_existing_name_is_refused(fit):
    fit(reporting, {"x": 1})
    with pytest.raises(ConfigError, match=r"already holds an experiment.*Tuner.restore"):
        fit(reporting, {"x": 1})


def test_the_same_seed_gives_the_same_experiment(fit):
    def outcome(name, seed, scheduler):
        settings = {"metric": "loss", "num_samples": 9, "seed": seed, "scheduler": scheduler}
        grid = fit(reporting, {"x": tune.uniform(0, 1)}, run={"name": name}, **settings)
        return [(result.trial_id, result.config, result.metrics["loss"], result.reason) for result in grid]

    scheduler = tune.schedulers.ASHAScheduler(max_t=3, reduction_factor=2, brackets=2)
    first = outcome("a", 7, scheduler)
    assert outcome("b", 7, scheduler) == first  # also: the user's scheduler is not used up
    assert outcome("c", 8, scheduler) != first
