"""Laws of every scheduler in a simulated experiment, and what each is for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.tune.schedulers.test_bad_input import ALL as SCHEDULERS
from tests.tune.schedulers.test_bad_input import RULES
from trainkit import tune
from trainkit.plugins.testing.scheduler import SchedulerSuite, simulated
from trainkit.tune.schedulers import FIFOScheduler, TrialScheduler

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name == "PB2"), id=name) for name in SCHEDULERS]
"""All of them; PB2 learns a Gaussian process at each decision, which takes its time."""


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_does_here_what_it_is_for(name):  # so that what follows holds of something
    assert {decision["rule"] for decision in simulated(SCHEDULERS[name]()).decisions()} == RULES[name]


def decisions_by(scheduler: TrialScheduler, mode: str) -> list[tuple[Any, ...]]:
    """Return the decisions over one noisy objective, as a loss or negated as a gain."""
    sign = 1 if mode == "min" else -1
    results = tune.simulate(
        lambda config, t, rng: {"m": sign * (config["x"] / t + 0.1 * rng.normal()), "done": t == 12},
        {"x": tune.uniform(0, 1)},
        tune.TuneConfig(metric="m", mode=mode, num_samples=14, scheduler=scheduler),
        workers=4,
        seed=5,
    )
    names = [result.trial_id for result in results]
    facts = ("time", "verdict", "rule", "rung", "rank", "entries")
    return [
        (names.index(each["trial_id"]), *(each.get(fact) for fact in facts)) for each in results.decisions()
    ]


@pytest.mark.parametrize(
    "name", [each for each in NAMES if not {"fifo", "several objectives"} & set(each.values)]
)
def test_6_min_of_the_negated_metric_decides_the_same(name):  # property 6
    made = decisions_by(SCHEDULERS[name](), "max")
    assert made == decisions_by(SCHEDULERS[name](), "min")
    assert made


class TestSchedulers(SchedulerSuite):
    @pytest.fixture(params=NAMES)
    def make(self, request):
        return SCHEDULERS[request.param]


def test_one_worker_takes_as_long_as_all_that_it_does():  # property 30
    results = simulated(FIFOScheduler(), workers=1, stragglers=0.0, failures=0.0, horizon_s=None)
    durations = [12 * result.config["cost"] for result in results]
    assert results.ended_s == pytest.approx(math.fsum(durations))
    assert results.utilisation == pytest.approx(1.0)
