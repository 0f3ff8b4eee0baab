"""Helpers for tensors in nested containers, and for tensors sharded over several workers.

    worker's state ──detached──▶ its parts ──joined, whole──▶ whole tensors ──local_part──▶ worker's state

No collective is needed: a process that receives all workers' parts can build the whole state.
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
    """Return a copy of `value` with `function` applied to every tensor; containers keep their class."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return like_mapping(value, {key: map_tensors(function, item) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(function, item) for item in value)
    return value


def to_device(batch: Any, device: torch.device) -> Any:
    """Return `batch` on `device`; pinned tensors are copied asynchronously."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def channels_last(batch: Any) -> Any:
    """Return `batch` with its images (samples, channels, height, width) in torch's channels_last format."""
    return map_tensors(
        lambda tensor: tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor,
        batch,
    )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return all tensors in the nested containers `value`, in their order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for item in value for tensor in tensors_in(item)]


def device_of(value: Any) -> torch.device | None:
    """Return the device of the first tensor in `value`; None if `value` has no tensor."""
    return next((tensor.device for tensor in tensors_in(value)), None)


def cpu_copy(state: Any) -> Any:
    """Return an independent copy of `state` on the CPU."""
    return map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), state)


def is_spread(value: Any) -> bool:
    """Return True for a DTensor, which is a tensor spread over several workers."""
    # `isinstance` would need an import of the class, which takes half a second, and which a single worker
    # does not need.
    return isinstance(value, torch.Tensor) and hasattr(value, "to_local")


def local(tensor: Any) -> torch.Tensor:
    """Return this worker's part of a DTensor, or a plain tensor; the result shares the argument's memory."""
    with torch.no_grad():
        held: torch.Tensor = (tensor.to_local() if is_spread(tensor) else tensor).detach()
    return held


@dataclass(frozen=True)
class Box:
    """Part of a tensor: a box of consecutive indices in each dimension.

    Attributes:
        offset: position of the part's first element in the whole tensor, one number for each dimension.
        tensor: values of the part.
    """

    offset: tuple[int, ...]
    tensor: torch.Tensor


@dataclass(frozen=True)
class Spread:
    """Tensor that is stored as parts that don't overlap.

    Attributes:
        shape: shape of the whole tensor.
        dtype: data type of the values.
        boxes: parts of the tensor: all parts, or only the parts of one worker.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    boxes: tuple[Box, ...]

    def whole(self) -> torch.Tensor:
        """Return the whole tensor, on the CPU.

        Raises:
            CheckpointError: parts are missing.
        """
        return self.part((0,) * len(self.shape), self.shape)

    def part(self, offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """Return the box of values that begins at index `offset` and has the shape `shape`, as a tensor on
        the CPU.

        Raises:
            CheckpointError: some of the requested values are not in `boxes`.
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
                f"a worker's state is missing: a tensor {self.shape} has {filled} of {result.numel()} values"
            )
        return result


def detached(state: Any, *, copy: bool = True) -> Any:
    """Return an independent copy of `state` on the CPU; DTensors become `Spread` with this worker's part.

    Args:
        state: nested containers with tensors.
        copy: False if the state is sent to a different process immediately. With False, whole tensors on the
            CPU are not copied, because sending copies them.
    """
    return map_tensors(functools.partial(_detached, copy=copy), state)


def joined(states: Sequence[Any]) -> Any:
    """Merge the states of all workers: mappings are united, and parts of tensors are combined.

    Args:
        states: states of equal structure, by rank. The result has the first worker's value for all values
            except parts of tensors, although an operator's own state may differ between workers.
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
    """Return `state` with each `Spread` replaced by the whole tensor on the CPU."""
    return map_state(lambda leaf, _: leaf.whole() if isinstance(leaf, Spread) else leaf, state)


Keys = tuple[Any, ...]
"""Keys and indices that lead to a value in nested mappings and lists."""


def map_state(function: Callable[[Any, Keys], Any], state: Any, where: Keys = ()) -> Any:
    """Return `state` with each value that is no container replaced by `function(value, keys)`.

    Args:
        function: function of a value, and of the keys and indices that lead to the value in `state`.
        state: nested mappings, lists and tuples.
        where: keys and indices that lead to `state`, if it is part of a larger state.
    """
    if isinstance(state, Mapping):
        items = {key: map_state(function, item, (*where, key)) for key, item in state.items()}
        return like_mapping(state, items)
    if type(state) in (list, tuple):
        return type(state)(map_state(function, item, (*where, index)) for index, item in enumerate(state))
    return function(state, where)


def local_part(leaf: torch.Tensor | Spread, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is laid out like `like`, a DTensor or plain tensor, with the values of `leaf`.

    Args:
        leaf: a whole tensor, or a `Spread` with all parts.
        like: a DTensor or plain tensor with the shape of `leaf`.

    Returns:
        A new tensor with the device and data type of `like`; for a DTensor, the new tensor has only this
        worker's part.

    Raises:
        CheckpointError: parts are missing.
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
    # The memory is allocated by `empty_like`, because the part of an offloaded tensor is on a different
    # device than the tensor's mesh.
    with torch.no_grad():
        result = torch.empty_like(like)
        local(result).copy_(part)
    return result


def shape_of(leaf: Any) -> tuple[int, ...] | None:
    """Return the shape of `leaf` as a whole tensor; None if `leaf` is not a tensor."""
    return tuple(leaf.shape) if isinstance(leaf, (torch.Tensor, Spread)) else None


def _detached(tensor: torch.Tensor, *, copy: bool) -> Any:
    if not is_spread(tensor):
        return _on_cpu(tensor, copy)
    _, offset = _place_of(tensor)
    held = _on_cpu(local(tensor), copy)
    return Spread(tuple(tensor.shape), tensor.dtype, (Box(tuple(offset), held),) if held.numel() else ())


def _on_cpu(tensor: torch.Tensor, copy: bool) -> torch.Tensor:
    # A view of a larger tensor is always copied, because sending it would send the memory of the larger
    # tensor.
    part = tensor.untyped_storage().nbytes() != tensor.nbytes
    return tensor.detach().to("cpu", copy=copy or part)


def _place_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of this worker's part, and the part's offset in the whole tensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)


def _slices(low: Sequence[int], high: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start - o, end - o) for start, end, o in zip(low, high, origin, strict=True))


def like_mapping(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return `items` in a mapping of the same class as `original`; the items replace all entries of
    `original`.

    The mapping is a copy of `original`, to keep attributes such as a defaultdict's factory or a state's
    `_metadata`. Entries are removed and set one by one, because some classes refuse `clear` and `update`.
    """
    if type(original) is dict:
        return items
    if not isinstance(original, MutableMapping):
        return type(original)(items)  # type: ignore[call-arg]
    clone = copy.copy(original)
    for key, item in items.items():
        clone[key] = item
    return clone
