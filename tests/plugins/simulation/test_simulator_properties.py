"""Laws of every scheduler in a simulated experiment, and what each is for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trainkit import tune
from trainkit.plugins.testing.scheduler import SchedulerSuite, simulated
from trainkit.tune.schedulers import (
    PB2,
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    ParetoScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)


def more_later(controller: Any, trial: Any, result: Mapping[str, Any], scheduler: Any) -> dict[str, float]:
    """Two workers from the second report on, if there are two."""
    return {"cpu": 1 if result["training_iteration"] == 1 else min(2, controller.get_num_cpus())}


SCHEDULERS: dict[str, Callable[[], TrialScheduler]] = {
    "fifo": FIFOScheduler,
    "stopping": lambda: ASHAScheduler(max_t=9, reduction_factor=3),
    "stopping in brackets": lambda: ASHAScheduler(max_t=9, reduction_factor=3, brackets=2),
    "promotion": lambda: ASHAScheduler(max_t=9, reduction_factor=3, type="promotion"),
    "promotion with an end": lambda: ASHAScheduler(
        max_t=9, reduction_factor=99, type="promotion", finish=True
    ),
    "promotion in brackets": lambda: ASHAScheduler(max_t=9, reduction_factor=3, type="promotion", brackets=3),
    "hyperband": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
    "hyperband for BOHB": lambda: HyperBandForBOHB(max_t=9, reduction_factor=3),
    "PBT": lambda: PopulationBasedTraining(
        "training_iteration", perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}
    ),
    "synchronous PBT": lambda: PopulationBasedTraining(
        "training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"x": tune.uniform(0, 1)},
        synch=True,
    ),
    "PB2": lambda: PB2("training_iteration", perturbation_interval=6, hyperparam_bounds={"x": [0, 1]}),
    "median": lambda: MedianStoppingRule("training_iteration", grace_period=2),
    "median in turns": lambda: MedianStoppingRule(
        "training_iteration", grace_period=2, min_time_slice=2, hard_stop=False
    ),
    "resources": lambda: ResourceChangingScheduler(ASHAScheduler(max_t=9, reduction_factor=3), more_later),
    "resources and promotion": lambda: ResourceChangingScheduler(
        ASHAScheduler(max_t=9, reduction_factor=3, type="promotion"), more_later
    ),
    "several objectives": lambda: ParetoScheduler(
        metric=["loss", "time_this_iter_s"], mode=["min", "min"], max_t=9
    ),
}

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name == "PB2"), id=name) for name in SCHEDULERS]
"""All of them; PB2 learns a Gaussian process at each decision, which takes its time."""

RULES: dict[str, set[str]] = {
    "fifo": set(),
    "stopping": {"rung", "max_t"},
    "stopping in brackets": {"rung", "max_t"},
    "promotion": {"rung", "max_t", "not chosen"},
    "promotion with an end": {"rung", "finish", "max_t", "not chosen"},
    "promotion in brackets": {"rung", "max_t", "not chosen"},
    "hyperband": {"milestone", "rung", "max_t"},
    "hyperband for BOHB": {"milestone", "rung", "max_t"},
    "PBT": {"population", "exploit", "turn"},
    "synchronous PBT": {"barrier", "exploit", "turn"},
    "PB2": {"population", "exploit", "turn"},
    "median": {"median"},
    "median in turns": {"median", "time slice", "losers last"},
    "resources": {"resources", "rung", "max_t"},
    "resources and promotion": {"resources", "rung", "max_t", "not chosen"},
    "several objectives": {"rung", "max_t"},
}


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
