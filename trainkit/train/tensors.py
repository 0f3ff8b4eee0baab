"""Tensors wherever they are in nested lists, tuples and dictionaries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """`value` with `function` applied to every tensor in it; containers are rebuilt in their own class."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        items = {key: map_tensors(function, item) for key, item in value.items()}
        if type(value) is dict:
            return items
        if not isinstance(value, MutableMapping):
            return type(value)(items)  # type: ignore[call-arg]
        # Copied, not made anew: a defaultdict's factory, or a state's `_metadata`, is part of what it is.
        clone = copy.copy(value)
        for key, item in items.items():
            clone[key] = item
        return clone
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(function, item) for item in value)
    return value


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` on `device`; pinned tensors are copied while the CPU goes on."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def channels_last(batch: Any) -> Any:
    """`batch` with its images, (samples, channels, height, width), in torch's channels_last format."""
    return map_tensors(
        lambda tensor: tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor,
        batch,
    )


def cpu_copy(state: Any) -> Any:
    """A copy of `state` on the CPU, which what becomes of the original does not change."""
    return map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), state)
