"""Accelerate in a function trainer: what it does under its own launcher, and what it is kept from doing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.torch import library_loops
from tests.train.torch.launched import column, trainer, under_torchrun
from trainkit import train, tune
from trainkit.errors import ConfigError, WorkerGroupError
from trainkit.train import FailureConfig

pytestmark = pytest.mark.usefixtures("runtime")


def test_the_curve_is_that_of_torchrun_though_a_worker_fails(tmp_path: Path) -> None:
    """Two workers, bf16, gradients of two batches accumulated; the third epoch goes on from a checkpoint."""
    again = {"failure_config": FailureConfig(max_failures=1)}
    result = trainer(library_loops.accelerate, tmp_path, {"fails_at": 2}, run=again).fit()
    launched = under_torchrun(tmp_path, "accelerate")["accelerate"]
    assert list(result.metrics_dataframe["loss"]) == column(launched, "loss")
    told = {name: result.metrics[name] for name in ("batches", "processes", "model", "device")}
    assert told == {"batches": 4, "processes": 2, "model": "DistributedDataParallel", "device": "cpu"}
    kept = {path.name for path in Path(result.checkpoint.path).iterdir()}
    assert {"model.safetensors", "random_states_0.pkl", "random_states_1.pkl", "epoch"} <= kept


def test_a_scheduler_ends_both_ranks_of_a_trial(tmp_path: Path) -> None:
    tuner = tune.Tuner(
        trainer(library_loops.accelerate, tmp_path),
        param_space={"train_loop_config": {"lr": tune.grid_search([0.05, 1e-5])}},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            max_concurrent_trials=1,
            scheduler=tune.schedulers.ASHAScheduler(
                grace_period=1, reduction_factor=2, max_t=library_loops.EPOCHS
            ),
        ),
    )
    good, bad = tuner.fit()
    assert (good.metrics["training_iteration"], bad.metrics["training_iteration"]) == (
        library_loops.EPOCHS,
        1,
    )
    assert bad.error is None
    assert all(Path(bad.path, f"ended{rank}").exists() for rank in (0, 1))


def sharded(config: dict[str, Any]) -> None:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))


def half(config: dict[str, Any]) -> None:
    from accelerate import Accelerator

    Accelerator(mixed_precision="fp16")


def alone(config: dict[str, Any]) -> None:
    from accelerate import PartialState

    PartialState()


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (sharded, r"Accelerate was asked for FSDP, and this worker has no GPU"),
        (half, r"Accelerate was asked for mixed_precision='fp16', and this worker has no GPU"),
        (alone, r"Accelerate counts 1 processes where there are 2 workers, so each would train by itself"),
    ],
)
def test_what_accelerate_would_leave_out_without_a_word_is_refused(
    loop: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkerGroupError, match=message) as caught:
        trainer(loop, tmp_path).fit()
    assert [type(error) for error in caught.value.worker_failures.values()] == [ConfigError]


def counted(config: dict[str, Any]) -> None:
    """As a script that loads Accelerate for its helpers alone."""
    from accelerate import PartialState

    state = PartialState(cpu=True)
    train.report({"processes": state.num_processes, "rank": state.process_index})


def test_a_state_that_knows_the_workers_is_left_alone(tmp_path: Path) -> None:
    metrics = trainer(counted, tmp_path).fit().metrics
    assert (metrics["processes"], metrics["rank"]) == (2, 0)
