"""Which samples a worker sees: the order of the user's own sampler, dealt out batch by batch.

    order, drawn once, by rank 0   7 2 9 4 │ 1 8 0 5 │ 3 6 2
    two workers, batch_size=2      step 0    step 1    step 2
    rank 0                         7   9     1   0     3   2
    rank 1                           2   4     8   5     6

So a step's samples over all workers are those of a plain loop with the global batch size, nothing is
padded, and validation counts each sample once. Where the last batch is uneven, or too small for all
workers, `Feed.weight` makes the averaged gradient that of the whole batch again.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
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
from trainkit.train import position
from trainkit.train.process_group import WorkerGroup
from trainkit.train.turns import WHOLE, KnownTurns, Pass, Turn, unknown_turn

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


class Feed:
    """One registered loader: gives an epoch's batches, keeping this worker in step with the others.

    Args:
        loader: what the batches are taken from.
        group: the workers among whom the samples are dealt.
        training: whether these are the batches that are trained on, which start again if more are asked for.
        in_step: whether workers meet in each step, so that all of them run equally many; by default those
            of training do.
        every: batches whose gradients make one optimizer's step.

    Attributes:
        turn: of the current batch: the last that was taken, or that of the step which `begin_step` began.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        group: WorkerGroup,
        training: bool,
        in_step: bool | None = None,
        every: int = 1,
    ) -> None:
        self.loader = loader
        self.turn = Turn()
        self._group = group
        self._training = training
        self._in_step = training if in_step is None else in_step
        self._stands_in_from: int | None = None
        self._resumed = False
        self._every = every if training else 1
        self._begun = 0
        self._asked: int | None = None
        self._last: int | None = None
        self._known: KnownTurns | None = None

    @property
    def weight(self) -> float:
        """Factor for the current batch's mean loss; 0 if its samples are counted by another worker."""
        return self.turn.weight

    def begin_step(self) -> Turn:
        """The next step since `batches` was called begins, however many batches were taken beforehand."""
        self.turn = self._turn(self._begun)
        self._begun += 1
        return self.turn

    def state(self) -> dict[str, Any]:
        """What the next pass's order hangs on; see position.py."""
        return position.state(self.loader, self._order())

    def load_state(self, held: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        position.load(self.loader, self._order(), held)
        self._resumed = bool(held.get("started"))

    def _order(self) -> Any:
        """The sampler that the user gave."""
        sampler = _sampler(self.loader) if isinstance(self.loader, DataLoader) else None
        return sampler.sampler if isinstance(sampler, DealtBatches) else sampler

    def steps(self) -> int | None:
        """Batches of one pass; None if only running it can tell."""
        # An iterable data set's length is a guess: its own samples may run out before.
        streams = isinstance(self.loader, DataLoader) and isinstance(self.loader.dataset, IterableDataset)
        return None if streams or not isinstance(self.loader, Sized) else len(self.loader)

    def batches(self, epoch_idx: int = 0, num_steps: int | None = None) -> Iterator[Any]:
        """The batches of an epoch.

        Args:
            epoch_idx: told to a `DistributedSampler` of the user's own, which shuffles by it.
            num_steps: how many; in training, more than the loader holds start it again. None: one pass.
        """
        sampler = _sampler(self.loader) if isinstance(self.loader, DataLoader) else None
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch_idx)
        self._asked, self._last, self._known, self.turn = num_steps, None, None, WHOLE
        self._begun, self._stands_in_from = 0, None
        if self._every > 1 and self._sizes() is None:
            # The last batch has to be known as such when its step begins.
            yield from self._marking_last(self._passes(num_steps))
        else:
            yield from self._passes(num_steps)

    def _marking_last(self, batches: Iterator[Any]) -> Iterator[Any]:
        held = next(batches, _END)
        for index in itertools.count():
            if held is _END:
                return
            following = next(batches, _END)
            if following is _END:
                self._last = index
            yield held
            held = following

    def _passes(self, num_steps: int | None) -> Iterator[Any]:
        taken = 0
        while num_steps is None or taken < num_steps:
            before = taken
            for batch in itertools.islice(self._one_pass(), None if num_steps is None else num_steps - taken):
                taken += 1
                yield batch
            if num_steps is None or taken == before or not self._training:
                return

    def _one_pass(self) -> Iterator[Any]:
        if not self._in_step:
            yield from self._started()
        elif self._dealt() is not None:
            for index, batch in enumerate(self._started()):
                self.turn = self._turn(index)
                yield batch
            self.turn = Turn()
        elif self._group.members == 1:
            yield from self._started()
        elif self._training:
            yield from self._until_one_ends()
        else:
            yield from self._until_all_end()

    def _started(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, False
        return position.started(self.loader, resumed=resumed)

    def _dealt(self) -> DealtBatches | None:
        batches = getattr(self.loader, "batch_sampler", None)
        return batches if isinstance(batches, DealtBatches) else None

    def _sizes(self) -> Pass | None:
        """Of the batches of a pass, if they are known beforehand."""
        if (dealt := self._dealt()) is not None:
            return dealt.sizes()
        batches = getattr(self.loader, "batch_sampler", None)
        if self._group.world_size > 1 or type(batches) is not BatchSampler:
            return None
        if not isinstance(batches.sampler, Sized) or self.steps() is None:
            return None
        return Pass(len(batches.sampler), batches.batch_size, batches.drop_last)

    def _turn(self, step: int) -> Turn:
        """The part of the epoch's `step`, counted on where the data starts again."""
        if self._stands_in_from is not None and step >= self._stands_in_from:
            return Turn(weight=0.0, own_weight=0.0)
        if not self._in_step:
            return WHOLE
        if self._known is not None:
            return self._known(step)
        if self._every == 1 and self._dealt() is None:
            return WHOLE
        sizes = self._sizes()
        if sizes is None:
            return unknown_turn(step, every=self._every, last=step == self._last)
        total = sizes.steps if self._asked is None else self._asked
        rank, world_size = self._group.rank, self._group.world_size
        self._known = KnownTurns(sizes, total, every=self._every, rank=rank, world_size=world_size)
        return self._known(step)

    def _until_one_ends(self) -> Iterator[Any]:
        """Batches of a loader that was not shared out by us: as many as every worker has."""
        lengths = self._group.gather_integers(-1 if (steps := self.steps()) is None else steps)
        if min(lengths) >= 0:
            if len(set(lengths)) > 1 and self._group.rank == 0:
                log.warning("the workers' train loaders hold %s batches; each runs %d", lengths, min(lengths))
            yield from itertools.islice(self._started(), min(lengths))
            return
        iterator = self._started()
        while True:
            # Asked before the step: no worker may enter a collective that another never joins.
            batch = next(iterator, _END)
            if not self._group.all_true(batch is not _END):
                return
            yield batch

    def _until_all_end(self) -> Iterator[Any]:
        """All batches of a loader that we did not share out; a worker that has no more repeats its last."""
        iterator, last = self._started(), _END
        for index in itertools.count():
            batch = next(iterator, _END)
            if self._group.all_true(batch is _END):
                return
            if batch is not _END:
                last = batch
            elif self._stands_in_from is None:
                self._stands_in_from = index
            if last is _END:
                raise ConfigError(
                    f"validation_loader gives worker {self._group.rank} no batch, but others have some, and "
                    f"all workers run a sharded model together: give each worker at least one batch"
                )
            yield last


_END = object()


def make_feed(
    loader: Any,
    *,
    group: WorkerGroup,
    training: bool,
    split: bool,
    in_step: bool | None = None,
    every: int = 1,
) -> Feed:
    """The feed of a registered loader, shared among the workers if `split` and the loader allow it.

    Args:
        loader: a `DataLoader`, or any iterable of batches.
        group: the workers.
        training: whether the model is trained on it.
        split: deal the samples out; False leaves that to the user.
        in_step: whether workers meet in each step; default, in those of training.
        every: batches whose gradients make one optimizer's step.

    Raises:
        ConfigError: it isn't iterable more than once, or can't be shared among workers.
    """
    what = "train_loader" if training else "validation_loader"
    if not isinstance(loader, Iterable) or isinstance(loader, Iterator):
        raise ConfigError(
            f"{what} is a {type(loader).__name__}; give a DataLoader, or an iterable that can start again"
        )
    in_step = training if in_step is None else in_step
    if group.members > 1 and split:
        loader = _dealt_out(loader, group, in_step=in_step, what=what)
    return Feed(loader, group=group, training=training, in_step=in_step, every=every)


def _sampler(loader: DataLoader[Any]) -> Any:
    """What decides the order; `loader.sampler` stands idle where a batch sampler was given."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def _dealt_out(loader: Iterable[Any], group: WorkerGroup, *, in_step: bool, what: str) -> Iterable[Any]:
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
    if isinstance(_sampler(loader), DistributedSampler):
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
