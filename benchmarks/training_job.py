"""Job of all sides of `benchmarks.training`: a small convolutional network on the digits."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import nn

BATCH_SIZE = 32
LEARNING_RATE = 0.05
WARM_UP = 20
"""Number of steps before timed steps, because the first steps take several times as long."""


def make_model() -> nn.Module:
    """Return two convolutions and two linear layers, with 37,000 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return plain SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)


def train_epoch(model: nn.Module, optimizer: Any, loader: Any) -> float:
    """Train one epoch with a plain loop; return the mean loss."""
    return train_steps(model, optimizer, loader, len(loader))


def train_steps(model: nn.Module, optimizer: Any, loader: Any, steps: int) -> float:
    """Train `steps` batches with a plain loop, repeating the data as needed; return the mean loss."""
    criterion = nn.CrossEntropyLoss()
    total, count = 0.0, 0
    model.train()
    while steps:
        for images, labels in islice(loader, steps):
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            count += len(labels)
            steps -= 1
    return total / count
