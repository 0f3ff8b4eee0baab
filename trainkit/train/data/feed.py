"""A registered loader as the loop takes its batches: as many on each worker, each with its weight."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from trainkit.errors import ConfigError
from trainkit.train.data.sharding import (
    FULL_WEIGHT,
    BatchWeights,
    Pass,
    ShardedBatchSampler,
    Turn,
    provisional_weight,
    sampler_of,
    sharded_loader,
)
from trainkit.train.distributed.process_group import ProcessGroup


def loader_state(loader: Any, sampler: Any) -> dict[str, Any]:
    """Generators of a loader and its sampler, and their own states where they have some.

    Args:
        loader: of the batches.
        sampler: the user's, which decides the order, or None.
    """
    held: dict[str, Any] = {"started": _keeps_processes(loader) and loader._iterator is not None}
    for name, owner in (("loader", loader), ("sampler", sampler)):
        if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
            held[f"{name}_generator"] = generator.get_state()
        if callable(getattr(owner, "state_dict", None)):
            held[name] = owner.state_dict()
    return held


def load_loader_state(loader: Any, sampler: Any, held: Mapping[str, Any]) -> None:
    """Take over what `loader_state` returned."""
    for name, owner in (("loader", loader), ("sampler", sampler)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and f"{name}_generator" in held:
            generator.set_state(held[f"{name}_generator"])
        if name in held and callable(getattr(owner, "load_state_dict", None)):
            owner.load_state_dict(held[name])
    if _keeps_processes(loader) and not held.get("started"):
        # Those that were started since would spare the next pass a draw.
        loader._iterator = None


def started_iterator(loader: Any, *, resumed: bool) -> Iterator[Any]:
    """The loader's iterator.

    Args:
        loader: of the batches.
        resumed: a state was loaded in which a loader that keeps its processes had started them. It draws
            their seed once, as it starts them; this one, too, has to go on without. What the processes draw
            themselves begins anew, as their generators ended with them.
    """
    if not resumed or not _keeps_processes(loader) or loader._iterator is not None:
        return iter(loader)
    before = loader.generator
    # As far along as this worker's own, which goes on as if nothing had been drawn.
    loader.generator = torch.Generator()
    loader.generator.set_state(torch.get_rng_state())
    try:
        return iter(loader)
    finally:
        loader.generator = before


def _keeps_processes(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and loader.persistent_workers and loader.num_workers > 0


log = logging.getLogger(__name__)


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
        group: ProcessGroup,
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
        self._known: BatchWeights | None = None

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
        """Return the values that determine the order of the next pass."""
        return loader_state(self.loader, self._order())

    def load_state(self, held: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        load_loader_state(self.loader, self._order(), held)
        self._resumed = bool(held.get("started"))

    def _order(self) -> Any:
        """The sampler that the user gave."""
        return sampler_of(self.loader) if isinstance(self.loader, DataLoader) else None

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
        sampler = self._order()
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch_idx)
        self._asked, self._last, self._known, self.turn = num_steps, None, None, FULL_WEIGHT
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
        return started_iterator(self.loader, resumed=resumed)

    def _dealt(self) -> ShardedBatchSampler | None:
        batches = getattr(self.loader, "batch_sampler", None)
        return batches if isinstance(batches, ShardedBatchSampler) else None

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
            return FULL_WEIGHT
        if self._known is not None:
            return self._known(step)
        if self._every == 1 and self._dealt() is None:
            return FULL_WEIGHT
        sizes = self._sizes()
        total = 0 if sizes is None else sizes.steps if self._asked is None else self._asked
        if sizes is None or total == 0:
            return provisional_weight(step, every=self._every, last=step == self._last)
        rank, world_size = self._group.rank, self._group.world_size
        self._known = BatchWeights(sizes, total, every=self._every, rank=rank, world_size=world_size)
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
    group: ProcessGroup,
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
        loader = sharded_loader(loader, group, in_step=in_step, what=what)
    return Feed(loader, group=group, training=training, in_step=in_step, every=every)
