"""The trainer, its trials and the operator, by RaySGD's names."""

from __future__ import annotations

from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.train.creators import CreatorOperator
from trainkit.train.trainable import TrainerTrainable as BaseTorchTrainable

__all__ = ["BaseTorchTrainable", "CreatorOperator", "TorchTrainer", "TrainingOperator"]
