"""Tensors in nested containers, and tensors in pieces over several workers.

    a worker's ──detached──▶ each DTensor a Spread ──joined, over workers──▶ whole ──local_part──▶ a worker's

No collective is needed: the process that has all workers' pieces has the state.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainkit.errors import CheckpointError


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Apply `function` to every tensor in `value`; containers are rebuilt in their own class."""
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
    """Return `batch` on `device`; pinned tensors are copied while the CPU goes on."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def channels_last(batch: Any) -> Any:
    """Return `batch` with its images, (samples, channels, height, width), in torch's channels_last format."""
    return map_tensors(
        lambda tensor: tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor,
        batch,
    )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return all tensors in `value`, in order."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(note, value)
    return found


def device_of(value: Any) -> torch.device | None:
    """Return the device of the first tensor in `value`; None if there is none."""
    return next((tensor.device for tensor in tensors_in(value)), None)


def cpu_copy(state: Any) -> Any:
    """Return an independent copy of `state` on the CPU."""
    return map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), state)


def is_spread(value: Any) -> bool:
    """Return True for a DTensor, which is spread over several workers."""
    # Not by its class: that takes half a second to import, and one worker has no use for it.
    return isinstance(value, torch.Tensor) and hasattr(value, "to_local")


def local(tensor: Any) -> torch.Tensor:
    """Return this worker's part of a tensor or DTensor, sharing its memory."""
    with torch.no_grad():
        held: torch.Tensor = (tensor.to_local() if is_spread(tensor) else tensor).detach()
    return held


@dataclass(frozen=True)
class Box:
    """A part of a tensor.

    Attributes:
        offset: of its first element in the whole, one number a dimension.
        tensor: its values.
    """

    offset: tuple[int, ...]
    tensor: torch.Tensor


