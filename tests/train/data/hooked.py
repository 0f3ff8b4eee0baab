"""Loaders with hooks of the user's own, and the samples that a plain loop takes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

SAMPLES = 16


class Epoch:
    """Base class of what is told the epoch."""

    epoch = 100

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Order(Epoch, Sampler[int]):
    """Sampler that begins at another sample each epoch; it counts its passes, as a state of its own."""

    passes = 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter((index + self.epoch) % SAMPLES for index in range(SAMPLES))


class Counted(Order):
    """The same by the passes that it keeps in its state."""

    def __iter__(self) -> Iterator[int]:
        self.epoch = 2 * self.passes
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        del epoch

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.passes = state_dict["passes"]


class Batches(Epoch, Sampler[list[int]]):
    """Batch sampler whose length nobody knows."""

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, SAMPLES, 4):
            yield [(first + index + self.epoch) % SAMPLES for index in range(4)]


class Samples(Epoch, Dataset[int]):
    """Data that changes with the epoch."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index + 1000 * self.epoch + MARK


class Stream(Epoch, IterableDataset[int]):
    """The same as a stream."""

    def __iter__(self) -> Iterator[int]:
        return iter(index + 1000 * self.epoch for index in range(SAMPLES))


MARK = 0


def mark(_: int) -> None:
    """Mark this loading process."""
    global MARK
    MARK = 500_000


class OwnBatchSampler(BatchSampler):
    """Batch sampler of a class of loaders."""


class OwnLoader(DataLoader[Any]):
    """Loader that makes its batch sampler by itself, as torchdata's `StatefulDataLoader` does."""

    def __init__(self, data: Any, size: int, **options: Any) -> None:
        super().__init__(data, size, **options)
        own = OwnBatchSampler(self.sampler, size, drop_last=False)
        object.__setattr__(self, "batch_sampler", own)


class Told(Epoch, DataLoader[Any]):
    """Loader that is told of the epoch itself."""

    def __iter__(self) -> Any:
        return (batch + 1000 * self.epoch for batch in super().__iter__())


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


DEALT = {
    "sampler": lambda size: DataLoader(range(SAMPLES), size, sampler=Order()),
    "sampler's state": lambda size: DataLoader(range(SAMPLES), size, sampler=Counted()),
    "data set": lambda size: DataLoader(Samples(), size),
    "data set in processes": lambda size: DataLoader(Samples(), size, num_workers=1),
    "stream": lambda size: DataLoader(Stream(), size),
    "worker_init_fn": lambda size: DataLoader(Samples(), size, num_workers=1, worker_init_fn=mark),
    "generator": lambda size: DataLoader(range(SAMPLES), size, shuffle=True, generator=seeded()),
    "a loader's own batch sampler": lambda size: OwnLoader(range(SAMPLES), size, sampler=Order()),
}
"""Loaders that are dealt out to the workers, by their hook; each of a batch size."""

WHOLE = {
    "batch sampler without __len__": lambda size: DataLoader(range(SAMPLES), batch_sampler=Batches()),
    "loader": lambda size: Told(range(SAMPLES), size),
    "DistributedSampler": lambda size: DataLoader(
        range(SAMPLES), size, sampler=DistributedSampler(range(SAMPLES), 1, 0)
    ),
}
"""Loaders that every worker has for itself."""


def tell(loader: Any, epoch: int) -> None:
    """Tell all that wants to know it the epoch, as a plain loop does."""
    for owner in (loader, loader.batch_sampler, loader.sampler, loader.dataset):
        if hasattr(owner, "set_epoch"):
            owner.set_epoch(epoch)


def taken(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def plain(make: Any, size: int, *epochs: int) -> list[list[list[int]]]:
    """The samples that a plain loop takes, by epoch and batch."""
    loader, found = make(size), []
    for epoch in epochs:
        tell(loader, epoch)
        found.append(taken(loader))
    return found
