"""Prefetching of batches: each batch moves to the device while the previous step runs.

    CPU        fetch 1 │ fetch 2 │ launch step 1 │ fetch 3 │ launch step 2
    side            copy 1    copy 2 ─────────┐     copy 3
    computing                     step 1 ─────┴──────▶ step 2

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA streams" and "Use pinned memory buffers".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from trainkit.errors import ConfigError
from trainkit.train.data.sharding import with_attributes
from trainkit.train.distributed.tensors import channels_last, map_tensors, to_device

_NO_MORE: Any = object()


def pinned(loader: Any, device: torch.device) -> Any:
    """Return a copy of `loader` whose worker processes pin their batches, if `device` is a GPU.

    A loader without worker processes is returned unchanged. Without worker processes, batches may already be
    on the GPU. `DevicePrefetcher.ahead` pins batches on the CPU.
    """
    if device.type != "cuda" or not isinstance(loader, DataLoader):
        return loader
    if loader.pin_memory or loader.num_workers == 0:
        return loader
    # The user may still need the worker processes of `loader`, so the copy starts its own processes.
    return with_attributes(loader, pin_memory=True)


class DevicePrefetcher:
    """Mover of batches to the device, for the default `train_batch` and `validate_batch`.

    Args:
        device: device to move batches to.
        channels_last: True converts images to the channels_last memory format.
    """

    def __init__(self, device: torch.device, *, channels_last: bool) -> None:
        self._device = device
        self._channels_last = channels_last

    def delivered(self, batch: Any) -> Any:
        """Return `batch` on the device, in the memory format of the model."""
        if self._device.type != "cpu":
            batch = to_device(batch, self._device)
        return channels_last(batch) if self._channels_last else batch

    def parts(self, batch: Any) -> tuple[Sequence[Any], torch.Tensor]:
        """Return (features, target) on the device, for a batch (*features, target).

        Raises:
            ConfigError: the batch has a different form.
        """
        if not isinstance(batch, (list, tuple)) or len(batch) < 2:
            raise ConfigError(
                "the default steps need batches of the form (*features, target), but the loader returned a "
                f"{type(batch).__name__}: override train_batch and validate_batch"
            )
        batch = self.delivered(batch)
        return batch[:-1], batch[-1]

    def ahead(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return `batches`; on a GPU each batch is fetched and moved before the previous step runs."""
        if self._device.type != "cuda":
            return batches
        return _on_side_stream(batches, self._device, self.delivered)


def _on_side_stream(
    batches: Iterable[Any], device: torch.device, move: Callable[[Any], Any]
) -> Iterator[Any]:
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    iterator = iter(batches)

    def fetched() -> Any:
        batch = next(iterator, _NO_MORE)
        if batch is _NO_MORE:
            return _NO_MORE
        with torch.cuda.stream(side):
            return move(map_tensors(_pin, batch))

    following = fetched()
    while following is not _NO_MORE:
        computing = torch.cuda.current_stream(device)
        # The copy must be complete before the step reads it. Only the computing stream waits, not the CPU.
        computing.wait_stream(side)
        # The batch's memory is marked as used by the computing stream, so that it is not reused before this
        # stream is done.
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
