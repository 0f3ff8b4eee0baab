"""What schedulers warn of once: trials that pause without a checkpoint, and schedulers that judge nobody."""

from __future__ import annotations

import pytest

from trainkit import tune
from trainkit.tune.schedulers import (
    PB2,
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
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


MUTATIONS = {"x": tune.uniform(0, 1)}


def train(config):
    for step in range(3):
        saved = tune.Checkpoint.from_dict({"step": step})
        tune.report({"loss": config["x"] / (step + 1), "steps": 10 * (step + 1)}, checkpoint=saved)


UNJUDGED = {
    "MedianStoppingRule": MedianStoppingRule,
    "PopulationBasedTraining": lambda **given: PopulationBasedTraining(
        hyperparam_mutations=MUTATIONS, quantile_fraction=0, **given
    ),
    "PB2": lambda **given: PB2(hyperparam_bounds=MUTATIONS, quantile_fraction=0, **given),
}


def ran(fit, scheduler, samples=3, **run):
    return fit(train, MUTATIONS, metric="loss", num_samples=samples, scheduler=scheduler, run=run)


@pytest.mark.parametrize("name", UNJUDGED)
def test_its_default_is_a_minute(fit, caplog, name):
    ran(fit, UNJUDGED[name]())
    assert caplog.text.count(f"{name} has judged no trial: no trial reached time_total_s=60") == 1


def test_one_that_came_so_far_is_enough(fit, caplog):
    ran(fit, MedianStoppingRule("steps", grace_period=30))
    ran(fit, PopulationBasedTraining("steps", perturbation_interval=30, hyperparam_mutations=MUTATIONS,
                                     quantile_fraction=0), name="other")  # fmt: skip
    assert "judged no trial" not in caplog.text


def test_what_was_told_at_the_start_is_not_told_again(fit, caplog):
    ran(fit, UNJUDGED["PopulationBasedTraining"](time_attr="training_iteration"),
        stop={"training_iteration": 3})  # fmt: skip
    assert caplog.text.count("judges no trial before training_iteration=60") == 1
    assert "has judged no trial" not in caplog.text


@pytest.mark.parametrize(("samples", "told"), [(1, 1), (2, 0)])
def test_a_population_of_one(fit, caplog, samples, told):
    ran(fit, UNJUDGED["PopulationBasedTraining"](time_attr="steps", perturbation_interval=10), samples)
    assert caplog.text.count("has only one trial") == told
