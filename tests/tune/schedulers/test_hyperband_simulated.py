"""Hyperband on the simulator: the totals of its tables, and experiments that end whatever happens in them."""

from __future__ import annotations

import pytest

from tests.tune.schedulers.test_hyperband import TOTALS
from trainkit import tune
from trainkit.tune.schedulers import HyperBandScheduler


def noisy(config, training_iteration, rng):
    return {"m": config["x"] + rng.normal() / training_iteration}


def simulate(scheduler, samples: int, **how):
    settings = tune.TuneConfig(metric="m", mode="max", num_samples=samples, scheduler=scheduler)
    return tune.simulate(noisy, {"x": tune.uniform(0, 1)}, settings, **{"seed": 1, **how})


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("pair", TOTALS)
def test_14_totals_of_one_turn(pair, resume):
    trials, scratch, resumed = TOTALS[pair]
    scheduler = HyperBandScheduler(max_t=pair[0], reduction_factor=pair[1])
    simulation = simulate(scheduler, trials, workers=9, resume=resume)
    assert (len(simulation), simulation.work) == (trials, resumed if resume else scratch)


def test_those_that_an_end_finds_paused_say_how_they_stood():
    scheduler = HyperBandScheduler(max_t=9)
    simulation = simulate(scheduler, 17, workers=1, horizon_s=5.5)
    left = [each for each in simulation.decisions() if each["rule"] == "not chosen"]
    assert len(left) == 5  # and one that ran when the end came
    assert {(each["entries"], each["awaits"], each["rung"]) for each in left} == {(6, 3, 1)}
    reasons = [result.reason for result in simulation if "not promoted" in result.reason]
    words = "time budget: not promoted: rung 1 of bracket 0, rank {} of 6 so far, trials still expected: 3"
    assert sorted(reasons) == sorted(words.format(each["rank"]) for each in left)

    simulation = simulate(scheduler, 17, workers=1, horizon_s=9.5)  # the round is judged, and one goes on
    reasons = [result.reason for result in simulation if "not promoted" in result.reason]
    assert sorted(reasons) == [
        f"time budget: not promoted: rung 1 of bracket 0, rank {rank} of 9, 3 places, still waiting to resume"
        for rank in (2, 3)
    ]
