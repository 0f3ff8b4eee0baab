"""The data of `benchmarks.training`, apart from the job: only who reads it imports scikit-learn."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset


def make_data() -> TensorDataset:
    """1,797 handwritten digits of 8 x 8 pixels."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(
        torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    )
