"""Pipelines whose targets are images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainkit.train import TorchTrainer, TrainingOperator

pytestmark = pytest.mark.usefixtures("runtime")


class Denoiser(TrainingOperator):
    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 3, padding=1)]
        model = nn.Sequential(*layers).double()
        clean = torch.randn(16, 3, 5, 5).double()
        noisy = clean + torch.randn_like(clean)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss())
        self.register_data(train_loader=DataLoader(TensorDataset(noisy, clean), 4))


def losses(**options: Any) -> list[float]:
    with TorchTrainer(
        training_operator_cls=Denoiser, use_gpu=False, num_cpus_per_worker=0.25, **options
    ) as trainer:
        return [trainer.train()["train_loss"] for _ in range(2)]


@pytest.mark.slow
def test_channels_last_targets_arrive_as_they_were_sent() -> None:
    """They are in another order in memory where they are received than the sender sends them in."""
    piped = losses(num_workers=2, strategy="pipeline", channels_last=True)
    assert piped == pytest.approx(losses(), abs=1e-9)
