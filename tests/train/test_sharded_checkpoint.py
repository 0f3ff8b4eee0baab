"""Checkpoints that all workers write: whole or not at all, and loadable by any strategy on any number of workers."""

from __future__ import annotations

import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.operators import Digits, gang_losses
from tests.train.test_fsdp import Stack, trainer
from trainkit.errors import CheckpointError, GangError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator, checkpoint
from trainkit.train.strategies.fsdp import FSDP

pytestmark = pytest.mark.usefixtures("runtime")

CONFIG = {BATCH_SIZE: 48}


def flat(value: Any, where: str = "") -> dict[str, Any]:
    """The leaves of nested mappings and lists, by path."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{where}/{key}").items()}
    if isinstance(value, (list, tuple)):
        return {k: v for key, item in enumerate(value) for k, v in flat(item, f"{where}/{key}").items()}
    return {where: value}


def assert_equal(one: Any, other: Any) -> None:
    mine, theirs = flat(one), flat(other)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, theirs[name]), name
        else:
            assert value == theirs[name], name


def trained_state(state: dict[str, Any]) -> dict[str, Any]:
    return {name: state[name] for name in ("models", "optimizers", "epoch", "global_step")}


def test_a_checkpoint_loads_into_any_strategy_on_any_number_of_workers(tmp_path: Path) -> None:
    with trainer(num_workers=4, config=CONFIG) as gang:
        gang.train(num_steps=3)
        gang.save(tmp_path / "c")
        expected = trained_state(gang.state_dict())
        gang.train(num_steps=1)
        gang.load(tmp_path / "c")
        assert_equal(trained_state(gang.state_dict()), expected)
    assert sorted(file.name for file in (tmp_path / "c" / "shards").iterdir()) == [
        ".metadata",
        *(f"__{rank}_0.distcp" for rank in range(4)),
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
    for name, workers in (("fsdp", 2), ("ddp", 2), ("single", 1), ("fsdp", 1)):
        with trainer(num_workers=workers, strategy=name, config=CONFIG) as gang:
            gang.load(tmp_path / "c")
            assert_equal(trained_state(gang.state_dict()), expected)
            if name in ("single", "ddp"):
                gang.save(tmp_path / name)
                with trainer(num_workers=2, config=CONFIG) as sharded:
                    sharded.load(tmp_path / name)
                    assert_equal(trained_state(sharded.state_dict()), expected)
                    assert sharded.train(num_steps=2)["epoch"] == 2
