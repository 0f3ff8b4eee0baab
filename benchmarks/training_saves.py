"""Steps of `benchmarks.training` that run while a checkpoint is written, and the duration of such a save."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.interleaved import timed
from benchmarks.training_steps import BARE
from trainkit.train import TorchTrainer, TrainingOperator

WIDTH = 1_000


class Wide(TrainingOperator):
    """Operator with about `config["millions"]` million parameters and Adam, which notes when steps end."""

    def setup(self, config: dict[str, Any]) -> None:
        """Register layers of a million parameters each."""
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(config["millions"])))
        self.register(
            models=model, optimizers=torch.optim.Adam(model.parameters(), lr=1e-5), criterion=nn.MSELoss()
        )
        data = TensorDataset(torch.randn(64, WIDTH), torch.randn(64, WIDTH))
        self.register_data(train_loader=DataLoader(data, 8))
        self.ended: list[float] = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        """Train, and note the time."""
        metrics = super().train_batch(batch, batch_info)
        self.ended.append(time.monotonic())
        return metrics


@dataclass
class Saves:
    """Seconds of saves and of the steps around them.

    Attributes:
        undisturbed: mean step of each block without a save.
        disturbed: mean of the steps that run while a checkpoint is written, by block.
        beyond: time of `save(wait=False)` beyond the copy.
        copy_per_gb, write_per_gb: time of the copy and of the write, for a gigabyte of state.
    """

    undisturbed: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    beyond: list[float] = field(default_factory=list)
    copy_per_gb: list[float] = field(default_factory=list)
    write_per_gb: list[float] = field(default_factory=list)


def saves(workers: int, millions: int, steps: int, rounds: int) -> Saves:
    """Measure saves of a model: blocks of `steps` steps alternate, without and with a save at their start."""
    measured = Saves()
    with (
        tempfile.TemporaryDirectory() as folder,
        TorchTrainer(
            training_operator_cls=Wide, config={"millions": millions}, num_workers=workers, use_gpu=False
        ) as trainer,
    ):
        trainer.train(num_steps=3, **BARE)
        for _ in range(rounds):
            measured.undisturbed.append(statistics.mean(_block(trainer, steps)))
            took = timed(lambda: trainer.save(Path(folder, "saved"), wait=False))
            returned = time.monotonic()
            durations = _block(trainer, steps)
            trainer.load(Path(folder, "saved"))  # which waits for the write
            save = trainer.last_save
            assert save is not None
            ended, while_written = returned, []
            for duration in durations:
                if ended < returned + save.write_s or not while_written:
                    while_written.append(duration)
                ended += duration
            measured.disturbed.append(statistics.mean(while_written))
            measured.beyond.append(took - save.copy_s)
            measured.copy_per_gb.append(save.copy_s * 1e9 / save.size_bytes)
            measured.write_per_gb.append(save.write_s * 1e9 / save.size_bytes)
    return measured


def _block(trainer: Any, steps: int) -> list[float]:
    """Train `steps` steps; return the seconds of each step but the first, which has no step before it."""
    trainer.train(num_steps=steps, **BARE)
    ended = trainer.apply_all_operators(lambda operator: operator.ended)[0][-steps:]
    return [later - earlier for earlier, later in itertools.pairwise(ended)]
