"""Restores of an experiment with constraints that was interrupted in the middle of a trial."""

from __future__ import annotations

import logging

import pytest

from trainkit import tune
from trainkit.tune.schedulers import ASHAScheduler, MedianStoppingRule

pytestmark = pytest.mark.usefixtures("inline")

SPACE = {"x": tune.uniform(0, 10), "y": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])}
LAST = 8
SCHEDULERS = {
    "none": lambda: None,
    "asha": lambda: ASHAScheduler(max_t=LAST, grace_period=2, reduction_factor=2),
    "median": lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=2),
    "learned": lambda: "auto",
}


class Cut(tune.Callback):
    """Interrupts the experiment, as Ctrl-C does, after a number of reports."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def trained(config):
    """Report losses that cross, and a latency that falls below the limit after three reports."""
    for step in range(1, LAST + 1):
        late = 5 if config["kind"] == "a" else -5
        latency = 3 * config["x"] + (20 if step < 4 else 0)
        tune.report({"loss": (config["x"] - 8) ** 2 + config["y"] + late / step, "latency": latency})


def seen(grid):
    """Configurations, numbers of reports, violations and the scheduler's decisions of all trials."""
    return [
        (
            each.config,
            each.metrics["training_iteration"],
            each.metrics["loss"],
            each.violation,
            [(decision["iteration"], decision["verdict"]) for decision in each.decisions],
        )
        for each in grid
    ]


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["auto", "optuna"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_restore_within_a_trial_repeats_the_search(fit, restore, caplog, searcher, scheduler):
    caplog.set_level(logging.ERROR)

    def begun(name, callbacks=()):
        return fit(
            trained,
            SPACE,
            metric="loss",
            num_samples=10,
            seed=5,
            max_concurrent_trials=1,
            constraints=["latency <= 20"],
            search_alg=searcher,
            scheduler=SCHEDULERS[scheduler](),
            run={"name": name, "callbacks": [*callbacks]},
        )

    whole = begun("whole")
    assert {each.feasible for each in whole} == {True, False}
    reports = sum(each.metrics["training_iteration"] for each in whole)
    for cuts in ([3], [reports // 2], [reports // 2, 2, 5], [reports - 1]):
        name = f"cut after {cuts}"
        with pytest.raises(KeyboardInterrupt):
            begun(name, [Cut(cuts[0])])
        for cut in cuts[1:]:
            with pytest.raises(KeyboardInterrupt):
                restore(trained, name, run={"callbacks": [Cut(cut)], "verbose": 0})
        rest = restore(trained, name, run={"callbacks": [], "verbose": 0})
        assert seen(rest) == seen(whole)
        assert rest.get_best_result().config == whole.get_best_result().config
