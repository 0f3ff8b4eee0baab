"""Feeds, which pass a loader's batches, with their weights, to the training loop; each worker gets equally
many batches.

Between loader and step, a batch first passes through the feed's iterator, which assigns the batch's weight,
and then through the epoch's iterator (step/epoch.py). On a GPU, a batch also passes through the prefetcher's
iterator.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from trainkit.errors import CheckpointError, ConfigError
from trainkit.train.checkpoint.state import generator_states
from trainkit.train.data.position import (
    Position,
    iterator_at,
    keeps_processes,
    load_loader_state,
    loader_state,
    started_iterator,
    stream_state,
    unit_of,
)
from trainkit.train.data.sharding import (
    FULL_WEIGHT,
    BatchSizes,
    BatchWeight,
    BatchWeights,
    ShardedBatchSampler,
    gathering,
    provisional_weight,
    sampler_of,
    sharded_loader,
)
from trainkit.train.data.streams import SharedStreamLoader
from trainkit.train.distributed.observers import Timed
from trainkit.train.distributed.process_group import ProcessGroup


def set_epoch(loader: Any, epoch: int) -> None:
    """Call `set_epoch` of a loader, its data set and its samplers where this method exists."""
    batches = getattr(loader, "batch_sampler", None)
    owners = [loader, batches, getattr(batches, "sampler", None)]
    owners += [getattr(loader, name, None) for name in ("sampler", "dataset")]
    for owner in {id(owner): owner for owner in owners}.values():
        if callable(hook := getattr(owner, "set_epoch", None)):
            hook(epoch)


log = logging.getLogger(__name__)


_END: Any = object()

Uneven = Literal["drop", "raise", "join"]
"""Ways to handle a user's split of the data that gives some workers more batches than others."""


class Batch(NamedTuple):
    """A batch on its way from the loader to the training step.

    Attributes:
        data: the loader's data, unchanged.
        weight: weight of the batch in the optimizer's step.
    """

    data: Any
    weight: BatchWeight


