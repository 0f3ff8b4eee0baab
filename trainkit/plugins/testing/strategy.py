"""Conformance suite of strategies: results as in a plain loop, complete states, compatible checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator

STEPS = 50
GLOBAL_BATCH = 24
SAMPLES = 200
"""Number of samples.

Number of samples. It is not a multiple of the batch size, so that the last batch has 8 samples. The data
restarts several times.
"""


@dataclass(frozen=True)
class StrategyRow:
    """A strategy to test, with its number of workers.

    Attributes:
        strategy: name of a strategy, or a strategy object.
        workers: number of workers.
        options: further arguments of the trainer.
    """

    strategy: Any
    workers: int
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        name = self.strategy if isinstance(self.strategy, str) else repr(self.strategy)
        return f"{name}-{self.workers}"


def make_model(dtype: torch.dtype) -> nn.Module:
    """Return four linear layers, enough for four stages, or for two pairs of column- and row-wise shards."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((64, 32), (32, 24), (24, 16), (16, 10)):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with both kinds of state: tensors in the parameters' shapes, and step counts."""
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def make_data(dtype: torch.dtype) -> TensorDataset:
    """Return random points with 64 features, each labelled with the nearest of ten class centres."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 64, generator=generator, dtype=torch.float64)
    features = torch.rand(SAMPLES, 64, generator=generator, dtype=torch.float64)
    return TensorDataset(features.to(dtype), torch.cdist(features, centres).argmin(1))


def make_loaders(dtype: torch.dtype, batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return a training loader, which shuffles by torch's global generator, and a validation loader."""
    data = make_data(dtype)
    return DataLoader(data, batch_size, shuffle=True), DataLoader(data, batch_size)


class Promised(TrainingOperator):
    """Operator that records the loss and sample count of each step whose loss this worker knows."""

    def setup(self, config: dict[str, Any]) -> None:
        dtype = config["dtype"]
        model = make_model(dtype)
        self.register(models=model, optimizers=make_optimizer(model), criterion=nn.CrossEntropyLoss())
        train, validation = make_loaders(dtype, config[BATCH_SIZE])
        self.register_data(train_loader=train, validation_loader=validation)
        self.steps: list[tuple[float, int]] = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        metrics = super().train_batch(batch, batch_info)
        if "train_loss" in metrics:
            # A sample that is only copied so that a worker takes part in a step does not count.
            counted = metrics["num_samples"] if self._train_feed.weight else 0  # type: ignore[union-attr]
            self.steps.append((float(metrics["train_loss"]), counted))
        return metrics


@dataclass(frozen=True)
class Plain:
    """Results of training with a plain PyTorch loop."""

    losses: list[float]
    validation: dict[str, float]
    weights: dict[str, torch.Tensor]


def plain_run(dtype: torch.dtype, steps: int = STEPS) -> Plain:
    """Train with a plain loop; the results of every strategy are compared with its results."""
    model = make_model(dtype)
    optimizer, criterion = make_optimizer(model), nn.CrossEntropyLoss()
    train, validation = make_loaders(dtype, GLOBAL_BATCH)
    losses: list[float] = []
    while len(losses) < steps:
        for features, target in train:
            if len(losses) == steps:
                break
            loss = criterion(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        outputs = [(model(features), target) for features, target in validation]
        total = math.fsum(float(criterion(output, target)) * len(target) for output, target in outputs)
        right = sum(int((output.argmax(1) == target).sum()) for output, target in outputs)
    validated = {"val_loss": total / SAMPLES, "val_accuracy": right / SAMPLES, "num_samples": SAMPLES}
    return Plain(losses, validated, model.state_dict())


def make_trainer(row: StrategyRow, dtype: torch.dtype) -> TorchTrainer:
    """Return a trainer with the strategy and the number of workers of `row`."""
    return TorchTrainer(
        training_operator_cls=Promised,
        config={"dtype": dtype, BATCH_SIZE: GLOBAL_BATCH},
        num_workers=row.workers,
        num_cpus_per_worker=0.25,
        strategy=row.strategy,
        use_gpu=False,
        timeout_s=60,
        **row.options,
    )


def losses_of(trainer: TorchTrainer) -> list[float]:
    """Return the mean loss of each step over the workers that know the loss."""
    held = trainer.apply_all_operators(lambda operator: operator.steps)  # type: ignore[attr-defined]
    return [
        math.fsum(loss * count for loss, count in step) / sum(count for _, count in step)
        for step in zip(*(steps for steps in held if steps), strict=True)
    ]


class StrategySuite:
    """Tests that every strategy must pass. A subclass sets `strategy`, and starts a session with four CPUs.

    Attributes:
        strategy: name of the strategy, or a strategy object.
        workers: number of workers to test with.
    """

    strategy: ClassVar[Any] = None
    workers: ClassVar[int] = 2

    @pytest.fixture
    def row(self) -> StrategyRow:
        """Return the strategy to test; override this fixture to test several strategies."""
        return StrategyRow(self.strategy, self.workers)

    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)], ids=str)
    def test_the_numbers_are_those_of_a_plain_loop(
        self, row: StrategyRow, dtype: torch.dtype, tolerance: float, tmp_path: Path
    ) -> None:
        plain = plain_run(dtype)
        with make_trainer(row, dtype) as trainer:
            trained = trainer.train(num_steps=STEPS)
            assert trained["batch_count"] == STEPS
            assert losses_of(trainer) == pytest.approx(plain.losses, abs=tolerance)
            validated = trainer.validate()
            for name, value in plain.validation.items():
                assert validated[name] == pytest.approx(value, abs=max(tolerance, 1e-6)), name

            model = trainer.get_model()
            assert isinstance(model, nn.Sequential)
            assert list(model.state_dict()) == list(plain.weights)
            for name, value in model.state_dict().items():
                assert type(value) is torch.Tensor
                assert value.device.type == "cpu"
                assert torch.allclose(value, plain.weights[name], atol=tolerance, rtol=0), name

            if dtype is torch.float64:
                self.check_that_one_worker_goes_on_with_it(trainer, tmp_path / "checkpoint", tolerance)

    def check_that_one_worker_goes_on_with_it(
        self, trainer: TorchTrainer, folder: Path, tolerance: float
    ) -> None:
        """Check that the strategy and a single worker can load each other's checkpoints."""
        state = trainer.state_dict()
        trainer.save(folder)
        with make_trainer(StrategyRow("single", 1), torch.float64) as alone:
            alone.load(folder)
            loaded = alone.state_dict()
            assert loaded["epoch"] == state["epoch"] == 1
            for name, value in state["models"][0].items():
                assert torch.equal(value, loaded["models"][0][name]), name
            assert sorted(loaded["optimizers"][0]["state"]) == list(range(8))
            ours = alone.train(num_steps=5)["train_loss"]
            assert trainer.train(num_steps=5)["train_loss"] == pytest.approx(ours, abs=tolerance)

            alone.save(folder)
            trainer.load(folder)
            assert trainer.train(num_steps=5)["train_loss"] == pytest.approx(
                alone.train(num_steps=5)["train_loss"], abs=tolerance
            )
