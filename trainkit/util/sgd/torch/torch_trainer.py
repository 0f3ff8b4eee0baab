"""The trainer and its trials by the name of `ray.util.sgd.torch.torch_trainer`."""

from __future__ import annotations

from trainkit.train import TorchTrainer
from trainkit.train.trainable import TrainerTrainable as BaseTorchTrainable

__all__ = ["BaseTorchTrainable", "TorchTrainer"]
