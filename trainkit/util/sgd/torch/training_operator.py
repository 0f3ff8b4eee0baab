"""The operator by the name of `ray.util.sgd.torch.training_operator`."""

from __future__ import annotations

from trainkit.train import TrainingOperator
from trainkit.train.creators import CreatorOperator

__all__ = ["CreatorOperator", "TrainingOperator"]
