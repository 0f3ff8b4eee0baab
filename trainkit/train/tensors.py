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


def device_of(value: Any) -> torch.device | None:
    """The device of the first tensor in `value`; None if there is none."""
    if isinstance(value, torch.Tensor):
        return value.device
    found: list[torch.device] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor.device)
        return tensor

    map_tensors(note, value)
    return found[0] if found else None


def cpu_copy(state: Any) -> Any:
    """A copy of `state` on the CPU, which what becomes of the original does not change."""
    return map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), state)


def is_spread(value: Any) -> bool:
    """Whether it is a DTensor, which is spread over several workers."""
    # Not by its class: that takes half a second to import, and one worker has no use for it.
    return isinstance(value, torch.Tensor) and hasattr(value, "to_local")


def local(tensor: Any) -> torch.Tensor:
    """What this worker holds of a tensor that may be spread over several (a DTensor), sharing its memory."""
    with torch.no_grad():
        held: torch.Tensor = (tensor.to_local() if is_spread(tensor) else tensor).detach()
    return held
