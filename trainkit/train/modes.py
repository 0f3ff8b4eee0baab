"""Training and evaluation mode of the models of an operator; frozen ones are the user's to switch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


def enter_training(models: Sequence[nn.Module]) -> None:
    """Put `models` into training mode, but leave frozen ones, such as a teacher, as they are."""
    for model in models:
        if not _is_frozen(model):
            model.train()


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Put `models` into evaluation mode; frozen ones are left as they were found."""
    frozen = [module for model in models if _is_frozen(model) for module in model.modules()]
    before = [(module, module.training) for module in frozen]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _is_frozen(model: nn.Module) -> bool:
    parameters = list(model.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