class Feed:
    """Source of an epoch's batches from one loader.

    If steps communicate, each worker gets equally many batches.

    Args:
        loader: source of the batches.
        group: the workers that share the samples.
        training: True if the model is trained on the batches. In training, the loader starts again if more
            batches are requested than the loader has.
        in_step: True if workers communicate in each step. All workers must then run equally many steps.
            Default: True in training.
        every: number of batches whose gradients form one optimizer step.
        uneven: handling of uneven batches from a loader that the user has split; see
            `TrainingOperator.register_data`.
        sharded: True if the loader divides its samples among the workers by itself.

    Attributes:
        taken: number of batches taken since the epoch began.
        done: number of batches that the training loop has finished since the epoch began; `state` uses this
            number.
        current: weight of the last taken batch.
        total: number of batches of the epoch, equal on all workers; None if unknown, and before the first
            batch.
        advice: advice to the user, for messages about workers that have unequal numbers of batches.
        stateful: True if a stream's own state is part of `state`; see `TrainingOperator.register_data`.
    """

    advice = "give workers equally many batches, or train on all with register_data(uneven_inputs='join')"

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        group: ProcessGroup,
        training: bool,
        in_step: bool | None = None,
        every: int = 1,
        uneven: Uneven = "drop",
        sharded: bool = False,
    ) -> None:
        self.loader = loader
        self.uneven = uneven
        self.sharded = sharded
        self.taken = self.done = 0
        self.current = FULL_WEIGHT
        self.total: int | None = None
        self.stateful = False
        self._group = group
        self._training = training
        self._in_step = training if in_step is None else in_step
        self._fetched = 0
        self._shares: list[tuple[int, float]] = []
        self._incomplete: dict[int, int] = {}
        """Sizes of a shared stream's incomplete global batches, by their index in the epoch."""
        self._told = False
        self._resumed = False
        self._every = every if training else 1
        self._labelled = 0
        self._asked: int | None = None
        self._last: int | None = None
        self._weights: Callable[[int], BatchWeight] | None = None
        self._next: Position | None = None
        """Loaded position at which the next pass continues."""
        self._pass: tuple[dict[str, Any], Position] | None = None
        """State of the loader before the current pass, and the position where this process began the pass."""
        self._ahead = False
        self._base = 0
        """Index of the first batch of the epoch that this process trains.

        An optimizer step begins with this batch.
        """
        self._rest: tuple[int, BatchSizes] | None = None
        """First batch and batch sizes of a pass that is continued with a different batch size or number of
        workers.
        """

    @property
    def weight(self) -> float:
        """Factor for the current batch's mean loss; 0 if the batch only repeats other samples."""
        return self.current.averaged

    @property
    def may_repeat(self) -> bool:
        """True if a worker without more batches may repeat its last batch with weight 0."""
        split = self._sharded() is None and not isinstance(self.loader, SharedStreamLoader)
        return self.uneven == "join" and self._group.members > 1 and split

    def is_exact(self, done: int) -> bool:
        """Return True if the position after `done` batches is known exactly.

        The position is not known exactly in three cases: the next pass has begun already, a loader with a
        state of its own has given a batch in advance, or some workers repeat batches.
        """
        if self._pass is None or self._pass[1].taken > done or self.may_repeat:
            return False
        return (self.taken == done and not self._ahead) or not self._keeps_position()

    def _keeps_position(self) -> bool:
        return callable(getattr(self.loader, "state_dict", None))

    def state(self) -> dict[str, Any]:
        """Return the state that determines the next batches: the order of the samples, and the position.

        The position is only known between batches, during training or after `load_state`.
        """
        if self._pass is None:
            held = loader_state(self.loader, self._sampler())
            return held if self._next is None else {**held, "position": vars(self._next)}
        before, start = self._pass
        at = start.after(self.done)
        if self._keeps_position():  # the loader's own state includes the position within the pass
            at = replace(at, generators={}, kept=True)
            before = loader_state(self.loader, self._sampler())
        elif self.stateful and self.taken == self.done and not self._ahead:
            at = replace(at, stream=stream_state(self.loader))
        return {**before, "position": vars(at)}

    def load_state(self, held: Mapping[str, Any]) -> None:
        """Load a result of `state`."""
        position, shape = held.get("position", {}), self._shape()
        if position.get("kept") and (position["unit"], position["world_size"]) != shape:
            # The pass starts again, because the loader's own state counts batches of the earlier workers,
            # whose number or batch size was different.
            held = {name: each for name, each in held.items() if name not in ("loader", "batch_sampler")}
        load_loader_state(self.loader, self._sampler(), held)
        self._resumed = bool(held.get("started"))
        self._next = Position(**held["position"]) if "position" in held else None
        self._pass = None

    @property
    def begun(self) -> int:
        """Number of batches of the next epoch that were trained before the loaded position."""
        return 0 if self._next is None else self._next.taken

    def end_epoch(self) -> None:
        """Forget the position, because the next batches belong to a new epoch."""
        self._pass = None

    def start_again(self) -> None:
        """Forget a loaded position."""
        self._next = None

    def steps(self) -> int | None:
        """Return the number of batches of one pass; None if unknown in advance."""
        # The length of an iterable data set is an estimate; its samples may run out earlier.
        if isinstance(self.loader, DataLoader) and isinstance(self.loader.dataset, IterableDataset):
            return None
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # The loader's sampler may have no length.
            return None

    def batches(
        self, epoch_idx: int = 0, num_steps: int | None = None, timed: Timed | None = None
    ) -> Iterator[Batch]:
        """Return the batches of an epoch.

        Args:
            epoch_idx: passed to `set_epoch` of the loader, its samplers and its data set.
            num_steps: number of batches, including the batches before a loaded position; in training, a
                loader with fewer batches starts again. None: one pass.
            timed: wrapper of the function that takes the next batch; the wrapper counts batches and their
                time (see `Timed`).
        """
        set_epoch(self.loader, epoch_idx)
        self._asked, self._last, self._weights, self._shares = num_steps, None, None, []
        self.total = num_steps
        self._pass = self._rest = None
        self._incomplete = {}
        begun = self._base = self.begun
        self.taken, self._fetched, self._labelled, self.current = begun, begun, begun, FULL_WEIGHT
        left = None if num_steps is None else num_steps - begun
        take = _Passes(self._start_pass, left, repeat=self._training, begun=begun > 0).take
        return self._epoch(take if timed is None else timed(take, _END))

    def label(self, data: Iterable[Any]) -> Iterator[Batch]:
        """Yield a user's own batches, with the weights of the feed's batches at the same positions."""
        for each in data:
            self.current = self._weight_of(self._labelled)
            self._labelled += 1
            yield Batch(each, self.current)

    def _epoch(self, take: Callable[[], Any]) -> Iterator[Batch]:
        # The last batch of an epoch completes the accumulated gradient early. If the index of the last batch
        # is unknown in advance, each batch is fetched before the previous batch is yielded.
        looks_ahead = self._ahead = self._every > 1 and self._sizes() is None
        following = take()
        while following is not _END:
            data, index = following, self.taken
            self.taken += 1
            if looks_ahead:
                following = take()
                if following is _END:
                    self._last = index
            self.current = self._weight_of(index)
            yield Batch(data, self.current)
            if not looks_ahead:
                following = take()

    def _sampler(self) -> Any:
        return sampler_of(self.loader) if isinstance(self.loader, DataLoader) else None

    def _sharded(self) -> ShardedBatchSampler | None:
        sampler = getattr(self.loader, "batch_sampler", None)
        return sampler if isinstance(sampler, ShardedBatchSampler) else None

    def _sizes(self) -> BatchSizes | None:
        """Return the sizes of the batches of a pass; None if unknown in advance."""
        if (sharded := self._sharded()) is not None:
            return sharded.sizes()
        batches = getattr(self.loader, "batch_sampler", None)
        if self._group.world_size > 1 or type(batches) is not BatchSampler:
            return None
        if not isinstance(batches.sampler, Sized) or self.steps() is None:
            return None
        return BatchSizes(len(batches.sampler), batches.batch_size, batches.drop_last)

    def _weight_of(self, step: int) -> BatchWeight:
        """Return the weight of batch `step` of the epoch, where `step` counts the batches of all passes."""
        weight = self._even_weight_of(step)
        share = next((share for first, share in reversed(self._shares) if first <= step), 1.0)
        if share == 1:
            return weight
        return replace(weight, averaged=weight.averaged * share, own=weight.own if share else 0.0)

    def _even_weight_of(self, step: int) -> BatchWeight:
        if not self._in_step:
            return FULL_WEIGHT
        if isinstance(self.loader, SharedStreamLoader):
            return self._stream_weight_of(step, self.loader.deal.global_batch_size)
        if self._weights is not None:
            return self._weights(step)
        if self._every == 1 and self._sharded() is None:
            return FULL_WEIGHT
        first, sizes = (0, self._sizes()) if self._rest is None else self._rest
        total = 0 if sizes is None else sizes.steps if self._asked is None else self._asked - first
        if sizes is None or total == 0:
            ones = [1] * ((step - self._base) % self._every + 1)
            return provisional_weight(ones, 1, every=self._every, last=step == self._last)
        rank, world_size = self._group.rank, self._group.world_size
        weights = BatchWeights(sizes, total, every=self._every, rank=rank, world_size=world_size)
        self._weights = weights if first == 0 else lambda step: weights(step - first)
        return self._weights(step)

    def _stream_weight_of(self, step: int, full: int) -> BatchWeight:
        first = step - (step - self._base) % self._every
        sizes = [self._incomplete.get(index, full) for index in range(first, step + 1)]
        last, place = step == self._last, {"rank": self._group.rank, "world_size": self._group.world_size}
        return provisional_weight(sizes, full, every=self._every, last=last, **place)

    def _start_pass(self) -> Callable[[], Any]:
        """Start a pass over the loader; return a function that returns the next batch, or `_END` after the
        last batch.
        """
        if self._next is not None:
            what = _name(self._training) if self._group.rank == 0 else ""
            self._next = self._next.on(*self._shape(), plain=self._plain(), what=what)
        if isinstance(self.loader, SharedStreamLoader):
            return partial(next, self._stream_pass(self.loader), _END)
        left = self._left()
        if not self._in_step or self._sharded() is not None or self._group.members == 1:
            self._ends_after(left)
            return partial(next, self._iterator(), _END)
        if self._training:
            lengths = self._group.gather_integers(-1 if left is None else left)
            if min(lengths) >= 0 and (min(lengths) == max(lengths) or self.uneven != "join"):
                shortest = min(lengths)
                self._ends_after(shortest)
                ends = self._asked is None or self._asked - self.taken > shortest
                self._end(shortest, [ends and length > shortest for length in lengths])
                return partial(next, itertools.islice(self._iterator(), shortest), _END)
        return self._together()

    def _left(self) -> int | None:
        """Return the number of batches of the pass that is about to start; None if unknown in advance."""
        begun = 0 if self._next is None else self._next.consumed
        if (sizes := self._sizes()) is not None:
            return replace(sizes, samples=sizes.samples - begun).steps
        steps = self.steps()
        return None if steps is None else steps - begun

    def _ends_after(self, left: int | None) -> None:
        """Record that the pass that is about to start has `left` batches.

        It is the only pass, because no number of batches is requested.
        """
        if self._asked is None and left is not None:
            self.total = self.taken + left

    def _iterator(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, False
        position, self._next = self._next, None
        before = loader_state(self.loader, self._sampler()) if self._training else {}
        if position is None:
            if self._training:
                start = Position(self.taken, 0, *self._shape(), generator_states(), plain=self._plain())
                self._pass = before, start
            if self._rest is not None:
                self._begin_rest(self.taken, 0)
            return started_iterator(gathering(self.loader), resumed=resumed)
        if keeps_processes(self.loader):
            # A resumed pass starts processes of a copy of the loader. The next pass starts the loader's own
            # processes, at a point where an uninterrupted run draws no seed.
            before["started"], self._resumed = resumed or before["started"], True
        self._pass = before, position
        sizes, unit = self._sizes(), position.unit
        if sizes is not None and sizes.steps:
            expected = position.taken % sizes.steps * unit
            at_end = expected == 0 and position.consumed == sizes.steps * unit
            if (position.consumed != expected and not at_end) or position.taken % self._every:
                self._begin_rest(position.taken, position.consumed)
        return iterator_at(self.loader, position, resumed=resumed, prepared=gathering)

    def _shape(self) -> tuple[int, int]:
        """Return the number of samples of a batch, and the number of workers that share them."""
        world_size = self._group.world_size
        return unit_of(self.loader, world_size), world_size

    def _plain(self) -> bool:
        """Return True if this worker reads a stream alone, with the generators of its process."""
        stream = isinstance(getattr(self.loader, "dataset", None), IterableDataset)
        return stream and not isinstance(self.loader, SharedStreamLoader)

    def _begin_rest(self, first: int, consumed: int) -> None:
        """Count the batches of this pass from batch `first`, which follows `consumed` samples.

        Raises:
            CheckpointError: batches of two passes would have to form one optimizer step.
        """
        if (sizes := self._sizes()) is None:
            return
        sizes = replace(sizes, samples=sizes.samples - consumed)
        if self._every > 1 and self._asked is not None and self._asked - first > sizes.steps:
            raise CheckpointError(
                f"an interrupted train(num_steps={self._asked}) with several passes over its loader can't "
                "continue with grad_accumulation_steps and a different global batch size: use the global "
                "batch size of the checkpoint"
            )
        self._rest, self._weights = (first, sizes), None

    def _stream_pass(self, loader: SharedStreamLoader) -> Iterator[Any]:
        """Yield the batches of a pass over a shared stream, and keep the sizes of incomplete global batches.

        Raises:
            ConfigError: workers read different streams.
        """
        # Workers that did not exist when a state was saved have not loaded its seed.
        stream: Any = loader.dataset
        stream.seed = self._group.broadcast_integers([stream.seed])[0]
        batches = self._iterator()
        for index in itertools.count():
            batch = next(batches, _END)
            if index == 0 and self._group.members > 1:
                self._check_origins(self._group.gather_integers(loader.origin))
            if batch is _END:
                return
            if (size := loader.size(index)) < loader.deal.global_batch_size:
                self._incomplete[self._fetched] = size
            self._fetched += 1
            yield batch

    def _check_origins(self, origins: Sequence[int]) -> None:
        first = next((origin for origin in origins if origin >= 0), -1)
        others = [rank for rank, origin in enumerate(origins) if origin not in (first, -1)]
        if others:
            raise ConfigError(
                f"the stream of the {_name(self._training)} begins with different samples on worker "
                f"{origins.index(first)} and worker {others[0]}, but each worker must read the whole stream "
                "and keeps its own share. If the stream divides itself among the workers, pass sharded=True "
                "to register_data; if it is shuffled, give its generator the same seed on all workers"
            )

    def _together(self) -> Callable[[], Any]:
        """Return a function that returns the next batch, if the user has split the data; each worker gets
        equally many batches.

        In validation, and in training with `uneven="join"`, no batch is skipped. A worker without more
        batches repeats its last batch with weight 0.
        """
        iterator, last = self._iterator(), _END
        first, share = self._fetched, 1.0

        def take() -> Any:
            nonlocal last, share
            # Before each step the workers exchange whether they have a batch, because a worker that skips the
            # step would block the others in its collectives.
            batch = next(iterator, _END)
            more = [bool(each) for each in self._group.gather_integers(int(batch is not _END))]
            if not any(more) or (self._training and self.uneven != "join" and not all(more)):
                self._end(self._fetched - first, more)
                return _END
            if batch is not _END:
                last = batch
            elif last is _END:
                raise ConfigError(
                    f"the {_name(self._training)} of worker {self._group.rank} has no batches, but all "
                    "workers run each step together: give each worker at least one batch"
                )
            now = len(more) / sum(more) if batch is not _END else 0.0
            if now != share or (self._fetched == first and self._shares):
                self._shares.append((self._fetched, now))
            share = now
            self._fetched += 1
            return last

        return take

    def _end(self, steps: int, more: Sequence[bool]) -> None:
        """End a pass of `steps` batches; warn if some workers have more batches.

        Raises:
            ConfigError: some workers have more batches, and `uneven` is "raise".
        """
        if not any(more):
            return
        text = (
            f"the train_loader of worker {_ranks(more, False)} ends after {steps} batches, but worker "
            f"{_ranks(more, True)} has more"
        )
        if self.uneven == "raise":
            raise ConfigError(f"{text}: {self.advice}")
        if self._group.rank == 0 and not self._told:
            log.warning("%s. The extra batches are skipped: %s", text, self.advice)
        self._told = True


def _ranks(more: Sequence[bool], wanted: bool) -> str:
    return ", ".join(str(rank) for rank, each in enumerate(more) if each is wanted)


def _name(training: bool) -> str:
    return "train_loader" if training else "validation_loader"


class _Passes:
    """The batches of an epoch, taken from one or several passes over the loader.

    Args:
        start: function that starts a pass, and returns a function that returns the next batch, and `_END`
            after the last batch.
        limit: number of batches in the epoch; None means one pass.
        repeat: True starts another pass if a pass has too few batches.
        begun: True if the first pass continues an earlier pass, which may have no batches left.
    """

    def __init__(
        self, start: Callable[[], Callable[[], Any]], limit: int | None, *, repeat: bool, begun: bool = False
    ) -> None:
        self._start = start
        self._left = math.inf if limit is None else limit
        self._repeat = repeat and limit is not None
        self._next: Callable[[], Any] | None = None
        self._begun = begun

    def take(self) -> Any:
        """Return the next batch; `_END` after the last batch."""
        if self._left <= 0:
            # an earlier call may have run all steps of this epoch; even so, the next pass must count as a
            # later pass
            if self._begun:
                self._begun = False
                self._start()
            return _END
        batch = _END if self._next is None else self._next()
        if batch is _END and (self._next is None or self._repeat):
            self._next = self._start()
            batch = self._next()
            if batch is _END and self._begun and self._repeat:
                self._next = self._start()
                batch = self._next()
            self._begun = False
        # A loader without batches must not restart forever, so it ends the epoch.
        self._left = 0 if batch is _END else self._left - 1
        return batch


def make_feed(
    loader: Any,
    *,
    group: ProcessGroup,
    training: bool,
    split: bool,
    in_step: bool | None = None,
    every: int = 1,
    uneven: Uneven = "drop",
    sharded: bool = False,
    total: int | None = None,
) -> Feed:
    """Return the feed of a registered loader; with `split`, workers share the samples if possible.

    Args:
        loader: a `DataLoader`, or any iterable of batches.
        group: the workers.
        training: True if the model is trained on the batches.
        split: True to share the samples; False leaves the sharing to the user.
        in_step: True if workers communicate in each step; default: True in training.
        every: number of batches whose gradients form one optimizer step.
        uneven: handling of uneven batches from a loader that the user has split.
        sharded: True if the loader divides its samples among the workers by itself.
        total: see `global_batch_size`.

    Raises:
        ConfigError: the loader can only be iterated over once, or its samples can't be shared.
    """
    what = _name(training)
    if not isinstance(loader, Iterable) or isinstance(loader, Iterator):
        raise ConfigError(f"{what} must be a DataLoader or reusable iterable, not a {type(loader).__name__}")
    in_step = training if in_step is None else in_step
    if split and not sharded:
        loader = _share_of(loader, group, in_step=in_step, what=what, total=total)
    return Feed(
        loader,
        group=group,
        training=training,
        in_step=in_step,
        every=every,
        uneven=uneven,
        sharded=sharded,
    )


def _share_of(
    loader: Iterable[Any], group: ProcessGroup, *, in_step: bool, what: str, total: int | None
) -> Iterable[Any]:
    if isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
        if group.members == 1 and loader.num_workers == 0:
            return loader
        # The seed comes from worker 0, because workers may have different seeds, but must read the same
        # stream.
        seed = group.broadcast_integers([torch.initial_seed() % 2**62])[0]
        return SharedStreamLoader(
            loader,
            rank=group.rank,
            world_size=group.world_size,
            in_step=in_step,
            seed=seed,
            total=total,
        )
    if group.members == 1:
        return loader
    return sharded_loader(loader, group, in_step=in_step, what=what, total=total)
