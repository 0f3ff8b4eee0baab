"""Sequences shared by several workers: with the numbers of a plain loop, where torch can do it on CPUs.

The suite of strategies has no sequences, so these are its promises for one that needs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.train.operators import cpu_trainer, gang_losses
from tests.train.strategies.transformers import Block, loss_of
from tests.train.workers.test_recovery import identical
from trainkit.errors import ConfigError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.strategies.context import ContextParallel

pytestmark = pytest.mark.usefixtures("runtime")

SAMPLES = 22
LENGTH = 16


class Tagger(nn.Module):
    """A label for each token, by attention in both directions; positions are a buffer."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.register_buffer("positions", torch.randn(LENGTH, 16))
        self.layers = nn.ModuleList(Block(16, causal=causal) for _ in range(2))
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Tagging(TrainingOperator):
    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = Tagger(causal=config.get("causal", False)).double()
        tokens = torch.randint(0, 11, (SAMPLES, config.get("length", LENGTH)))
        data = TensorDataset(tokens, tokens.roll(3, 1) % 3)
        self.register(
            models=model, optimizers=torch.optim.AdamW(model.parameters(), lr=0.01), criterion=loss_of
        )
        self.register_data(
            train_loader=DataLoader(data, config.get(BATCH_SIZE, 8), shuffle=True),
            validation_loader=DataLoader(data, 4),
        )
        self.steps: list[tuple[float, int]] = []

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        before = [part.clone() for part in batch]
        metrics = super().train_batch(batch, batch_info)
        assert all(map(torch.equal, batch, before)), "what the loader gave is left as it was"
        counted = metrics["num_samples"] if self._train_feed.weight else 0  # type: ignore[union-attr]
        self.steps.append((float(metrics["train_loss"]), counted))
        return metrics

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        output, loss = self.forward([batch[0]], batch[1])  # type: ignore[misc]
        right = (output.argmax(2) == batch[1]).double().mean()
        return {"val_loss": loss, "right": right, "num_samples": len(batch[1])}


def tagging(workers: int, strategy: Any, config: Any = None, **options: Any) -> TorchTrainer:
    config = {BATCH_SIZE: 8, **(config or {})}
    return cpu_trainer(Tagging, workers, config, num_cpus_per_worker=0.25, strategy=strategy, **options)


SPEC = ContextParallel(buffers={"positions": 0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "strategy"),
    [(4, SPEC), (4, ContextParallel(degree=2, buffers={"positions": 0}))],
    ids=["4", "2x2"],
)
def test_the_numbers_are_those_of_one_worker(workers: int, strategy: ContextParallel, tmp_path: Path) -> None:
    options = {"grad_accumulation_steps": 2, "max_grad_norm": 0.5}
    with tagging(1, "single", **options) as alone, tagging(workers, strategy, **options) as gang:
        for _ in range(2):
            expected, found = alone.train(num_steps=5), gang.train(num_steps=5)
            assert found["num_samples"] == expected["num_samples"]
        assert gang_losses(gang) == pytest.approx(gang_losses(alone), abs=1e-9)
        expected, found = alone.validate(), gang.validate()
        for name in ("val_loss", "right", "num_samples"):
            assert found[name] == pytest.approx(expected[name], abs=1e-9)
        model = alone.get_model().state_dict()
        for name, value in gang.get_model().state_dict().items():
            torch.testing.assert_close(value, model[name], rtol=0, atol=1e-9)
        gang.save(tmp_path / "c")
        alone.load(tmp_path / "c")
        for part in ("models", "optimizers"):
            assert identical(alone.state_dict()[part], gang.state_dict()[part])
        assert gang.train()["train_loss"] == pytest.approx(alone.train()["train_loss"], abs=1e-9)
        alone.save(tmp_path / "c")
        gang.load(tmp_path / "c")
        assert gang.train()["train_loss"] == pytest.approx(alone.train()["train_loss"], abs=1e-9)


class Own(Tagging):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        self.backward(self.criterion(self.model(batch[0]), batch[1]))
        return {}


@pytest.mark.parametrize(
    ("operator", "config", "message"),
    [
        (Tagging, {"causal": True}, "CPUs support only attention without a mask"),
        (Tagging, {"length": 10}, r"shapes \[\(8, 10\), \(8, 10\)\]\. .* a multiple of 4: pad the sequences"),
        (Own, {}, r"call self.forward_backward\(features, target\)"),
    ],
    ids=["mask", "length", "own"],
)
def test_what_cannot_be_computed_in_parts(operator: Any, config: dict[str, Any], message: str) -> None:
    with (
        cpu_trainer(operator, 2, config, strategy=SPEC) as gang,
        pytest.raises(ConfigError, match=message),
    ):
        gang.train()


def test_buffers_that_a_model_lacks_are_named() -> None:
    with pytest.raises(ConfigError, match="Tagger has no buffer place; it has positions"):
        tagging(2, ContextParallel(buffers={"place": 0}))
