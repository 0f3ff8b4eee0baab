"""Accelerate in a function trainer: what it does under its own launcher, and what it is kept from doing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.torch import library_loops
from tests.train.torch.launched import column, trainer, under_torchrun
from trainkit import train
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


def alone(config: dict[str, Any]) -> None:
    from accelerate import PartialState

    PartialState()


def test_what_accelerate_would_leave_out_without_a_word_is_refused(tmp_path: Path) -> None:
    message = (
        "Accelerate counts 1 processes, but there are 2 workers, so each worker would train its own model"
    )
    with pytest.raises(WorkerGroupError, match=message) as caught:
        trainer(alone, tmp_path).fit()
    assert [type(error) for error in caught.value.worker_failures.values()] == [ConfigError]


def counted(config: dict[str, Any]) -> None:
    """As a script that loads Accelerate for its helpers alone."""
    from accelerate import PartialState

    state = PartialState(cpu=True)
    train.report({"processes": state.num_processes, "rank": state.process_index})


def test_a_state_that_knows_the_workers_is_left_alone(tmp_path: Path) -> None:
    metrics = trainer(counted, tmp_path).fit().metrics
    assert (metrics["processes"], metrics["rank"]) == (2, 0)
