"""Accumulating k batches is training on batches k times as large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset

from tests.train.operators import (
    Digits,
    alone,
    cpu_trainer,
    digits,
    make_parts,
    plain_losses,
    plain_weights,
    train_alone,
)
from trainkit.train import BATCH_SIZE, TrainingOperator
from trainkit.train.data.sharding import BatchSizes, BatchWeights, batch_weight

pytestmark = pytest.mark.usefixtures("runtime")

SAMPLES = 200
"""With batches of 24, three to a step: 72, 72 and 56 samples, the last of them as 24, 24 and 8."""


def assert_equal(ours: Any, plain: dict[str, torch.Tensor]) -> None:
    for name, value in ours.state_dict().items():
        assert torch.allclose(value, plain[name], atol=1e-9, rtol=0)


class Scheduled(Digits):
    """Counts what its scheduler and its optimizer do."""

    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, criterion, train, _ = make_parts(config)
        self.register(
            models=model,
            optimizers=optimizer,
            criterion=criterion,
            schedulers=StepLR(optimizer, 1, gamma=1.0),
        )
        self.register_data(train_loader=train)
        self.steps = []
        self.counted = 0
        optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.counted += 1


def test_equal_to_a_larger_batch_whatever_the_data_leaves_over() -> None:
    options = {"grad_accumulation_steps": 3, "max_grad_norm": 0.5, "scheduler_step_freq": "batch"}
    with cpu_trainer(Scheduled, 2, {"samples": SAMPLES, BATCH_SIZE: 24}, **options) as trainer:
        result = trainer.train()
        assert (result["batch_count"], result["num_samples"]) == (9, SAMPLES)
        expected = plain_weights({"samples": SAMPLES, "batch_size": 72}, 3, max_norm=0.5)
        assert_equal(trainer.get_model(), expected)
        # A scheduler's step is an optimizer's, not a batch's.
        counts = trainer.apply_all_operators(
            lambda op: (op.counted, op.scheduler.last_epoch, op.global_step)  # type: ignore[attr-defined]
        )
        assert counts == [(3, 3, 9)] * 2


def test_num_steps_counts_batches_and_its_last_completes_a_step() -> None:
    """Five batches of 20 make a step of 60 and one of 40: the first 100 samples, of 200."""
    config = {"samples": SAMPLES, BATCH_SIZE: 20, "shuffle": False}
    with cpu_trainer(Digits, 2, config, grad_accumulation_steps=3) as trainer:
        assert trainer.train(num_steps=5)["batch_count"] == 5
        assert_equal(trainer.get_model(), plain_weights(config, 5, every=3))


class Streamed(IterableDataset[Any]):
    """The first samples, of which torch can't know the number."""

    def __init__(self, samples: int) -> None:
        self.data = digits(samples, torch.float64)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


class Streaming(TrainingOperator):
    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, criterion, _, _ = make_parts(config)
        self.register(models=model, optimizers=optimizer, criterion=criterion)
        self.register_data(train_loader=DataLoader(Streamed(100), 20))


def test_a_stream_of_unknown_length_accumulates_too() -> None:
    """Three batches of 20, then the two that are left."""
    operator = alone(Streaming, {}, grad_accumulation_steps=3)
    train_alone(operator)
    plain = {"samples": 100, "batch_size": 20, "shuffle": False}
    assert_equal(operator.model, plain_weights(plain, 5, every=3))


def test_no_gradient_is_left_from_an_epoch_that_failed() -> None:
    class Failing(Digits):
        fails_at = 1

        def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
            if batch_info["batch_idx"] == self.fails_at:
                raise ValueError("a bad batch")
            return super().train_batch(batch, batch_info)

    config = {"samples": SAMPLES, "batch_size": 24, "shuffle": False}
    operator = alone(Failing, config, grad_accumulation_steps=3)
    with pytest.raises(ValueError, match="a bad batch"):
        train_alone(operator)
    assert operator.model[0].weight.grad is not None
    operator.fails_at = -1
    operator.steps.clear()
    train_alone(operator)
    losses = [loss for loss, _ in operator.steps]
    plain = plain_losses({**config, "batch_size": 72}, 1)
    assert sum(losses[:3]) / 3 == pytest.approx(plain[0], abs=1e-9)
    assert_equal(operator.model, plain_weights({**config, "batch_size": 72}, 3))


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        (BatchSizes(100, 10, False), 10),
        (BatchSizes(95, 10, False), 10),
        (BatchSizes(95, 10, False), 23),
        (BatchSizes(95, 10, True), 20),
    ],
    ids=str,
)
@pytest.mark.parametrize("every", [1, 3, 4])
def test_weights_that_are_alike_are_those_computed_one_by_one(
    sizes: BatchSizes, total: int, every: int
) -> None:
    for rank in range(3):
        weights = BatchWeights(sizes, total, every=every, rank=rank, world_size=3)
        for index in range(total):
            expected = batch_weight(index, total, sizes, every=every, rank=rank, world_size=3)
            assert weights(index) == expected, (rank, index)
            # A loop of the user's own may go over the batches again.
            assert weights(total + index) == expected, (rank, index)
