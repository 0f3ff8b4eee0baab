"""Residual networks for images of 32 pixels, by the names of `ray.util.sgd.torch.resnet`, from torchvision.

The first convolution is one of 3 pixels without stride, and nothing is max-pooled. A configuration, which
RaySGD's operators give these functions, is taken in place of the number of classes, and means 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.errors import MissingDependencyError

__all__ = ["ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152"]


def _small(name: str, num_classes: int | Mapping[str, Any]) -> Any:
    try:
        from torchvision import models
    except ImportError as error:
        raise MissingDependencyError.of("these networks need torchvision", "train", error) from error
    from torch import nn

    count = num_classes if isinstance(num_classes, int) else 10
    network = getattr(models, name)(num_classes=count)
    network.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


def ResNet18(num_classes: int | Mapping[str, Any] = 10) -> Any:
    """Return a network of 18 layers."""
    return _small("resnet18", num_classes)


def ResNet34(num_classes: int | Mapping[str, Any] = 10) -> Any:
    """Return a network of 34 layers."""
    return _small("resnet34", num_classes)


def ResNet50(num_classes: int | Mapping[str, Any] = 10) -> Any:
    """Return a network of 50 layers."""
    return _small("resnet50", num_classes)


def ResNet101(num_classes: int | Mapping[str, Any] = 10) -> Any:
    """Return a network of 101 layers."""
    return _small("resnet101", num_classes)


def ResNet152(num_classes: int | Mapping[str, Any] = 10) -> Any:
    """Return a network of 152 layers."""
    return _small("resnet152", num_classes)
