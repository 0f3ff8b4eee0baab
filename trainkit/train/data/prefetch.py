"""Batches made at once, and brought to the device, each while the step before it runs.

    CPU        fetch 1 │ fetch 2 │ launch step 1 │ fetch 3 │ launch step 2
    side            copy 1    copy 2 ─────────┐     copy 3
    computing                     step 1 ─────┴──────▶ step 2

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html (streams; use pinned memory buffers).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from trainkit.errors import ConfigError
from trainkit.train.distributed.tensors import channels_last, map_tensors, to_device

_NO_MORE: Any = object()


def pinned(loader: Any, device: torch.device) -> Any:
    """Return a copy of `loader` whose loading processes pin their batches, if `device` is a GPU.

    A loader without such processes is returned as it is: its batches may be on the GPU already, and those
    that are not are pinned by `DevicePrefetcher.ahead`.
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


def gathering(loader: Any) -> Any:
    """Return a copy of `loader`, for one pass, that takes all rows of a batch out of each tensor together.

    The batches are the same, to the last bit and stride. A loader of anything but a `TensorDataset`, or a
    subset of one, is returned as it is.
    """
    if type(loader) is not DataLoader or loader.num_workers > 0 or loader.batch_sampler is None:
        return loader
    dataset: Any = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    plain = type(dataset) is TensorDataset and all(map(_is_plain, dataset.tensors))
    if not plain or loader.collate_fn is not default_collate:
        return loader
    clone = copy.copy(loader)
    # A DataLoader refuses another data set, since its iterator may exist already; the copy has none.
    object.__setattr__(clone, "dataset", _Gathered(loader.dataset))
    clone.collate_fn = lambda batch: batch
    return clone


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return True if rows of `tensor` are laid out alike, whether they are stacked or indexed together."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.requires_grad
    return plain and tensor.stride() == torch.empty(tensor.shape, device="meta").stride()


class _Gathered:
    """Whole batches of a `TensorDataset`, or of a subset of one."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, rows: list[Any]) -> Any:
        dataset: Any = self._dataset
        while type(dataset) is Subset:
            dataset, rows = dataset.dataset, [dataset.indices[row] for row in rows]
        if set(map(type, rows)) != {int}:  # a sampler may give anything that a tensor can be indexed by
            return default_collate([dataset[row] for row in rows])
        index = torch.tensor(rows)
        return [tensor[index] for tensor in dataset.tensors]


class DevicePrefetcher:
    """Brings batches to the device for the default steps.

    Args:
        device: their destination.
        channels_last: bring images into the channels_last memory format.
    """

    def __init__(self, device: torch.device, *, channels_last: bool) -> None:
        self._device = device
        self._channels_last = channels_last

    def delivered(self, batch: Any) -> Any:
        """Return `batch` on the device, in the memory format that the model wants."""
        if self._device.type != "cpu":
            batch = to_device(batch, self._device)
        return channels_last(batch) if self._channels_last else batch

    def parts(self, batch: Any) -> tuple[Sequence[Any], torch.Tensor]:
        """Return (features, target) of a batch (*features, target), delivered.

        Raises:
            ConfigError: it is something else.
        """
        if not isinstance(batch, (list, tuple)) or len(batch) < 2:
            raise ConfigError(
                f"the default steps take batches (*features, target), but the loader gave a "
                f"{type(batch).__name__}: override train_batch and validate_batch"
            )
        batch = self.delivered(batch)
        return batch[:-1], batch[-1]

    def ahead(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return `batches`; for a GPU each is fetched and delivered before the step ahead of it runs."""
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
