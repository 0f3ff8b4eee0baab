"""Workers are lost, and the run goes on as if they had not been: real processes, real signals."""

from __future__ import annotations

import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import trainkit
from tests.conftest import eventually
from tests.train.operators import digits
from trainkit.errors import ActorDiedError, GangError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator

pytestmark = pytest.mark.usefixtures("runtime")

EPOCHS = 3


class Mortal(TrainingOperator):
    """All that has to be as it was: weights, momentum, rates, dropout, shuffling, noise, a state of its own.

    Its worker `config["rank"]` is given `config["signal"]` at `config["at"]`, such as "train 4" for the step or
    "validate 1" for the pass, as long as the file `config["lives"]` has a line left.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.maybe_die("setup")
        model = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.2), nn.Linear(32, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.register(
            models=model,
            optimizers=optimizer,
            criterion=nn.CrossEntropyLoss(),
            schedulers=StepLR(optimizer, 1, gamma=0.5),
        )
        data = digits(90, torch.float32)
        own = torch.Generator().manual_seed(11)
        size = config.get(BATCH_SIZE, 12)
        self.register_data(
            train_loader=DataLoader(data, size, shuffle=True),
            validation_loader=DataLoader(data, size, shuffle=True, generator=own),
        )
        self.passes = 0

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        self.maybe_die(f"train {batch_info['global_step']}")
        noise = random.random() + float(np.random.rand())
        features = batch[0] + 0.01 * noise + 0.01 * torch.randn(batch[0].shape)
        return super().train_batch((features, batch[1]), batch_info)

    def validate(self, val_iterator: Any, info: dict[str, Any]) -> Any:
        self.maybe_die(f"validate {self.passes}")
        result = super().validate(val_iterator, info)
        self.passes += 1
        return {**result, "first_draw": float(torch.rand(()))}

    def state_dict(self) -> dict[str, Any]:
        self.maybe_die("save")
        return {"passes": self.passes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.passes = state_dict["passes"]

    def maybe_die(self, where: str) -> None:
        if where != self.config.get("at") or self.world_rank != self.config["rank"]:
            return
        lives = Path(self.config["lives"])
        left = lives.read_text().splitlines()
        if left:
            lives.write_text("\n".join(left[1:]))
            os.kill(os.getpid(), self.config.get("signal", signal.SIGKILL))


def trainer(**options: Any) -> TorchTrainer:
    torch.manual_seed(7)
    arguments = {"num_workers": 2, "timeout_s": 60, "scheduler_step_freq": "epoch", **options}
    return TorchTrainer(training_operator_cls=Mortal, use_gpu=False, **arguments)


def run(gang: TorchTrainer, tmp_path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Each epoch's numbers, and the state after the last; a checkpoint is saved between two of them."""
    numbers = []
    for _ in range(EPOCHS):
        numbers += [gang.train(), gang.validate()]
        gang.save(tmp_path / "c")
    return numbers, gang.state_dict()


def identical(one: Any, other: Any) -> bool:
    """Bit by bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(identical, one, other))
    return bool(one == other)


_undisturbed: dict[int, Any] = {}


def undisturbed(workers: int, tmp_path: Path, **options: Any) -> Any:
    if workers not in _undisturbed:
        with trainer(num_workers=workers, config={"rank": -1}, **options) as gang:
            _undisturbed[workers] = run(gang, tmp_path)
    return _undisturbed[workers]


def mortal(at: str, rank: int, tmp_path: Path, lives: int = 1, **options: Any) -> TorchTrainer:
    file = tmp_path / "lives"
    file.write_text("life\n" * lives)
    config = {"at": at, "rank": rank, "lives": str(file), **options.pop("config", {})}
    return trainer(config=config, **options)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("at", ["train 1", "train 5", "train 11", "validate 0", "validate 2"])
def test_a_killed_worker_changes_no_number(
    at: str, rank: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = undisturbed(2, tmp_path)
    with caplog.at_level(logging.WARNING, "trainkit.train"), mortal(at, rank, tmp_path) as gang:
        found = run(gang, tmp_path)
    assert identical(found, expected)
    assert [record.getMessage() for record in caplog.records] == [
        pytest.approx(record.getMessage()) for record in caplog.records
    ]
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"worker {rank} of 2 died" in line
    assert line.endswith(f"the workers are formed again, and {at.split()[0]}() starts over")
