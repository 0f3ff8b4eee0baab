"""Loader whose `state_dict` includes the position in a pass, at which another loader continues.

    state before the pass ──▶ draw the order of the whole pass ──▶ skip samples ──▶ deal out to the workers

The state records how the order was drawn: either by torch's `DistributedSampler` from its seed and epoch, or
by the user's sampler on one worker from the random generators. So a different number of workers can draw the
same order again.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from trainkit.train.checkpoint.state import generator_states
from trainkit.train.data.position import (
    BATCHES,
    Position,
    Rest,
    generators_at,
    iterator_at,
    keeps_processes,
    load_loader_state,
    loader_state,
    started_iterator,
    stream_state,
    unit_of,
)
from trainkit.train.data.sharding import LoaderView, sampler_of, with_batches
from trainkit.train.data.streams import SharedStreamLoader

log = logging.getLogger(__name__)


@dataclass
class _Pass:
    """A pass over a loader.

    Attributes:
        before: result of `loader_state` before the pass.
        start: position at which this process began the pass.
        order: how the order of the pass was drawn.
        taken: number of batches that the loop has taken.
        alone: False if another pass has begun in the meantime, which changes the stream's own state.
    """

    before: Mapping[str, Any]
    start: Position
    order: Mapping[str, Any]
    taken: int = 0
    alone: bool = True


class PlacedLoader(LoaderView):
    """Loader of a worker's batches whose `state_dict` includes the position in the current pass.

    Args:
        loader: loader of this worker's batches, with the same attributes.
        rank: rank of this worker.
        world_size: number of workers.
        sampler: sampler of all samples, which draws the order on one worker.
        use_stateful_dataset: see `prepare_data_loader`.

    Attributes:
        sampler_of_all: see `sampler`.
        has_position_at_end: True if the state has a position even after the last batch of a pass.
    """

    has_position_at_end = False
    __slots__ = (
        "_current",
        "_loaded",
        "_open",
        "_rank",
        "_resumed",
        "_stateful",
        "_warned",
        "_world_size",
        "sampler_of_all",
    )

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        rank: int,
        world_size: int,
        sampler: Any,
        use_stateful_dataset: bool = False,
    ) -> None:
        super().__init__(loader)
        shares: Any = sampler_of(loader)
        self._rank: int = shares.rank if _distributes(shares) else rank
        self._world_size: int = shares.num_replicas if _distributes(shares) else world_size
        self.sampler_of_all = sampler
        self._stateful = use_stateful_dataset
        self._current: _Pass | None = None
        # The value is a tuple, because a copy of this loader must not change it.
        self._open: tuple[_Pass, ...] = ()
        self._loaded: dict[str, Any] | None = None
        self._resumed = self._warned = False

    @property
    def keeps_position(self) -> bool:
        """True if the loader has its own `state_dict`, which includes the position."""
        return callable(getattr(self._loader, "state_dict", None))

    @property
    def reads_ahead(self) -> bool:
        """True if batches are read from the loader before the loop takes them."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the batches that follow the last batch that the loop has taken.

        Between passes, the state has no position: the next pass begins with the first batch. All workers have
        equal states, unless the program itself divides the samples, or the loader has a state of its own.
        While several passes are open, the position belongs to the pass from which the loop took the last
        batch.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        if any(each is not self._current for each in self._open) and not self._warned:
            self._warned = True
            log.warning(
                "two passes over the loader are open, and state_dict() describes the pass that has taken the "
                "last batch: delete the other iterator, so that the state belongs to the training loop"
            )
        current, ahead = self._current, self._taken_ahead()
        if current is None or (current.taken < ahead):
            return loader_state(self._loader, self.sampler_of_all)
        held, at = current.before, current.start.after(current.start.taken + current.taken - ahead)
        if self.keeps_position:
            held, at = loader_state(self._loader, self.sampler_of_all), replace(at, generators={}, kept=True)
        elif self._stateful and current.alone and not ahead and not self.reads_ahead:
            at = replace(at, stream=stream_state(self._loader))
        return {**held, "position": vars(at), "order": dict(current.order)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next pass continue at the position in a result of `state_dict`, which may come from
        another worker.
        """
        held = dict(state_dict)
        place = held.get("position", {})
        if place.get("kept") and (place["unit"], place["world_size"]) != self._shape():
            # The loader's own state counts the batches of the earlier workers, so the pass starts again.
            held = {name: each for name, each in held.items() if name not in ("loader", "batch_sampler")}
        load_loader_state(self._loader, self.sampler_of_all, held)
        self._resumed = bool(held.get("started"))
        self._loaded, self._current, self._open = held, None, ()

    def __iter__(self) -> Any:
        held = self._loaded
        if held is not None and self._current is not None:
            # A pass that has begun, but has not taken a batch, has changed the generators.
            self.load_state_dict(held)
            self._loaded = held
        position = None if held is None or "position" not in held else Position(**held["position"])
        order = self._order()
        begun: Mapping[str, Any] = {} if held is None else held.get("order", {})
        if (
            position is not None
            and self._is_of_this_pass(begun, order)
            and self._can_draw(begun)
            and self._has_samples(position, begun, order)
        ):
            iterator, current = self._continued(position, begun)
        else:
            self._check_last_pass()
            resumed, self._resumed = self._resumed, False
            before = loader_state(self._loader, self.sampler_of_all)
            # The order is equal on all workers if it does not depend on the generators.
            drawn = {} if "seed" in order else generator_states()
            start = Position(0, 0, *self._shape(), drawn, plain=self._plain())
            iterator, current = started_iterator(self._loader, resumed=resumed), _Pass(before, start, order)
        if not self._open:
            self._current = current
        return self._counted(self._delivered(iterator), current, held)

    def _delivered(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator over `batches` in the form in which the loop takes them."""
        return batches

    def _counted(
        self, batches: Iterator[Any], current: _Pass, held: Mapping[str, Any] | None
    ) -> Iterator[Any]:
        ended = False
        try:
            for batch in batches:
                current.taken += 1
                self._take(current, held)
                yield batch
            if not current.taken:
                self._take(current, held)
            ended = True
        finally:
            self._leave(current, ended or self._is_over(current))

    def _take(self, current: _Pass, held: Mapping[str, Any] | None) -> None:
        """Make `current` the pass that the state describes.

        With the first batch of the pass, the loaded state `held` is used up.
        """
        others = tuple(each for each in self._open if each is not current)
        if current.taken <= 1 and held is self._loaded:
            self._loaded = None
            for each in others:
                each.alone = False
        elif len(others) == len(self._open):
            return  # A different state was loaded after this pass had begun.
        self._open, self._current = (*others, current), current

    def _leave(self, current: _Pass, is_over: bool) -> None:
        """Close a pass; if its loop has left it before the end, an open pass around it is current again."""
        others = tuple(each for each in self._open if each is not current)
        if len(others) == len(self._open):
            return
        self._open = others
        if others and not is_over:
            self._current = others[-1]
        elif self._current is current and is_over and not self.has_position_at_end:
            self._current = None

    def _is_over(self, current: _Pass) -> bool:
        """Return True if the pass has no more batches; False if this is unknown.

        A loop over `zip(range(steps), loader)` does not ask for a batch after the last.
        """
        samples, batches = self._samples(), self._loader.batch_sampler
        at = current.start.after(current.start.taken + current.taken)
        if samples is None or self.keeps_position:
            return False
        if at.unit == BATCHES:
            steps = _length(self._loader)
            return steps is not None and at.consumed >= steps
        is_cut = self._world_size > 1 and getattr(sampler_of(self._loader), "drop_last", False)
        own = max(samples - at.consumed, 0) + (0 if is_cut else self._world_size - 1)
        least = at.unit // self._world_size if getattr(batches, "drop_last", False) else 1
        return own // self._world_size < least

    def _check_last_pass(self) -> None:
        last = self._current
        if last is None or not last.start.taken or last.taken != 1:
            return
        if self._rank == 0 and not self._open and not self.has_position_at_end:
            log.warning(
                "a pass continued at the loaded position of the loader, but its loop took only one batch, "
                "and the next pass starts with its first batch: look at a batch before load_state_dict()"
            )

    def _taken_ahead(self) -> int:
        """Return the number of batches that the loop has taken but not yet used."""
        return 0

    def _order(self) -> dict[str, Any]:
        """Return how the next pass draws its order: the seed and the epoch, or the rank of the worker that
        draws the order.
        """
        loader, sampler = self._loader, sampler_of(self._loader)
        if isinstance(loader, SharedStreamLoader):
            stream: Any = loader.dataset
            return {"seed": stream.seed, "epoch": stream.epoch}
        if isinstance(loader.dataset, IterableDataset):
            return {"rank": self._rank}
        if _distributes(sampler):
            drawn = {"seed": sampler.seed, "shuffle": sampler.shuffle, "epoch": sampler.epoch}
            return {**drawn, "samples": self._samples()}
        kind = type(sampler)
        plain = kind in (SequentialSampler, RandomSampler) and not getattr(sampler, "replacement", False)
        is_known = plain and len(sampler) == len(loader.dataset)  # type: ignore[arg-type]
        return {
            "rank": self._rank,
            "sampler": kind.__name__ if is_known else "",
            "samples": self._samples(),
        }

    def _samples(self) -> int | None:
        """Return the length of the order that this worker draws; None if unknown."""
        loader, sampler = self._loader, sampler_of(self._loader)
        return None if self._streams() else _length(loader.dataset if _distributes(sampler) else sampler)

    def _has_samples(self, position: Position, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
        counts = before.get("samples"), now.get("samples")
        is_own = before.get("rank") == self._rank and position.world_size == self._world_size
        # If the program itself divides the samples, workers may have different numbers of samples.
        if None in counts or counts[0] == counts[1] or (position.unit == BATCHES and not is_own):
            return True
        if self._rank == 0 or position.unit == BATCHES:
            log.warning(
                "the loaded position of the loader belongs to a pass over %d samples, but the loader has %d "
                "samples now, so this pass starts with its first batch, and samples are trained twice",
                *counts,
            )
        return False

    def _is_of_this_pass(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
        epochs = before.get("epoch"), now.get("epoch")
        if None in epochs or epochs[0] == epochs[1]:
            return True
        if self._rank == 0:
            log.warning(
                "the loaded position of the loader belongs to epoch %d, but epoch %d begins, so this pass "
                "starts with its first batch: call set_epoch(%d) to continue at the position",
                *epochs,
                epochs[0],
            )
        return False

    def _can_draw(self, order: Mapping[str, Any]) -> bool:
        if "seed" in order or not _distributes(self.sampler_of_all) or order.get("sampler"):
            return True
        if self._rank == 0:
            log.warning(
                "the pass of the loader began in the order of a sampler that is missing here, so it starts "
                "again: give the whole loader to prepare_data_loader, without a DistributedSampler"
            )
        return False

    def _continued(self, position: Position, order: Mapping[str, Any]) -> tuple[Iterator[Any], _Pass]:
        """Return the iterator over the rest of a pass that began with `order`, and its record."""
        loader, resumed = self._loader, self._resumed
        self._resumed = False
        what = "loader" if self._rank == 0 else ""
        position = position.on(*self._shape(), plain=self._plain(), what=what)
        before = loader_state(loader, self.sampler_of_all)
        if keeps_processes(loader):
            # This pass starts processes of a copy of the loader. The next pass starts the loader's own
            # processes, for which an uninterrupted run draws no seed then.
            before["started"], self._resumed = resumed or before["started"], True
        batches: Any = loader.batch_sampler
        indexed = isinstance(batches, BatchSampler) and not self._streams()
        if indexed and position.unit and not position.kept:
            start, copied = position, copy.copy(batches)
            copied.sampler = rest = self._rest(position.consumed, order)
            with generators_at(generator_states() if "seed" in order else position.generators):
                iterator = started_iterator(with_batches(loader, copied), resumed=resumed)
                # The sampler draws its order in this block, with the generators as they were before the pass.
                rest.draw()
        else:
            start = position
            is_other = order.get("rank", self._rank) != self._rank
            if is_other and not isinstance(loader, SharedStreamLoader):
                start = replace(position, stream={})
                if position.consumed and self._is_drawn():
                    log.warning(
                        "worker %d continues its own share of the samples with the state of worker %d: "
                        "unless the workers' random generators are equal, samples are repeated and left out. "
                        "Save state_dict() of each worker, and load it on the same worker",
                        self._rank,
                        order["rank"],
                    )
            iterator = iterator_at(loader, start, resumed=resumed, prepared=lambda each: each)
        return iterator, _Pass(before, start, order)

    def _rest(self, skipped: int, order: Mapping[str, Any]) -> Rest:
        """Return this worker's samples after `skipped` samples of all workers."""
        whole: Any = self.sampler_of_all
        if "seed" in order:
            data: Any = self._loader.dataset
            whole = DistributedSampler(data, 1, 0, shuffle=order["shuffle"], seed=order["seed"])
            whole.set_epoch(order["epoch"])
        elif _distributes(whole):
            whole = _whole_sampler(order["sampler"], self._loader)
        if self._world_size == 1:
            return Rest(whole, skipped)
        is_cut = getattr(sampler_of(self._loader), "drop_last", False)
        return Rest(_Dealt(whole, skipped, self._rank, self._world_size, is_cut))

    def _shape(self) -> tuple[int, int]:
        """Return the number of samples of a batch, and the number of workers that share them."""
        loader, batches = self._loader, self._loader.batch_sampler
        if not self._streams() and type(batches) is BatchSampler and _distributes(batches.sampler):
            return batches.batch_size * self._world_size, self._world_size
        return unit_of(loader, self._world_size), self._world_size

    def _is_drawn(self) -> bool:
        sampler = sampler_of(self._loader)
        torchs = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
        return isinstance(sampler, torchs) or hasattr(sampler, "generator")

    def _streams(self) -> bool:
        return isinstance(self._loader.dataset, IterableDataset)

    def _plain(self) -> bool:
        """Return True if this worker reads a stream alone, with the generators of its process."""
        return self._streams() and not isinstance(self._loader, SharedStreamLoader)


def _distributes(sampler: Any) -> bool:
    # A subclass of the sampler may draw a different order.
    return type(sampler) is DistributedSampler


def _length(items: Any) -> int | None:
    try:
        return len(items)
    except (TypeError, NotImplementedError):  # A sampler may have no length.
        return None


def _whole_sampler(kind: str, loader: DataLoader[Any]) -> Iterable[int]:
    data: Any = loader.dataset
    shuffles = kind == RandomSampler.__name__
    return RandomSampler(data, generator=loader.generator) if shuffles else SequentialSampler(data)


@dataclass
class _Dealt:
    """A worker's samples of the rest of an order, as torch's `DistributedSampler` deals them.

    All workers get equally many samples. If the samples can't be divided evenly, samples from the beginning
    of the order are repeated or, with `is_cut`, the last samples are left out. The order is drawn when the
    iteration begins.
    """

    whole: Iterable[int]
    skipped: int
    rank: int
    world_size: int
    is_cut: bool

    def __iter__(self) -> Iterator[int]:
        order = list(self.whole)
        rest = order[self.skipped :]
        if self.is_cut:
            rest = rest[: len(rest) - len(rest) % self.world_size]
        rest += itertools.islice(itertools.cycle(order), -len(rest) % self.world_size)
        return iter(rest[self.rank :: self.world_size])
