"""Sharing of samples among workers: each worker's samples of every batch, and their weight.

    order, drawn once, by rank 0   7 2 9 4 │ 1 8 0 5 │ 3 6 2
    two workers, batch_size=2      step 0    step 1    step 2
    rank 0                         7   9     1   0     3   2
    rank 1                           2   4     8   5     6

Over all workers, a step uses the same samples as a loop on one process with the global batch size. Nothing is
padded, and validation counts each sample once. If the last batch is uneven, or too small for all workers,
`BatchWeight` corrects the averaged gradient to the gradient of the whole batch. So the gradient of a step is
the mean over all its samples, for any sharing among workers and any number of accumulated batches.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from trainkit.errors import ConfigError
from trainkit.train.distributed.process_group import ProcessGroup

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchWeight:
    """Weight of one batch in an optimizer's step.

    Attributes:
        averaged: factor for this worker's mean loss if gradients are averaged over workers. The factor is 0
            if the batch only repeats samples so that this worker takes part in the step.
        own: factor for this worker's mean loss if gradients are not averaged over workers.
        closes_step: True for the last batch of the optimizer's step.
        correction: factor for the gradients at the end of the step, if weights were assigned before the sizes
            of all its batches were known.
        own_correction: correction of the gradients at the end of the step, if gradients are not averaged over
            workers.
    """

    averaged: float = 1.0
    own: float = 1.0
    closes_step: bool = True
    correction: float = 1.0
    own_correction: float = 1.0


FULL_WEIGHT = BatchWeight()
"""Weight of a batch that forms an optimizer step alone."""


@dataclass(frozen=True)
class BatchSizes:
    """Sizes of the global batches of one pass over the data.

    Attributes:
        samples: number of samples in the pass.
        batch_size: size of a full batch.
        drop_last: True if an incomplete last batch is left out.
    """

    samples: int
    batch_size: int
    drop_last: bool

    @property
    def steps(self) -> int:
        """Number of batches in the pass."""
        full, rest = divmod(self.samples, self.batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def size(self, index: int) -> int:
        """Return the size of batch `index`, where `index` counts the batches of all passes."""
        first = index % self.steps * self.batch_size
        return min(self.batch_size, self.samples - first)


class BatchWeights:
    """Weights of all batches of one call of `train`, if the batch sizes are known in advance.

    Args:
        sizes: sizes of the batches of a pass.
        total: number of batches in the call.
        every: number of batches in an optimizer step.
        rank: rank of this worker.
        world_size: number of workers that share the samples.
    """

    def __init__(self, sizes: BatchSizes, total: int, *, every: int, rank: int, world_size: int) -> None:
        self._sizes = sizes
        self._total = total
        self._every = every
        self._steps = sizes.steps
        self._place = {"every": every, "rank": rank, "world_size": world_size}
        full = BatchSizes(every * sizes.batch_size, sizes.batch_size, drop_last=False)
        self._of_full = [batch_weight(index, every, full, **self._place) for index in range(every)]

    def __call__(self, index: int) -> BatchWeight:
        """Return the weight of batch `index`, counted from 0 at the start of the call."""
        # A user's loop may run over more batches than planned. The weights of the additional batches start
        # again, as in a new call.
        index %= self._total
        position = index % self._every
        start = index - position
        # A step that contains neither the last batch of a pass, which may be small, nor the end of the call,
        # has only full batches. The weights of full batches are computed only once.
        if start % self._steps + self._every < self._steps and start + self._every <= self._total:
            return self._of_full[position]
        return batch_weight(index, self._total, self._sizes, **self._place)


def batch_weight(
    index: int, total: int, sizes: BatchSizes, *, every: int, rank: int, world_size: int
) -> BatchWeight:
    """Return the weight of batch `index` of `total`, if the sizes of all batches are known in advance.

    Args:
        index: index of the batch, from 0 at the start of the call.
        total: number of batches in the call.
        sizes: sizes of the batches.
        every: number of batches in an optimizer step.
        rank: rank of this worker.
        world_size: number of workers that share the samples.
    """
    start = index - index % every
    step = range(start, min(start + every, total))
    held = [samples_of_rank(sizes.size(each), rank, world_size) for each in step]
    own = held[index - start]
    return BatchWeight(
        averaged=own * world_size / sum(map(sizes.size, step)),
        own=own / sum(held) if own else 0.0,
        closes_step=index == step[-1] or (index + 1) % every == 0,
    )


def provisional_weight(
    sizes: Sequence[int], full: int, *, every: int, last: bool, rank: int = 0, world_size: int = 1
) -> BatchWeight:
    """Return the weight of a batch, if the sizes of the batches after it are unknown.

    Args:
        sizes: sizes of the global batches of the optimizer step, up to this batch.
        full: size of a full batch.
        every: number of batches in an optimizer step.
        last: True if this is the last batch of the call.
        rank: rank of this worker.
        world_size: number of workers that share the samples.
    """
    held = [samples_of_rank(size, rank, world_size) for size in sizes]
    own, own_full = held[-1], full / world_size
    if every == 1:
        return BatchWeight(averaged=own * world_size / sizes[-1], own=1.0 if own else 0.0)
    closes = last or len(sizes) == every
    return BatchWeight(
        averaged=own / own_full / every,
        own=own / own_full / every,
        closes_step=closes,
        correction=every * full / sum(sizes) if closes else 1.0,
        own_correction=every * own_full / max(sum(held), 1) if closes else 1.0,
    )


def global_batch_size(batch_size: int, world_size: int, total: int | None = None) -> int:
    """Return the number of samples in a batch over all workers.

    Args:
        batch_size: batch size of a worker's loader.
        world_size: number of workers.
        total: requested batch size over all workers, of which `batch_size` may be the largest share. None: no
            request.
    """
    is_share = total is not None and batch_size == -(-total // world_size)
    return total if total is not None and is_share else batch_size * world_size


def samples_of_rank(samples: int, rank: int, world_size: int) -> int:
    """Return the number of samples that worker `rank` gets from a global batch of `samples`."""
    return max(0, -(-(samples - rank) // world_size))


def shard(batch: Sequence[int], rank: int, world_size: int) -> list[int]:
    """Return the share of worker `rank` in a global batch: every `world_size`-th sample."""
    return list(batch[rank::world_size])


class ShardedBatchSampler(Sampler[list[int]]):
    """Batch sampler that gives a worker its share of each global batch, in the order of the user's sampler.

    Args:
        sampler: the user's sampler.
        batch_size: number of samples for each worker in a step.
        drop_last: True leaves out an incomplete last global batch.
        group: the workers.
        in_step: True if every worker takes part in every step, because a worker that skips a step would block
            the others. A worker without a sample then gets a copy of a different worker's sample.
        total: see `global_batch_size`.
    """

    def __init__(
        self,
        sampler: Sampler[int] | Iterable[int],
        batch_size: int,
        *,
        drop_last: bool,
        group: ProcessGroup,
        in_step: bool,
        total: int | None = None,
    ) -> None:
        self.sampler = sampler
        self.global_batch_size = global_batch_size(batch_size, group.world_size, total)
        self.drop_last = drop_last
        self._group = group
        self._in_step = in_step
        self._state: dict[str, Any] = {"taken": 0, "generator": None}
        self._resumed: dict[str, Any] | None = None
        self._start = 0

    def __iter__(self) -> Iterator[list[int]]:
        resumed, self._resumed = self._resumed, None
        return self._batches(resumed or {"taken": 0, "generator": None})

    def state_dict(self) -> dict[str, Any]:
        """Return the position in a pass, for torchdata's `StatefulDataLoader`."""
        return dict(self._state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next pass continue at the position that `state_dict` describes."""
        self._resumed = state_dict

    def start_at(self, samples: int) -> None:
        """Make the next pass start after `samples` samples of all workers."""
        self._start = samples

    def _batches(self, place: Mapping[str, Any]) -> Iterator[list[int]]:
        first, self._start = self._start or place["taken"] * self.global_batch_size, 0
        rank, world_size, size = self._group.rank, self._group.world_size, self.global_batch_size
        if isinstance(generator := getattr(self.sampler, "generator", None), torch.Generator):
            if place["generator"] is not None:
                generator.set_state(place["generator"])
            place = {**place, "generator": generator.get_state()}
        order, rest = self._draw()
        end = len(order) - (len(order) - first) % size if self.drop_last else len(order)
        for start in range(first, end, size):
            self._state = {**place, "taken": start // size + 1}
            batch = order[start : start + size]
            if len(batch) < size:
                _exhaust(rest)
            own = shard(batch, rank, world_size)
            if own:
                yield own
            elif self._in_step:
                yield [batch[0]]
        _exhaust(rest)

    def __len__(self) -> int:
        steps, rest = divmod(self.samples(), self.global_batch_size)
        if rest and not self.drop_last and (self._in_step or rest > self._group.rank):
            steps += 1
        return steps

    def samples(self) -> int:
        """Return the number of samples in one pass, over all workers."""
        if not isinstance(self.sampler, Sized):
            raise ConfigError(
                f"{type(self.sampler).__name__} has no __len__, so it can't be shared among workers"
            )
        return len(self.sampler)

    def sizes(self) -> BatchSizes:
        """Return the sizes of the global batches of one pass."""
        return BatchSizes(self.samples(), self.global_batch_size, self.drop_last)

    def _draw(self) -> tuple[Sequence[int], Iterator[int]]:
        """Return the sample indices in the sampler's order, and the sampler's iterator, which may not have
        ended.

        A sampler may make another random draw when its iterator ends. In a loop without trainkit, the
        iterator ends at the last batch, or never if the loop stops earlier.
        """
        if type(self.sampler) is SequentialSampler:
            return range(len(self.sampler)), iter(())
        # An order of any other kind may depend on this process's random state, so worker 0 determines the
        # order for all workers. Worker 0 makes the same random draws as training without trainkit.
        rest = iter(self.sampler if self._group.rank == 0 else ())
        own = list(itertools.islice(rest, self.samples()))
        return self._group.broadcast_integers(own), rest


def _exhaust(iterator: Iterator[Any]) -> None:
    deque(iterator, maxlen=0)


def sampler_of(loader: DataLoader[Any]) -> Any:
    """Return the sampler that decides the order: the sampler of the batch sampler, or else
    `loader.sampler`.
    """
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def sharded_loader(
    loader: Iterable[Any], group: ProcessGroup, *, in_step: bool, what: str, total: int | None = None
) -> Iterable[Any]:
    """Return a loader of this worker's share of the samples; a split loader stays unchanged.

    Args:
        loader: the user's loader; not of a stream, whose samples `SharedStreamLoader` shares.
        group: the workers that share the samples.
        in_step: True if all workers take part in every step.
        what: name of the loader, for messages.
        total: see `global_batch_size`.

    Raises:
        ConfigError: the loader's samples can't be shared among workers.
    """
    if not isinstance(loader, DataLoader):
        if group.rank == 0 and group.world_size > 1:
            log.warning(
                "%s can't be shared among the %d workers, because it is not a DataLoader: each worker uses "
                "all batches of its own loader. Split the data by self.world_rank, and pass sharded=True to "
                "register_data, or add_dist_sampler=False, to turn this warning off.",
                what,
                group.world_size,
            )
        return loader
    if isinstance(sampler_of(loader), DistributedSampler):
        return loader
    batches: Any = loader.batch_sampler
    # A subclass of DataLoader may create its own batch sampler. If the user has passed a batch sampler, the
    # loader's batch_size is None.
    deals = isinstance(batches, BatchSampler) and (
        type(batches) is BatchSampler or loader.batch_size is not None
    )
    if not deals and group.world_size == 1:
        return loader
    if not deals:
        kind = "batch_size=None" if batches is None else f"the batch sampler {type(batches).__name__}"
        raise ConfigError(
            f"{what} has {kind}, so its samples can't be shared among workers: give a batch_size and a "
            f"sampler, or split the data by self.world_rank and pass add_dist_sampler=False"
        )
    sharded = ShardedBatchSampler(
        batches.sampler,
        batches.batch_size,
        drop_last=batches.drop_last,
        group=group,
        in_step=in_step,
        total=total,
    )
    counts = group.gather_integers(sharded.samples())
    if len(set(counts)) > 1:
        raise ConfigError(
            f"{what} has {counts} samples on workers 0 to {group.world_size - 1}, but add_dist_sampler=True "
            "needs the whole data set on each: pass add_dist_sampler=False if you split the data yourself"
        )
    if group.rank > 0 and loader.generator is not None:
        # Worker 0 determines the order, so this generator only seeds the loading processes of this worker,
        # whose augmentations must differ by rank.
        loader.generator.manual_seed(loader.generator.initial_seed() + group.rank)
    return with_batches(loader, sharded)


def with_batches(loader: DataLoader[Any], batches: Iterable[list[int]]) -> DataLoader[Any]:
    """Return a copy of a loader with `batches` as batch sampler.

    If `batches` has a sampler, the copy also has this sampler.
    """
    return with_attributes(loader, batch_sampler=batches, sampler=getattr(batches, "sampler", loader.sampler))


def with_attributes(loader: DataLoader[Any], **attributes: Any) -> DataLoader[Any]:
    """Return a copy of a loader with other values of `attributes`, such as its data set or batch sampler."""
    clone = copy.copy(loader)
    # A DataLoader refuses changes of these attributes, because an iterator may already use the old values.
    # The copy has no iterator, so its attributes can be changed. A new loader built from arguments would lose
    # the subclass and attributes of later torch versions.
    for name, value in attributes.items():
        object.__setattr__(clone, name, value)
    clone._iterator = None
    return clone


class LoaderView(DataLoader[Any]):
    """Loader with the attributes of another loader, in the same dictionary, and with its other methods.

    Args:
        loader: the other loader.
    """

    __slots__ = ("_loader",)  # Subclasses also declare their own attributes in `__slots__`.

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.__dict__ = vars(loader)
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if any(name in vars(kind).get("__slots__", ()) for kind in type(self).__mro__):
            raise AttributeError(name)  # During unpickling, for example, the loader is not set yet.
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)


def gathering(loader: Any) -> Any:
    """Return a copy of `loader`, for one pass, that indexes each tensor once per batch, not once per row.

    The copy's batches have the same bits and strides as the loader's. Only a loader of a `TensorDataset`, or
    of a subset of one, is copied; other loaders are returned unchanged.
    """
    if type(loader) is not DataLoader or loader.num_workers > 0 or loader.batch_sampler is None:
        return loader
    dataset: Any = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    plain = type(dataset) is TensorDataset and all(map(_is_plain, dataset.tensors))
    if not plain or loader.collate_fn is not default_collate:
        return loader
    return with_attributes(loader, dataset=_Gathered(loader.dataset), collate_fn=lambda batch: batch)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return True if indexing many rows at once gives the same memory layout as stacking single rows."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.requires_grad
    return plain and tensor.stride() == torch.empty(tensor.shape, device="meta").stride()


class _Gathered:
    """Data set of whole batches from a `TensorDataset`, or from a subset of one."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, rows: list[Any]) -> Any:
        dataset: Any = self._dataset
        while type(dataset) is Subset:
            dataset, rows = dataset.dataset, [dataset.indices[row] for row in rows]
        # The indices may not be ints, because a sampler may return any index that a tensor accepts.
        if set(map(type, rows)) != {int}:
            return default_collate([dataset[row] for row in rows])
        index = torch.tensor(rows)
        return [tensor[index] for tensor in dataset.tensors]
