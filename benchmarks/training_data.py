"""Data of `benchmarks.training`, in a separate file, so that only its readers import scikit-learn."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import TensorDataset


def make_data() -> TensorDataset:
    """Return 1,797 handwritten digits of 8 x 8 pixels; with `--small`, 64 random pictures."""
    if "--small" in sys.argv:
        return TensorDataset(torch.rand(64, 1, 8, 8), torch.arange(64) % 10)
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return TensorDataset(
        torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    )
