"""TuneBOHB goes on as if nothing had happened: by what it is told, in a restore, with many trials."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tune.pausing import Stepping, history
from tests.tune.search.test_bohb import SCHEDULERS
from trainkit import tune
from trainkit.plugins.testing.searcher import Row, Search, loss_of
from trainkit.tune.search.bohb import Knowledge, TuneBOHB

pytestmark = pytest.mark.usefixtures("inline")

PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}


# rows 1.5, 2.9: the same suggestions and decisions, wherever it was left
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_restore_in_the_middle_goes_on_as_if_nothing_had_happened(fit, restore, name):
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

    whole = run("whole")
    Stepping.leave_at = ("00011", 1)
    with pytest.raises(KeyboardInterrupt):
        run("left")
    assert Stepping.leave_at is None
    grid = restore(Stepping, "left")
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
