"""Streams that the user has split, of unequal length."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.train.operators import cpu_trainer
from trainkit.errors import ConfigError
from trainkit.train import TorchTrainer, TrainingOperator

pytestmark = pytest.mark.usefixtures("runtime")

SAMPLES = (12, 21)
SIZE = 4


class Part(IterableDataset[Any]):
    """One worker's part of a stream."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __iter__(self) -> Iterator[Any]:
        for index in range(SAMPLES[self._rank]):
            value = torch.tensor([index + 100.0 * self._rank], dtype=torch.float64) / 100
            yield value, value.square()


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(1, 1, dtype=torch.float64)


class Streaming(TrainingOperator):
    """Operator whose workers read parts of unequal length."""

    def setup(self, config: dict[str, Any]) -> None:
        own = model()
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        self.register(models=own, optimizers=optimizer, criterion=nn.MSELoss())
        loader: Any = DataLoader(Part(self.world_rank), SIZE)
        if config["listed"]:
            loader = list(loader)
        self.register_data(train_loader=loader, validation_loader=loader, **config["more"])


def streaming(
    listed: bool,
    every: int = 1,
    use_local: bool = False,
    operator: type[TrainingOperator] = Streaming,
    **more: Any,
) -> TorchTrainer:
    config = {"listed": listed, "more": more}
    options = {"use_local": use_local, "add_dist_sampler": False, "grad_accumulation_steps": every}
    return cpu_trainer(operator, 2, config, **options)


def by_hand(epochs: int, every: int) -> nn.Linear:
    """The model that a plain loop trains; a step's gradient is the mean over the workers with a batch."""
    own = model()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    for _ in range(epochs):
        parts = [list(DataLoader(Part(rank), SIZE)) for rank in range(2)]
        most = max(map(len, parts))
        for first in range(0, most, every):
            steps = range(first, min(first + every, most))
            for step in steps:
                there = [part[step] for part in parts if step < len(part)]
                losses = [nn.functional.mse_loss(own(features), target) for features, target in there]
                (torch.stack(losses).mean() / len(steps)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return own


@pytest.mark.parametrize(("listed", "every"), [(True, 1), (False, 2)])
def test_all_samples_are_trained_on_where_workers_join(listed: bool, every: int) -> None:
    with streaming(listed, every, uneven_inputs="join") as trainer:
        for _ in range(2):
            assert trainer.train()["num_samples"] == sum(SAMPLES)
        assert trainer.validate()["num_samples"] == sum(SAMPLES)
        found = trainer.get_model().state_dict()
        # Another pass begins where the longest stream has ended.
        assert trainer.train(num_steps=8)["num_samples"] == sum(SAMPLES) + 4 * SIZE
    for name, value in by_hand(2, every).state_dict().items():
        assert torch.allclose(found[name], value, rtol=1e-12)


class OwnStep(Streaming):
    """Operator whose own step asks for no weight."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        features, target = batch
        self.criterion(self.model(features), target).backward()
        self.optimizer.step()
        return {"num_samples": len(target)}


def test_a_step_that_would_train_repeated_batches_is_refused() -> None:
    with (
        streaming(False, operator=OwnStep, uneven_inputs="join") as trainer,
        pytest.raises(ConfigError, match=r"did not call self\.backward\(loss\), .*uneven_inputs='join'"),
    ):
        trainer.train()


class OwnStepOfShares(OwnStep):
    """Operator whose loader trainkit shares out, so that no batch is repeated."""

    def setup(self, config: dict[str, Any]) -> None:
        own = model()
        self.model, self.optimizer, self.criterion = self.register(
            models=own, optimizers=torch.optim.SGD(own.parameters(), lr=0.1), criterion=nn.MSELoss()
        )
        data = TensorDataset(*torch.rand(2, 16, 1, dtype=torch.float64))
        self.register_data(train_loader=DataLoader(data, 8), uneven_inputs="join")


def test_a_step_of_its_own_trains_on_equal_shares() -> None:
    with TorchTrainer(training_operator_cls=OwnStepOfShares, num_workers=2, use_gpu=False) as trainer:
        assert trainer.train()["num_samples"] == 16


def test_another_word_for_unequal_streams_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"uneven_inputs must be \"drop\", .* not 'joined'"):
        streaming(False, use_local=True, uneven_inputs="joined")


def test_dropped_samples_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trainkit.train"), streaming(False, use_local=True) as trainer:
        for _ in range(2):
            assert trainer.train()["num_samples"] == 2 * min(SAMPLES)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the train_loader of worker 0 ends after 3 batches, but worker 1 has more" in line
    assert "uneven_inputs='join'" in line


def test_unequal_streams_are_refused_where_that_is_asked_for() -> None:
    with (
        streaming(True, uneven_inputs="raise") as trainer,
        pytest.raises(ConfigError, match="after 3 batches"),
    ):
        assert trainer.train(num_steps=3)["num_samples"] == 2 * min(SAMPLES)
        trainer.train()
