"""The tuner on a Ray cluster of two nodes, both on this machine: the same code, the same results."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import eventually
from tests.tune.pausing import Counted
from trainkit import tune
from trainkit.errors import InfeasibleError
from trainkit.runtime.local.system import process
from trainkit.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.usefixtures("ray_cluster")
Fit = Callable[..., tune.ResultGrid]


def falling(config: dict[str, Any]) -> None:
    for step in range(1, 10):
        tune.report({"loss": config["x"] + 1 / step, "node": trainkit.get_runtime_context().get_node_id()})


def test_trials_on_both_nodes(fit: Fit) -> None:
    grid = fit(falling, {"x": tune.grid_search([1, 2, 3, 4])})
    assert grid.num_terminated == 4
    assert len({result.metrics["node"] for result in grid}) == 2
    for result in grid:
        iterations = [report["training_iteration"] for report in result.history]
        assert iterations == list(range(1, 10))


class Counter(Counted):
    """Is killed once at the third step."""

    def reports(self, number: int) -> dict[str, Any]:
        once = Path(self.config["once"])
        if number == 3 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"count": number, "worker": os.getpid(), "done": number == 4}


def test_a_killed_trial_goes_on_from_its_checkpoint(fit: Fit, tmp_path: Path) -> None:
    run = {
        "failure_config": tune.FailureConfig(max_failures=1),
        "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=1),
    }
    grid = fit(Counter, {"once": str(tmp_path / "once")}, run=run)
    assert [report["count"] for report in grid[0].history] == [1, 2, 3, 4]
    pids = [report["worker"] for report in grid[0].history]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert eventually(lambda: not any(map(process.exists, pids)), 60)


def test_large_parameters_reach_every_node(fit: Fit) -> None:
    def total(config: dict[str, Any], data: np.ndarray) -> dict[str, Any]:
        return {"total": float(data.sum()) * config["x"]}

    data = np.ones(300_000)
    grid = fit(tune.with_parameters(total, data=data), {"x": tune.grid_search([1, 2, 3])})
    assert [result.metrics["total"] for result in grid] == [3e5, 6e5, 9e5]


def test_processes_are_taken_over(fit: Fit) -> None:
    def pid(config: dict[str, Any]) -> dict[str, Any]:
        return {"worker": os.getpid()}

    grid = fit(pid, {"x": tune.grid_search(list(range(6)))}, reuse_actors=True)
    pids = {result.metrics["worker"] for result in grid}
    assert grid.num_terminated == 6
    assert len(pids) <= 2
    assert eventually(lambda: not any(map(process.exists, pids)), 60)


def test_what_never_fits_is_refused(fit: Fit) -> None:
    with pytest.raises(InfeasibleError, match=r"gpu|GPU"):
        fit(tune.with_resources(falling, {"gpu": 1}), {"x": 1})


def test_what_a_trial_starts_runs_in_its_bundles(fit: Fit) -> None:
    def parent(config: dict[str, Any]) -> dict[str, Any]:
        where = trainkit.remote(trainkit.get_current_placement_group)
        return {"bundles": trainkit.get(where.remote()).bundle_specs}

    bundles = [{"CPU": 1}, {"CPU": 1}]  # all that there is: outside of them nothing would ever run
    grid = fit(tune.with_resources(parent, tune.PlacementGroupFactory(bundles)), num_samples=2)
    assert [result.metrics["bundles"] for result in grid] == [bundles] * 2


def test_trials_of_two_workers_with_asha(fit: Fit) -> None:
    """Each takes both nodes: one at a time, without a deadlock."""
    # Not above: the workers of the other tests would import torch as well.
    from tests.train.operators import Digits
    from trainkit.train import BATCH_SIZE, TorchTrainer

    trainable = TorchTrainer.as_trainable(
        training_operator_cls=Digits, config={"samples": 40, BATCH_SIZE: 20}, num_workers=2, use_gpu=False
    )
    grid = fit(
        trainable,
        {"lr": tune.grid_search([0.5, 1e-6])},
        metric="val_loss",
        mode="min",
        scheduler=ASHAScheduler(max_t=3, grace_period=1, reduction_factor=2),
    )
    assert grid.num_errors == 0, grid.errors
    assert [len(result.history) for result in grid] == [3, 1]
    assert [result.metrics["epoch"] for result in grid] == [3, 1]
    assert [result.metrics["num_samples"] for result in grid] == [40, 40]
    assert grid.get_best_result().config["lr"] == 0.5