@dataclass(frozen=True)
class Spread:
    """A tensor in pieces that don't overlap.

    Attributes:
        shape: of the whole.
        dtype: of its values.
        boxes: the pieces that are known here; all of them, or one worker's.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    boxes: tuple[Box, ...]

    def whole(self) -> torch.Tensor:
        """Return the tensor on the CPU.

        Raises:
            CheckpointError: pieces are missing.
        """
        return self.part((0,) * len(self.shape), self.shape)

    def part(self, offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """Return the part of the tensor that begins at `offset` and has `shape`, on the CPU.

        Raises:
            CheckpointError: pieces of it are missing.
        """
        result = torch.empty(tuple(shape), dtype=self.dtype)
        filled = 0
        for box in self.boxes:
            low = [max(mine, its) for mine, its in zip(offset, box.offset, strict=True)]
            ends = zip(offset, shape, box.offset, box.tensor.shape, strict=True)
            high = [min(mine + length, its + size) for mine, length, its, size in ends]
            if any(end <= start for start, end in zip(low, high, strict=True)):
                continue
            here = _slices(low, high, offset)
            result[here] = box.tensor[_slices(low, high, box.offset)]
            filled += math.prod(end - start for start, end in zip(low, high, strict=True))
        if filled != result.numel():
            raise CheckpointError(
                f"a worker's state is missing: of a tensor of shape {self.shape} only {filled} of "
                f"{result.numel()} values are there"
            )
        return result


def detached(state: Any, *, copy: bool = True) -> Any:
    """Return an independent copy of `state` on the CPU, with DTensors in pieces.

    Args:
        state: nested containers with tensors.
        copy: False for what is sent to another process at once, which copies it: whole tensors that are on
            the CPU already stay as they are.
    """
    return map_tensors(functools.partial(_detached, copy=copy), state)


def joined(states: Sequence[Any]) -> Any:
    """Return the states of all workers as one: mappings are united, pieces put together.

    Args:
        states: nested alike, one a worker, in order of rank; of what is no container and not in pieces, the
            first worker's stands. So does what the others have otherwise: an operator's own state may differ.
    """
    first = states[0]
    if isinstance(first, Spread):
        boxes = {box.offset: box for state in states if isinstance(state, Spread) for box in state.boxes}
        return Spread(first.shape, first.dtype, tuple(boxes.values()))
    if isinstance(first, Mapping):
        alike = [state for state in states if isinstance(state, Mapping)]
        keys = dict.fromkeys(key for state in alike for key in state)
        return like_mapping(first, {key: joined([s[key] for s in alike if key in s]) for key in keys})
    if isinstance(first, list):
        lists = [state for state in states if isinstance(state, list) and len(state) == len(first)]
        return [joined(list(items)) for items in zip(*lists, strict=True)]
    return first


def whole(state: Any) -> Any:
    """Return `state` with each `Spread` as a tensor on the CPU."""
    return map_state(lambda leaf, _: leaf.whole() if isinstance(leaf, Spread) else leaf, state)


Keys = tuple[Any, ...]
"""Keys of mappings and indices of lists that lead to a value in nested containers."""


def map_state(function: Callable[[Any, Keys], Any], state: Any, where: Keys = ()) -> Any:
    """Return `state` with the results of `function(leaf, keys)` in place of all that is no container.

    Args:
        function: called with a leaf, and the keys and indices that lead to it.
        state: nested mappings, lists and tuples.
        where: keys that lead to `state`.
    """
    if isinstance(state, Mapping):
        items = {key: map_state(function, item, (*where, key)) for key, item in state.items()}
        return like_mapping(state, items)
    if type(state) in (list, tuple):
        return type(state)(map_state(function, item, (*where, index)) for index, item in enumerate(state))
    return function(state, where)


def local_part(leaf: torch.Tensor | Spread, like: torch.Tensor) -> torch.Tensor:
    """Return this worker's part of `leaf` in the layout of `like`, a DTensor or a plain tensor.

    Args:
        leaf: whole, or in pieces that are all known.
        like: of the same shape as the whole.

    Returns:
        A new tensor on the device of `like`, with its data type.

    Raises:
        CheckpointError: pieces are missing.
    """
    if not is_spread(like):
        value = leaf.whole() if isinstance(leaf, Spread) else leaf
        return value.detach().to(device=like.device, dtype=like.dtype, copy=True)
    shape, offset = _place_of(like)
    if isinstance(leaf, Spread):
        part = leaf.part(offset, shape)
    else:
        part = leaf.detach()[
            _slices(offset, [o + s for o, s in zip(offset, shape, strict=True)], (0,) * len(shape))
        ]
    # Laid out by what it is to be like: an offloaded tensor's part is on another device than its mesh.
    with torch.no_grad():
        result = torch.empty_like(like)
        local(result).copy_(part)
    return result


def shape_of(leaf: Any) -> tuple[int, ...] | None:
    """Return the shape of the whole tensor; None of other values."""
    return tuple(leaf.shape) if isinstance(leaf, (torch.Tensor, Spread)) else None


def _detached(tensor: torch.Tensor, *, copy: bool) -> Any:
    if not is_spread(tensor):
        return _on_cpu(tensor, copy)
    _, offset = _place_of(tensor)
    held = _on_cpu(local(tensor), copy)
    return Spread(tuple(tensor.shape), tensor.dtype, (Box(tuple(offset), held),) if held.numel() else ())


def _on_cpu(tensor: torch.Tensor, copy: bool) -> torch.Tensor:
    # Sent as it is, a part of a larger tensor would take the whole of it along.
    part = tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.detach().to("cpu", copy=copy or part)


def _place_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the local shape, and its offset in the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)


def _slices(low: Sequence[int], high: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start - o, end - o) for start, end, o in zip(low, high, origin, strict=True))


def like_mapping(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return `items` in the class of `original`, with its attributes, such as a state's `_metadata`."""
    if type(original) is dict:
        return items
    clone: Any = copy.copy(original)
    clone.clear()
    clone.update(items)
    return clone
