"""One order of configurations, in real processes, whatever runs at once; rows 1.24 and 2.9."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import trainkit
from trainkit import tune
from trainkit.tune.search import Repeater
from trainkit.tune.search.repeater import TRIAL_INDEX, by_unit


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    trainkit.init(num_cpus=4, object_store_memory=64 * 2**20)
    yield
    trainkit.shutdown()


def now_and_then(config):
    time.sleep((config["x"] * 977 % 1) / 20)  # so that they end in another order than they began
    return {"loss": (config["x"] - 0.3) ** 2 + config.get(TRIAL_INDEX, 0)}


# rows 1.24, 2.9
@pytest.mark.slow
def test_random_search_has_one_order_with_one_and_with_four_trials_at_once(fit):
    runs = [
        fit(
            now_and_then,
            {"x": tune.uniform(0, 1), "grid": tune.grid_search([1, 2])},
            num_samples=4,
            seed=5,
            max_concurrent_trials=at_once,
            run={"name": str(at_once)},
        )
        for at_once in (1, 4)
    ]
    one, four = ([result.config for result in run] for run in runs)
    assert one == four
    assert len(four) == 8


# row 2.8
def test_folds_run_side_by_side_and_are_one_unit(fit):
    grid = fit(
        now_and_then,
        {"x": tune.uniform(0, 1)},
        metric="loss",
        num_samples=12,
        seed=5,
        search_alg=Repeater(tune.create_searcher("optuna"), 3),
    )
    units = by_unit(grid, "loss")
    assert [len(unit.values) for unit in units] == [3] * 4
    assert [unit.std for unit in units] == pytest.approx([1] * 4)


# row 2.13
def test_a_search_by_several_at_once_tries_nothing_twice(fit):
    grid = fit(now_and_then, {"x": tune.randint(0, 6)}, metric="loss", num_samples=20, search_alg="optuna")
    assert sorted(result.config["x"] for result in grid) == list(range(6))
