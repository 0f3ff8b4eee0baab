"""How an experiment ends, and that the same seed gives the same one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainkit import tune

pytestmark = pytest.mark.usefixtures("inline")


def reporting(config):
    for step in range(3):
        tune.report({"loss": config["x"] / (step + 1), "step": step})


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


def says_done(config):
    for n in range(10):
        try:
            tune.report({"loss": n, "done": n == config["n"]})
        finally:
            if n == config["n"]:
                Path(tune.get_context().get_trial_dir(), "cleaned").touch()
    time.sleep(3600)


def yields_done(config):
    for n in range(10):
        yield {"loss": n, "done": n == config["n"]}
    time.sleep(3600)


@pytest.mark.parametrize("trainable", [says_done, yields_done])
@pytest.mark.parametrize("stop", [None, {"done": True}, {"done": True, "loss": 99}])
def test_a_report_that_says_done_ends_its_trial(fit, trainable, stop):
    run = {"stop": stop, "verbose": False}
    grid = fit(trainable, {"n": tune.grid_search([0, 3])}, metric="loss", run=run)
    assert [(len(result.history), result.metrics["loss"]) for result in grid] == [(1, 0), (4, 3)]
    assert {(result.status, result.reason) for result in grid} == {("TERMINATED", "reported done=True")}
    assert all(result.metrics["done"] is True for result in grid)
    if trainable is says_done:
        assert all(Path(result.path, "cleaned").exists() for result in grid)


def test_who_says_done_is_not_paused_nor_taken_over(fit):
    scheduler = tune.schedulers.HyperBandScheduler(max_t=9)
    grid = fit(says_done, {"n": tune.grid_search([0, 0, 0])}, metric="loss", scheduler=scheduler)
    assert [(result.status, len(result.history)) for result in grid] == [("TERMINATED", 1)] * 3


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (
            {"a": {"x": lambda: 3}, "y": tune.uniform(0, 1)},
            "param_space['a/x'] is a lambda, which isn't called: ",
        ),
        ({"x": (0, 1)}, "param_space['x'] is the tuple (0, 1), which is passed to the trials as a constant"),
        ({"betas": (0.9, 0.999), "y": tune.uniform(0, 1)}, ""),
        ({"size": (3, 3), "make": str}, ""),
        ({"y": tune.choice([lambda: 3, (0, 1)]), "z": tune.sample_from(lambda spec: 3)}, ""),
    ],
)
def test_a_constant_that_was_probably_meant_to_vary_is_told(fit, caplog, space, told):
    fit(lambda config: 1.0, space)
    assert told in caplog.text
    assert bool(told) == ("param_space[" in caplog.text)


def test_a_name_that_is_chosen_is_of_no_folder_of_the_users(tmp_path):
    run = tune.RunConfig(name="e", storage_path=tmp_path, verbose=0)
    (tmp_path / "e_2").mkdir()
    (tmp_path / "e_3").touch()
    folders = [tune.Tuner(lambda config: 1.0, run_config=run).fit().experiment_path for _ in range(2)]
    assert folders == [f"{tmp_path}/e", f"{tmp_path}/e_4"]
    assert list((tmp_path / "e_2").iterdir()) == []


def test_a_second_fit_goes_beside_the_first_and_leaves_its_results(tmp_path):
    run = tune.RunConfig(name="e", storage_path=tmp_path, verbose=0)
    tuner = tune.Tuner(lambda config: config["x"], param_space={"x": 1.0}, run_config=run)
    first, second = tuner.fit(), tuner.fit()
    assert (first.experiment_path, second.experiment_path) == (f"{tmp_path}/e", f"{tmp_path}/e_2")
    assert first[0].metrics and second[0].metrics
    assert tuner.get_results() is second
