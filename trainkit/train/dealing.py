"""Which samples a worker sees: the order of the user's own sampler, dealt out batch by batch.

    order, drawn once, by rank 0   7 2 9 4 │ 1 8 0 5 │ 3 6 2
    two workers, batch_size=2      step 0    step 1    step 2
    rank 0                         7   9     1   0     3   2
    rank 1                           2   4     8   5     6

So a step's samples over all workers are those of a plain loop with the global batch size, nothing is
padded, and validation counts each sample once. Where the last batch is uneven, or too small for all
workers, `Feed.weight` (data.py) makes the averaged gradient that of the whole batch again.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
)

from trainkit.errors import ConfigError
from trainkit.train.process_group import WorkerGroup
from trainkit.train.turns import Pass

log = logging.getLogger(__name__)


def deal(batch: Sequence[int], rank: int, world_size: int) -> list[int]:
    """The part of a global batch that is worker `rank`'s: every `world_size`-th of it."""
    return list(batch[rank::world_size])


class DealtBatches(Sampler[list[int]]):
    """Batch sampler of one worker.

    Args:
        sampler: the user's own, which decides the order.
        batch_size: samples a step and worker.
        drop_last: leave out a last global batch that is not full.
        group: the workers.
        in_step: every worker takes part in every step, if need be with a sample that another one
            counts: a worker that sat out a step would leave the others waiting for it.
    """

    def __init__(
        self,
        sampler: Sampler[int] | Iterable[int],
        batch_size: int,
        *,
        drop_last: bool,
        group: WorkerGroup,
        in_step: bool,
    ) -> None:
        self.sampler = sampler
        self.global_batch_size = batch_size * group.world_size
        self.drop_last = drop_last
        self._group = group
        self._in_step = in_step

    def __iter__(self) -> Iterator[list[int]]:
        rank, world_size, size = self._group.rank, self._group.world_size, self.global_batch_size
        order, rest = self._draw()
        end = len(order) - len(order) % size if self.drop_last else len(order)
        for start in range(0, end, size):
            batch = order[start : start + size]
            if len(batch) < size:
                _exhaust(rest)
            own = deal(batch, rank, world_size)
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
        """Samples of one pass, over all workers."""
        if not isinstance(self.sampler, Sized):
            raise ConfigError(
                f"{type(self.sampler).__name__} has no __len__, so it can't be shared among workers"
            )
        return len(self.sampler)

    def sizes(self) -> Pass:
        """Of the batches of one pass, over all workers."""
        return Pass(self.samples(), self.global_batch_size, self.drop_last)

    def _draw(self) -> tuple[Sequence[int], Iterator[int]]:
        """The order, and the sampler's iterator after it.

        A sampler may draw once more as it ends. A plain loop comes to that with its last batch, or never
        if it stops before.
        """
        if type(self.sampler) is SequentialSampler:
            return range(len(self.sampler)), iter(())
        # Any other order may hang on a random state that is this process's own, so one worker draws for
        # all. It draws exactly as a plain loop does: with the same seed, in the same order.
        rest = iter(self.sampler if self._group.rank == 0 else ())
        own = list(itertools.islice(rest, self.samples()))
        return self._group.broadcast_integers(own), rest


def _exhaust(iterator: Iterator[Any]) -> None:
    deque(iterator, maxlen=0)


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What decides the order; `loader.sampler` stands idle where a batch sampler was given."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def dealt_out(loader: Iterable[Any], group: WorkerGroup, *, in_step: bool, what: str) -> Iterable[Any]:
    """This worker's share of what `loader` gives, as a loader; `loader` itself if it is shared out already.

    Args:
        loader: the user's.
        group: the workers among whom the samples are dealt.
        in_step: whether all of them take part in every step.
        what: the loader, for messages.

    Raises:
        ConfigError: it can't be shared among workers.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        if group.rank == 0 and group.world_size > 1:
            log.warning(
                "%s can't be shared among the %d workers, as it is not a DataLoader over a map-style data "
                "set: each worker takes all that its own loader gives. Split it by self.world_rank, and pass "
                "add_dist_sampler=False to say so.",
                what,
                group.world_size,
            )
        return loader
    if isinstance(sampler_of(loader), DistributedSampler):
        return loader
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler and group.world_size == 1:
        return loader
    if type(batches) is not BatchSampler:
        kind = "batch_size=None" if batches is None else f"the batch sampler {type(batches).__name__}"
        raise ConfigError(
            f"{what} has {kind}, so its samples can't be shared among workers: give a batch_size and a "
            f"sampler, or split the data by self.world_rank and pass add_dist_sampler=False"
        )
    dealt = DealtBatches(
        batches.sampler, batches.batch_size, drop_last=batches.drop_last, group=group, in_step=in_step
    )
    counts = group.gather_integers(dealt.samples())
    if len(set(counts)) > 1:
        raise ConfigError(
            f"{what} has {counts} samples on workers 0 to {group.world_size - 1}: with add_dist_sampler=True "
            f"every worker registers the whole data set; pass add_dist_sampler=False if you have split it"
        )
    clone = copy.copy(loader)
    # A DataLoader refuses a new batch sampler, since its iterator may exist already; the copy starts without
    # one. Building one from its arguments instead would lose a subclass and whatever a later torch adds.
    object.__setattr__(clone, "batch_sampler", dealt)
    clone._iterator = None
    if group.rank > 0 and loader.generator is not None:
        # It only seeds this worker's loading processes now: their augmentations must differ by rank.
        loader.generator.manual_seed(loader.generator.initial_seed() + group.rank)
    return clone
