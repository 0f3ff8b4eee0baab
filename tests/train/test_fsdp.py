"""Sharded training: it computes what a plain loop computes, and each worker holds its part only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.train.operators import Digits, OwnSeeds, digits, gang_losses
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.strategies.fsdp import FSDP

pytestmark = pytest.mark.usefixtures("runtime")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Tanh())
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(self.inner(x))


class Tower(nn.Module):
    """As transformers are built: something before, a stack of equal blocks, something after."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.last = nn.Linear(width, 10)
        self.last.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def parts(config: dict[str, Any]) -> tuple[nn.Module, Any, DataLoader[Any], DataLoader[Any]]:
    torch.manual_seed(0)
    dtype = config.get("dtype", torch.float64)
    model = Tower().to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    data = digits(config.get("samples", 500), dtype)
    size = config.get(BATCH_SIZE, 48)
    return model, optimizer, DataLoader(data, size, shuffle=True), DataLoader(data, 20)


class Stack(Digits):
    """Digits through a `Tower`."""

    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, train, validation = parts(config)
        self.register(models=model, optimizers=optimizer, criterion=nn.CrossEntropyLoss())
        self.register_data(train_loader=train, validation_loader=validation)
        self.steps: list[tuple[float, int]] = []


def plain(config: dict[str, Any], steps: int, max_norm: float | None = None) -> tuple[list[float], float]:
    """Losses of a plain loop, and the validation loss after it."""
    model, optimizer, loader, validation = parts(config)
    losses: list[float] = []
    while len(losses) < steps:
        for features, target in loader:
            if len(losses) == steps:
                break
            loss = nn.functional.cross_entropy(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        total = sum(float(nn.functional.cross_entropy(model(x), y)) * len(y) for x, y in validation)
    return losses, total / len(validation.dataset)  # type: ignore[arg-type]


def trainer(operator: type[TrainingOperator] = Stack, **options: Any) -> TorchTrainer:
    given = {"num_workers": 2, "strategy": FSDP(), "timeout_s": 60, "use_gpu": False, **options}
    return TorchTrainer(training_operator_cls=operator, **given)


def held_bytes(operator: TrainingOperator) -> int:
    """Of parameters and of the optimizer's state, in this worker."""
    tensors = list(operator.model.parameters())
    for state in operator.optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    locals_ = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum(t.untyped_storage().nbytes() for t in locals_)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_follow_the_plain_loop(workers: int) -> None:
    # 500 is no multiple of 48, nor of 20: training and validation pass uneven last batches, and in validation
    # some workers have none in the last step.
    config = {BATCH_SIZE: 48}
    expected, val_loss = plain(config, 50)
    with trainer(num_workers=workers, config=config) as gang:
        gang.train(num_steps=50)
        assert gang_losses(gang) == pytest.approx(expected, abs=1e-9)
        result = gang.validate()
    assert result["num_samples"] == 500
    assert result["val_loss"] == pytest.approx(val_loss, abs=1e-6)


def test_clipping_and_accumulation_follow_the_plain_loop() -> None:
    config = {BATCH_SIZE: 24, "samples": 480, "dtype": torch.float64}
    expected, val_loss = plain({**config, BATCH_SIZE: 48}, 20, max_norm=0.5)
    with trainer(config=config, grad_accumulation_steps=2, max_grad_norm=0.5) as gang:
        gang.train(num_steps=40)
        losses = gang_losses(gang)
        pairs = [(one + other) / 2 for one, other in zip(losses[::2], losses[1::2], strict=True)]
        assert pairs == pytest.approx(expected, abs=1e-9)
        assert gang.validate()["val_loss"] == pytest.approx(val_loss, abs=1e-6)


def test_each_worker_holds_its_part() -> None:
    held = {}
    for name in ("ddp", "fsdp"):
        with trainer(strategy=name, config={BATCH_SIZE: 48}) as gang:
            gang.train(num_steps=1)
            gang.validate()
            held[name] = gang.apply_all_operators(held_bytes)
            if name == "fsdp":
                model = gang.get_model()
                assert isinstance(model, nn.Module)
                weights = gang.state_dict()["models"][0]
    for rank in range(2):
        assert held["fsdp"][rank] <= 0.6 * held["ddp"][rank]
    assert type(model) is Tower, "the user's own class, not a sharded one"
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_several_models_and_buffers() -> None:
    with trainer(OwnSeeds, strategy="fsdp") as gang:
        for _ in range(2):
            gang.train()
            gang.validate()
        state = gang.state_dict()
    with trainer(OwnSeeds, strategy="ddp") as gang:
        for _ in range(2):
            gang.train()
            gang.validate()
        expected = gang.state_dict()
    for one, other in zip(state["models"], expected["models"], strict=True):
        for name, value in one.items():
            assert torch.allclose(value, other[name], atol=1e-6), name
