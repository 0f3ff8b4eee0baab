"""What models hold beside their weights, and how it is brought together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.train.operators import OwnSeeds
from trainkit.train import TorchTrainer

pytestmark = pytest.mark.usefixtures("runtime")


class GradientsInValidation(OwnSeeds):
    """Such as for saliency, or for an attack on the model."""

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        with torch.enable_grad():
            metrics = super().validate_batch(batch, batch_info)
            torch.autograd.grad(metrics["val_loss"], list(self.models[0].parameters()))
        return metrics

    def register_data(self, *, train_loader: Any = None, validation_loader: Any = None) -> None:
        data = TensorDataset(*train_loader.dataset[:9])
        super().register_data(train_loader=train_loader, validation_loader=DataLoader(data, 4))


def test_all_workers_hold_worker_0s_weights_and_buffers_and_wait_for_nobody_in_validation() -> None:
    # Of 9 samples in batches of 4 the first worker has two batches, the second one.
    with TorchTrainer(training_operator_cls=GradientsInValidation, num_workers=2, use_gpu=False) as gang:
        for epoch in range(1, 3):
            assert gang.train()["epoch"] == epoch
            assert gang.validate()["num_samples"] == 9
        states = gang.apply_all_operators(
            lambda operator: [
                torch.cat([t.flatten() for t in m.state_dict().values()]) for m in operator.models
            ]
        )
    for one, other in zip(*states, strict=True):
        assert torch.equal(one, other)
