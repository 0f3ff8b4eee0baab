"""Trials that a scheduler pauses, and that have no checkpoint, begin anew, with one warning; as under Ray."""

from __future__ import annotations

import pytest

from trainkit import tune
from trainkit.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)

pytestmark = pytest.mark.usefixtures("inline")

SPACE = {"x": tune.grid_search([1, 2, 3, 4])}


def forgetful(config):
    for step in range(1, 10):
        tune.report({"m": config["x"] * step})


class Forgetful(tune.Trainable):
    def setup(self, config):
        self.steps = 0

    def step(self):
        self.steps += 1
        return {"m": self.config["x"] * self.steps, "done": self.steps == 9}


def pbt(synch):
    mutations = {"x": tune.uniform(1, 4)}
    return PopulationBasedTraining(
        "training_iteration", perturbation_interval=3, synch=synch, hyperparam_mutations=mutations
    )


def doubled(tune_controller, trial, result, scheduler):
    return {"cpu": 2} if result["training_iteration"] == 2 else None


SCHEDULERS = {
    "HyperBand": lambda: HyperBandScheduler(max_t=9),
    "ASHA": lambda: ASHAScheduler("training_iteration", type="promotion", max_t=9),
    "PBT": lambda: pbt(synch=True),
}


@pytest.mark.parametrize(
    ("name", "trainable"), [("HyperBand", forgetful), ("ASHA", Forgetful), ("PBT", forgetful)]
)
def test_they_begin_anew_with_one_warning(fit, caplog, trainable, name):
    grid = fit(
        trainable, SPACE, metric="m", mode="max", max_concurrent_trials=1, scheduler=SCHEDULERS[name]()
    )
    assert [str(result.status) for result in grid] == ["TERMINATED"] * 4
    best = grid.get_best_result()
    assert best.config["x"] == 4
    assert best.metrics["m"] == 4 * best.metrics["training_iteration"], "each counts from its beginning"
    if name != "ASHA":  # which has too few trials for its last rung
        assert best.metrics["training_iteration"] == 9
    assert caplog.text.count("will start over") == 1
    assert f"{name} paused trial" in caplog.text


def test_a_change_of_resources_lets_them_begin_anew(fit, caplog):
    scheduler = ResourceChangingScheduler(None, doubled)
    (result,) = fit(forgetful, {"x": 1}, scheduler=scheduler)
    assert result.metrics["m"] == 9
    assert len(result.attempts) == 2
    assert caplog.text.count("a change of resources paused trial") == 1


def alternating(tune_controller, trial, result, scheduler):
    return {"cpu": 3 - trial.placement_group_factory.required_resources["CPU"]}


def test_one_that_is_paused_no_further_than_before_fails(fit):
    """It would begin anew without end."""
    scheduler = ResourceChangingScheduler(None, alternating)
    (result,) = fit(forgetful, {"x": 1}, scheduler=scheduler)
    assert str(result.status) == "ERROR"
    assert len(result.attempts) == 2
    assert "again without progress" in str(result.error)


def test_a_member_runs_on_where_there_is_no_state_to_take_over(fit, caplog):
    """Under Ray such an exploit doesn't take place either."""
    trainable = tune.with_resources(forgetful, {"cpu": 0.25})  # else members take turns, and pause for it
    grid = fit(trainable, SPACE, metric="m", mode="max", scheduler=pbt(synch=False))
    assert [result.metrics["m"] for result in grid] == [9, 18, 27, 36]
    assert [len(result.attempts) for result in grid] == [1] * 4
    assert "start over" not in caplog.text
