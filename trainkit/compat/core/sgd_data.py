"""Data sets that are loaded outside the trainer's workers, by the name of `ray.util.sgd.data`."""

from __future__ import annotations

import atexit
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trainkit.compat.core.iterators import ParallelIterator, from_iterators
from trainkit.train.data.sharding import OwnShare

_OPEN: dict[tuple[str, int], Iterator[Any]] = {}
"""By pass and part: what this process has not taken yet. It holds items that were made ahead."""


class Dataset:
    """Data for `trainer.train(dataset=..., num_steps=...)`: batches are made in a process of their own.

    Each worker takes every so-many-th batch, and a call goes on where the last one was.

    Args:
        data: an iterable, repeated without end, or a `ParallelIterator`.
        batch_size: samples of one worker's batch.
        download_func: makes the input and the label of an item; default, the item is both.
        max_concurrency: more than 1: its calls are tasks, so many at a time.
        transform: applied to the inputs of a batch's samples, in the trainer's worker.
    """

    def __init__(
        self,
        data: Iterable[Any] | ParallelIterator,
        batch_size: int = 32,
        download_func: Callable[[Any], Any] | None = None,
        max_concurrency: int = 0,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        items = data if isinstance(data, ParallelIterator) else from_iterators([data], repeat=True)
        if download_func is not None:
            items = items.for_each(download_func, max_concurrency=max(1, max_concurrency))
        self.iter: ParallelIterator = items.batch(batch_size)
        self.batch_size = batch_size
        self.max_concurrency = max_concurrency
        self.transform = transform
        self._id = uuid.uuid4().hex
        self._shards = 1

    def set_num_shards(self, num_shards: int) -> None:
        """Say into how many parts `get_shard` splits the batches."""
        self._shards = num_shards

    def get_shard(self, i: int) -> DatasetShard:
        """Return one part of the batches."""
        return DatasetShard(self, i, self._shards)

    def __call__(self, config: Any) -> DatasetShard:
        """Return the loader of a trainer's worker, which calls this."""
        from torch import distributed as dist

        several = dist.is_available() and dist.is_initialized()
        return DatasetShard(self, dist.get_rank() if several else 0, dist.get_world_size() if several else 1)

    def part(self, number: int, parts: int) -> Iterator[Any]:
        """Iterate over lists of samples, every so-many-th of all, from where this process was."""
        place = f"{self._id}-{parts}", number
        if place not in _OPEN:
            atexit.register(_OPEN.clear)  # before the session ends, which it needs to be let go
            _OPEN[place] = self.iter.part(place[0], number, parts)
        # `yield from` would close the pass where the loop over this one is left.
        try:
            for samples in _OPEN[place]:  # noqa: UP028
                yield samples
        except Exception:  # it has ended by that, and the next loop begins anew
            _OPEN.pop(place, None)
            raise
        del _OPEN[place]


class DatasetShard(OwnShare):
    """Loader over a part of a data set's batches.

    Args:
        dataset: the whole.
        number: of this part.
        parts: how many there are.
    """

    def __init__(self, dataset: Dataset, number: int, parts: int) -> None:
        self._dataset = dataset
        self._number = number
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        from torch.utils.data import default_collate

        transform = self._dataset.transform
        for samples in self._dataset.part(self._number, self._parts):
            if transform is not None:
                samples = [(transform(inputs), *rest) for inputs, *rest in samples]
            yield default_collate(samples)
