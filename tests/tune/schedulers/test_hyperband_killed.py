"""Hyperband on processes of which some are killed: every trial ends, and what is left is still halved."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path

import trainkit
from tests.tune.pausing import Counted
from trainkit import tune
from trainkit.tune.schedulers import HyperBandScheduler


class Mortal(Counted):
    """Its process dies by chance, in a step or while it saves; in every run alike, in each attempt anew."""

    def setup(self, config):
        started = Path(self.logdir, "started")
        with started.open("a") as file:
            file.write(".")
        self.chance = random.Random(f"{config['x']} {len(started.read_text())}")

    def _maybe_die(self):
        if self.chance.random() < 0.06:
            os.kill(os.getpid(), signal.SIGKILL)

    def reports(self, number):
        self._maybe_die()
        return {"m": self.config["x"] * number, "seen": number}

    def save_checkpoint(self, path):
        self._maybe_die()
        super().save_checkpoint(path)


def test_16_every_trial_ends_though_processes_are_killed(fit):
    trainkit.init(engine="local", num_cpus=4)
    try:
        grid = fit(
            Mortal,
            {"x": tune.uniform(0, 1)},
            metric="m",
            mode="max",
            num_samples=17,
            seed=1,
            search_alg="random",
            scheduler=HyperBandScheduler(max_t=9),
            run={"failure_config": tune.FailureConfig(max_failures=1)},
        )
    finally:
        trainkit.shutdown()
    assert (len(grid), grid.num_unfinished) == (17, 0)
    assert grid.num_terminated + grid.num_errors == 17
    died = [span for span in grid.timeline if span.outcome == "failed"]
    assert len(died) >= 3
    assert all("ActorDiedError" in span.reason for span in died)
    assert grid.num_terminated > grid.num_errors > 0
    assert all("killed by SIGKILL" in str(error) for error in grid.errors)
    assert "not promoted" not in {result.reason for result in grid}
    assert all(
        result.metrics["seen"] == result.metrics["training_iteration"] for result in grid if result.metrics
    )
    # At most so many go on from each level as of 9 and 5 may, whoever is killed.
    went = Counter(
        (each["bracket"], each["rung"]) for each in grid.decisions() if each["verdict"] == "RESUME"
    )
    assert went[0, 1] <= 3 and went[0, 3] <= 1 and went[1, 3] <= 1
