"""A scheduler that has judged nobody, since no trial came so far, is told of once, at the end."""

from __future__ import annotations

import pytest

from trainkit import tune
from trainkit.tune.schedulers import (
    PB2,
    MedianStoppingRule,
    PopulationBasedTraining,
)

pytestmark = pytest.mark.usefixtures("inline")

MUTATIONS = {"x": tune.uniform(0, 1)}


def train(config):
    for step in range(3):
        saved = tune.Checkpoint.from_dict({"step": step})
        tune.report({"loss": config["x"] / (step + 1), "steps": 10 * (step + 1)}, checkpoint=saved)


SCHEDULERS = {
    "MedianStoppingRule": MedianStoppingRule,
    "PopulationBasedTraining": lambda **given: PopulationBasedTraining(
        hyperparam_mutations=MUTATIONS, quantile_fraction=0, **given
    ),
    "PB2": lambda **given: PB2(hyperparam_bounds=MUTATIONS, quantile_fraction=0, **given),
}


def run(fit, scheduler, samples=3, **run):
    return fit(train, MUTATIONS, metric="loss", num_samples=samples, scheduler=scheduler, run=run)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_its_default_is_a_minute(fit, caplog, name):
    run(fit, SCHEDULERS[name]())
    assert caplog.text.count(f"{name} has judged no trial: no trial reached time_total_s=60") == 1


def test_one_that_came_so_far_is_enough(fit, caplog):
    run(fit, MedianStoppingRule("steps", grace_period=30))
    run(fit, PopulationBasedTraining("steps", perturbation_interval=30, hyperparam_mutations=MUTATIONS,
                                     quantile_fraction=0), name="other")  # fmt: skip
    assert "judged no trial" not in caplog.text


def test_what_was_told_at_the_start_is_not_told_again(fit, caplog):
    run(fit, SCHEDULERS["PopulationBasedTraining"](time_attr="training_iteration"),
        stop={"training_iteration": 3})  # fmt: skip
    assert caplog.text.count("judges no trial before training_iteration=60") == 1
    assert "has judged no trial" not in caplog.text


@pytest.mark.parametrize(("samples", "told"), [(1, 1), (2, 0)])
def test_a_population_of_one(fit, caplog, samples, told):
    run(fit, SCHEDULERS["PopulationBasedTraining"](time_attr="steps", perturbation_interval=10), samples)
    assert caplog.text.count("has only one trial") == told
