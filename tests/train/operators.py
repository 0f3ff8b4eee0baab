"""Operators and plain loops that the tests of training share."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.step.context import WorkerContext
from trainkit.train.step.epoch import EpochBatches
from trainkit.train.strategies.base import Place, StepSettings
from trainkit.train.strategies.single import SingleStrategy


def digits(samples: int | None, dtype: torch.dtype) -> TensorDataset:
    """The first `samples` handwritten digits."""
    table = _table()[:samples]
    return TensorDataset(torch.tensor(table[:, :64], dtype=dtype) / 16, torch.tensor(table[:, 64]).long())


@functools.cache
def _table() -> np.ndarray:
    # As `load_digits` reads it. Importing scikit-learn would take each session's workers a second.
    found = importlib.util.find_spec("sklearn")
    assert found is not None and found.origin is not None
    return np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")


def make_parts(config: dict[str, Any]) -> tuple[nn.Module, Any, Any, DataLoader[Any], DataLoader[Any]]:
    """Model, optimizer, loss and loaders, the same for every caller with the same configuration."""
    torch.manual_seed(config.get("seed", 0))
    dtype = config.get("dtype", torch.float64)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1), momentum=0.9)
    data = digits(config.get("samples"), dtype)
    size = config.get(BATCH_SIZE) or config.get("batch_size", 32)
    train = DataLoader(
        data, size, shuffle=config.get("shuffle", True), drop_last=config.get("drop_last", False)
    )
    return model, optimizer, nn.CrossEntropyLoss(), train, DataLoader(data, size)


class Digits(TrainingOperator):
    """The plainest operator; it keeps each step's loss and sample count."""

    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, criterion, train, validation = make_parts(config)
        self.register(models=model, optimizers=optimizer, criterion=criterion)
        self.register_data(train_loader=train, validation_loader=validation)
        self.steps: list[tuple[float, int]] = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        metrics = super().train_batch(batch, batch_info)
        self.steps.append((float(metrics["train_loss"]), metrics["num_samples"]))
        return metrics


class OwnSeeds(Digits):
    """Each worker starts with weights of its own, to be overruled by worker 0's; batch norm has buffers."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(self.world_rank)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register(
            models=[model, frozen],
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            criterion=nn.CrossEntropyLoss(),
        )
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(25, 8), torch.randint(0, 2, (25,)))
        self.register_data(train_loader=DataLoader(data, 5), validation_loader=DataLoader(data, 4))
        self.steps = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        features, target = batch
        loss = self.criterion(self.models[0](features), target)
        self.optimizer.zero_grad()
        self.backward(loss)
        self.optimizer.step()
        return {"train_loss": loss, "num_samples": len(target)}

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        return {"val_loss": self.criterion(self.models[0](batch[0]), batch[1]), "num_samples": len(batch[1])}


def lose_patience() -> None:
    """This worker's next collective waits for a second only.

    A trainer's `timeout_s` is also for the workers' start, which no machine promises to be short.
    """
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))


def cpu_trainer(
    operator: type[TrainingOperator], workers: int = 2, config: dict[str, Any] | None = None, **options: Any
) -> TorchTrainer:
    """Return a trainer of an operator on CPUs."""
    return TorchTrainer(
        training_operator_cls=operator, num_workers=workers, config=config, use_gpu=False, **options
    )


def alone(cls: type[Any], config: dict[str, Any], **settings: Any) -> Any:
    """An operator by itself in this process; `settings` are those of its steps, and `scheduler_step_freq`."""
    frequency = settings.pop("scheduler_step_freq", None)
    step = StepSettings(**settings)
    strategy = SingleStrategy(Place(devices=(torch.device("cpu"),), step=step))
    return cls(config, WorkerContext(strategy=strategy, step=step, scheduler_step_freq=frequency))


def train_alone(operator: Any, num_steps: int | None = None) -> Any:
    """An epoch of `alone`'s operator."""
    return operator.train_epoch(
        EpochBatches(operator._train_feed.batches(0, num_steps)), {}, num_steps=num_steps
    )


def plain_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: Callable[[Any, Any], torch.Tensor],
    loader: Iterable[Any],
    steps: int,
    *,
    every: int = 1,
    max_norm: float | None = None,
) -> list[float]:
    """Return the losses of a plain loop, which updates after `every` batches, and restarts its data."""
    losses: list[float] = []
    while len(losses) < steps:
        batches = [batch for _, batch in zip(range(steps - len(losses)), loader, strict=False)]
        for start in range(0, len(batches), every):
            group = batches[start : start + every]
            count = sum(len(features) for features, _ in group)
            for features, target in group:
                loss = criterion(model(features), target)
                (loss * len(features) / count).backward()
                losses.append(loss.item())
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    return losses


def plain_losses(config: dict[str, Any], steps: int) -> list[float]:
    """Return the loss of each step of a plain loop."""
    return plain_loop(*make_parts(config)[:4], steps)


def plain_weights(config: dict[str, Any], steps: int, **options: Any) -> dict[str, torch.Tensor]:
    """Return the weights after the steps of a plain loop."""
    model, *others, _ = make_parts(config)
    plain_loop(model, *others, steps, **options)
    return model.state_dict()


def gang_losses(trainer: Any) -> list[float]:
    """Loss of each step over all workers of a trainer of `Digits`."""
    per_worker = trainer.apply_all_operators(lambda operator: operator.steps)
    return [
        math.fsum(loss * count for loss, count in step) / sum(count for _, count in step)
        for step in zip(*per_worker, strict=True)
    ]
