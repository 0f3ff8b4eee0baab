"""The trainer where RaySGD's scripts look for it: `ray.util.sgd` with another first word.

The homes of all this are `trainkit.train` and its modules.
"""

from __future__ import annotations

from trainkit.train import TorchTrainer
from trainkit.util.sgd import torch

__all__ = ["TorchTrainer", "torch"]
