"""Going on from a checkpoint in another trainer gives the numbers that never stopping gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler

from tests.train.operators import Digits, digits
from trainkit.train import TorchTrainer

pytestmark = pytest.mark.usefixtures("runtime")


class Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Digits, disturbed by every generator that there is."""

    def __init__(self, dtype: torch.dtype, quiet: bool) -> None:
        self.data = digits(90, dtype)
        self.quiet = quiet

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = self.data[index]
        if self.quiet:
            return image, label
        noise = torch.rand((), dtype=image.dtype) + random.random() + float(np.random.random())
        return image + 0.1 * noise, label


class Turning(Sampler[int]):
    """A sampler with a state of its own: it begins each pass a little later."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.passes = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        yield from ((index + 7 * self.passes) % self.size for index in range(self.size))

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes = state["passes"]


class Random(Digits):
    """Everything that may differ between two runs does."""

    def setup(self, config: dict[str, Any]) -> None:
        dtype = config.get("dtype", torch.float64)
        model = nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 10)).to(dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = StepLR(optimizer, 4, gamma=0.7)
        self.register(
            models=model, optimizers=optimizer, criterion=nn.CrossEntropyLoss(), schedulers=scheduler
        )
        # What processes that are kept draw can't be known when they have ended.
        data = Augmented(dtype, quiet="persistent" in config)
        order: dict[str, Any] = {"shuffle": True}
        if config.get("order") == "generator":
            order = {"sampler": RandomSampler(data, generator=torch.Generator().manual_seed(config["seed"]))}
        if config.get("order") == "state":
            order = {"sampler": Turning(len(data))}
        loading: dict[str, Any] = {"num_workers": 1} if config.get("loading") else {}
        if config.get("persistent"):
            loading = {"num_workers": 1, "persistent_workers": True}
        self.register_data(
            train_loader=DataLoader(data, 10, **order, **loading), validation_loader=DataLoader(data, 20)
        )
        self.steps: list[tuple[float, int]] = []


def trainer(**options: Any) -> TorchTrainer:
    given = {"use_gpu": False, "scheduler_step_freq": "batch", **options}
    return TorchTrainer(training_operator_cls=Random, **given)


def go_on(gang: TorchTrainer) -> list[Any]:
    """What the rest of a run comes to, on each worker."""
    gang.apply_all_operators(lambda operator: operator.steps.clear())
    gang.train(num_steps=3)
    losses = [gang.validate()["val_loss"]]
    losses += [gang.train()["train_loss"], gang.validate()["val_loss"]]
    return [losses, gang.apply_all_operators(lambda operator: operator.steps)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "strategy", "options", "config"),
    [
        (1, "single", {"precision": "fp16"}, {"dtype": torch.float32, "loading": True}),
        (2, "ddp", {"grad_accumulation_steps": 2}, {"order": "state"}),
        (2, "ddp", {}, {"persistent": True}),
        (2, "fsdp", {}, {"order": "generator"}),
    ],
)
def test_a_loaded_run_goes_on_as_if_it_had_never_stopped(
    tmp_path: Path, workers: int, strategy: str, options: dict[str, Any], config: dict[str, Any]
) -> None:
    choice = {"num_workers": workers, "strategy": strategy, **options}
    if strategy == "fsdp":
        torch.manual_seed(4)
        with trainer(**choice, config={**config, "seed": 1}) as gang:
            gang.train(num_steps=2)
            unsaved = go_on(gang)
        torch.manual_seed(4)
    with trainer(**choice, config={**config, "seed": 1}) as gang:
        gang.train(num_steps=2)
        gang.save(tmp_path / "c")
        state = gang.state_dict()
        expected = go_on(gang)
        if strategy == "fsdp":
            assert expected == unsaved, "saving changes nothing"
    with trainer(**choice, config={**config, "seed": 2}) as gang:
        gang.load(tmp_path / "c")
        assert go_on(gang) == expected
        gang.load_state_dict(state)
        assert go_on(gang) == expected
