"""Two workers with `TorchTrainer`, for `benchmarks.training`: `python -m benchmarks.training_trainer`."""

from __future__ import annotations

import trainkit

# This comes first, so that workers import their modules while this script imports the same modules.
trainkit.init(num_cpus=2, num_gpus=0, preload=["torch"])

import time  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from benchmarks.training_data import make_data  # noqa: E402
from benchmarks.training_job import BATCH_SIZE, make_model, make_optimizer  # noqa: E402
from trainkit.train import TorchTrainer, TrainingOperator  # noqa: E402


class Digits(TrainingOperator):
    """The job as a training operator."""

    def setup(self, config: dict[str, Any]) -> None:
        """Register the same objects as in the plain script."""
        torch.manual_seed(0)
        model = make_model()
        self.register(models=model, optimizers=make_optimizer(model), criterion=nn.CrossEntropyLoss())
        self.register_data(train_loader=DataLoader(config["data"], BATCH_SIZE, shuffle=True))


def main() -> None:
    """Train an epoch in each of two trainers; print the seconds from its creation to the epoch's end."""
    config = {"data": make_data()}  # read once, here, and sent to the workers
    for done in ("first epoch done", "second trainer took"):
        start = time.perf_counter()
        with TorchTrainer(
            training_operator_cls=Digits, config=config, num_workers=2, use_gpu=False
        ) as trainer:
            loss = trainer.train()["train_loss"]
            print(f"{done} {time.perf_counter() - start}: loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
