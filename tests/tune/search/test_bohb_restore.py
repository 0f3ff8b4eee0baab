"""TuneBOHB goes on as if nothing had happened: by what it is told, in a restore, with many trials."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainkit import tune
from trainkit.plugins.testing.searcher import Row, Search, loss_of
from trainkit.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandForBOHB
from trainkit.tune.search.bohb import Knowledge, TuneBOHB

pytestmark = pytest.mark.usefixtures("inline")

SCHEDULERS = {
    "hyperband": lambda: HyperBandForBOHB(max_t=9),
    "asha": lambda: ASHAScheduler(max_t=9, reduction_factor=3),
    "fifo": FIFOScheduler,
}


PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}


class Stepping(tune.Trainable):
    """A trial that can pause; the driver is left at a step of a trial."""

    leave_at: tuple[str, int] | None = None

    def setup(self, config):
        self.x, self.number = config["x"], 0

    def step(self):
        self.number += 1
        if (self.trial_id[-5:], self.number) == Stepping.leave_at:
            Stepping.leave_at = None
            raise KeyboardInterrupt
        return {"loss": abs(self.x - 0.3) + 0.5 / self.number}

    def save_checkpoint(self, path):
        Path(path, "step").write_text(str(self.number))

    def load_checkpoint(self, path):
        self.number = int(Path(path, "step").read_text())


# rows 1.5, 2.9: the same suggestions and decisions, wherever it was left
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_restore_in_the_middle_goes_on_as_if_nothing_had_happened(fit, tmp_path, name):
    def run(folder):
        return fit(
            Stepping,
            {"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])},
            metric="loss",
            num_samples=14,
            seed=5,
            max_concurrent_trials=1,
            scheduler=SCHEDULERS[name](),
            search_alg=TuneBOHB(bohb_config={"min_points_in_model": 3}),
            run={
                "name": folder,
                "stop": {"training_iteration": 3 if name == "fifo" else 9},
                "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=1),
            },
        )

    def history(grid):
        decided = [
            (each["trial_id"][-5:], each["iteration"], each["verdict"], each.get("rank"))
            for each in grid.decisions()
        ]
        return [result.config for result in grid], decided

    whole = run("whole")
    Stepping.leave_at = ("00011", 1)
    with pytest.raises(KeyboardInterrupt):
        run("left")
    assert Stepping.leave_at is None
    grid = tune.Tuner.restore(tmp_path / "left", Stepping).fit()
    assert {result.status for result in grid} == {"TERMINATED"}
    assert history(grid) == history(whole)


def test_ten_thousand_trials_are_replayed_without_a_model(monkeypatch):
    made = 0

    def count(*arguments):
        nonlocal made
        made += 1

    monkeypatch.setattr(Knowledge, "_model", count)
    search = Search(
        Row("bohb", lambda: TuneBOHB(bohb_config={"random_fraction": 0})), PLANE, num_samples=10_001
    )
    rng = np.random.default_rng(0)
    space = search.searcher.space
    for n in range(10_000):
        config = space.configuration(0, rng)
        search.searcher.replay(f"t{n}", config)
        search.searcher.on_trial_complete(f"t{n}", {"loss": loss_of(config), "training_iteration": 1})
    assert made == 0
    assert space.contains(search.searcher.suggest("next"))
    assert made == 1
