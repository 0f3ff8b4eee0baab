"""Batches on their way to a GPU: from pinned memory, each copied while the step before it runs.

    CPU        fetch 1 │ fetch 2 │ launch step 1 │ fetch 3 │ launch step 2
    side            copy 1    copy 2 ─────────┐     copy 3
    computing                     step 1 ─────┴──────▶ step 2

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html (streams; use pinned memory buffers).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from trainkit.train.tensors import map_tensors

_END: Any = object()


def pinned(loader: Any, device: torch.device) -> Any:
    """`loader`, or a copy of it whose loading processes' batches come in pinned memory, if `device` is a GPU.

    A loader without such processes is left as it is: its batches may be on the GPU already, and those that
    are not are pinned by `brought_ahead`.
    """
    if device.type != "cuda" or not isinstance(loader, DataLoader):
        return loader
    if loader.pin_memory or loader.num_workers == 0:
        return loader
    clone = copy.copy(loader)
    clone.pin_memory = True
    # The user's own may be in use; the copy starts processes of its own.
    clone._iterator = None
    return clone


def brought_ahead(batches: Iterable[Any], device: torch.device, move: Callable[[Any], Any]) -> Iterable[Any]:
    """`batches` on `device`; on a GPU, each is fetched and copied before the step ahead of it runs.

    Args:
        batches: as a loader gives them.
        device: where they go; `batches` itself is returned for the CPU.
        move: a batch to the batch on the device; called on a stream beside the computing one.
    """
    return _on_side_stream(batches, device, move) if device.type == "cuda" else batches


def _on_side_stream(
    batches: Iterable[Any], device: torch.device, move: Callable[[Any], Any]
) -> Iterator[Any]:
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    iterator = iter(batches)

    def fetched() -> Any:
        batch = next(iterator, _END)
        if batch is _END:
            return _END
        with torch.cuda.stream(side):
            return move(map_tensors(_pin, batch))

    following = fetched()
    while following is not _END:
        computing = torch.cuda.current_stream(device)
        # What the step reads has been copied; only the computing stream waits, the CPU does not.
        computing.wait_stream(side)
        # The memory was allocated on the side stream, which may reuse it once the computing one is done.
        current = map_tensors(partial(_used_on, computing), following)
        following = fetched()
        yield current


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return tensor.pin_memory() if plain and not tensor.is_pinned() else tensor


def _used_on(stream: torch.cuda.Stream, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_cuda:
        tensor.record_stream(stream)
    return tensor
