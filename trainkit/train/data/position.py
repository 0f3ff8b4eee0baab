"""State of a loader: random states, and the position in a pass at which a later run continues.

    state before the pass, and number of samples ──▶ draw the same order again ──▶ skip ──▶ next batch

Only the sampler's indices are skipped, so no sample is loaded twice. The number of workers may differ,
because the position counts the samples of all workers.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from trainkit.errors import CheckpointError, ConfigError
from trainkit.train.checkpoint.state import generator_states, load_generator_states
from trainkit.train.data.sharding import ShardedBatchSampler, with_attributes, with_batches
from trainkit.train.data.streams import SharedStreamLoader

log = logging.getLogger(__name__)

BATCHES = 0
"""Value of `Position.unit` for a loader whose batches are counted, because their sizes are unknown."""


@dataclass(frozen=True)
class Position:
    """Position after some batches of an epoch.

    Attributes:
        taken: number of batches of the epoch before the position, over all passes.
        consumed: number of samples of the current pass before the position, over all workers. If `unit` is
            BATCHES, the number of this worker's batches.
        unit: number of samples of a batch, over all workers; BATCHES if unknown.
        world_size: number of workers that shared the samples.
        generators: result of `generator_states` before the pass.
        kept: True if the loader's own state includes the position, so that no samples must be skipped.
        plain: True if the data is a stream that one worker reads alone, with the generators of its process.
        stream: result of `stream_state` at the position; empty if the stream must be read again.
    """

    taken: int = 0
    consumed: int = 0
    unit: int = BATCHES
    world_size: int = 1
    generators: Mapping[str, Any] = field(default_factory=dict)
    kept: bool = False
    plain: bool = False
    stream: Mapping[str, Any] = field(default_factory=dict)

    def after(self, batches: int) -> Position:
        """Return the position at which `batches` batches of the epoch have been taken."""
        more = (batches - self.taken) * (self.unit or 1)
        return replace(self, taken=batches, consumed=self.consumed + more, stream={})

    def on(self, unit: int, world_size: int, *, plain: bool, what: str) -> Position:
        """Return this position for a loader with a different batch size or number of workers.

        If the program itself splits the data, or the loader keeps its position, the position on a different
        number of workers is unknown. The pass then starts again, with a warning.

        Args:
            unit: see the attributes.
            world_size: see the attributes.
            plain: see the attributes.
            what: name of the loader, for warnings; if the name is "", no warning is logged.
        """
        moved = (unit, world_size) != (self.unit, self.world_size)
        if (self.kept and moved) or (BATCHES in (unit, self.unit) and world_size != self.world_size):
            if what:
                log.warning(
                    "the position in the %s is only known for %d workers, but %d train now: the pass starts "
                    "again from its first batch, so samples are trained twice",
                    what,
                    self.world_size,
                    world_size,
                )
            return Position(taken=self.taken, unit=unit, world_size=world_size, plain=plain)
        if plain != self.plain and what:
            log.warning(
                "the stream of the %s continues after %d samples with a different number of workers: if it "
                "draws random numbers, its order is different, and samples may be trained twice",
                what,
                self.consumed,
            )
        return replace(self, unit=unit, world_size=world_size, plain=plain)


def unit_of(loader: Any, world_size: int) -> int:
    """Return the number of samples in a batch of `loader` over all workers; BATCHES if unknown."""
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(batches, ShardedBatchSampler):
        return batches.global_batch_size
    if isinstance(loader, SharedStreamLoader):
        return loader.deal.global_batch_size
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        # Each loader process of a plain loader reads the whole stream. So samples are counted only if the
        # loader has no processes.
        alone = world_size == 1 and isinstance(loader, DataLoader) and loader.num_workers == 0
        return loader.batch_size or BATCHES if alone else BATCHES
    return int(batches.batch_size) if type(batches) is BatchSampler and world_size == 1 else BATCHES


@contextmanager
def generators_at(held: Mapping[str, Any]) -> Iterator[None]:
    """Set the random generators to `held` for the duration of the block."""
    now = generator_states()
    load_generator_states(held)
    try:
        yield
    finally:
        load_generator_states(now)


def advanced(loader: Any, position: Position) -> tuple[Any, Rest]:
    """Return a copy of `loader`, for one pass, that starts at `position`, and the object in the copy that
    skips.

    Samples of a data set without indices and without a state are read and discarded.
    """
    skipped = position.consumed
    if position.kept:
        rest = Rest((), 0)
        return loader, rest
    if isinstance(loader, SharedStreamLoader):
        loader.start_at(skipped, position.stream)
        return loader, Rest(())
    if position.stream and keeps_stream(loader):
        loader.dataset.load_state_dict(position.stream["source"])
        return loader, Rest(())
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        if skipped % (position.unit or 1):
            raise CheckpointError(
                f"{skipped} samples of the stream were used, not a multiple of the batch size "
                f"{position.unit}: use the same global batch size as before, or another number of workers"
            )
        rest = Rest(loader, skipped // (position.unit or 1), ahead=0)
        return rest, rest
    batches: Any = loader.batch_sampler
    if batches is None:
        rest = Rest(loader.sampler, skipped)
        return with_attributes(loader, sampler=rest), rest
    if isinstance(batches, ShardedBatchSampler):
        batches.start_at(skipped)
        rest = Rest(batches)
    elif position.unit == BATCHES:
        rest = Rest(batches, skipped)
    else:
        samples = Rest(batches.sampler, skipped)
        rest = Rest(BatchSampler(samples, batches.batch_size, batches.drop_last))
    return with_batches(loader, rest), rest


def keeps_stream(loader: Any) -> bool:
    """Return True if this process reads a stream, and the stream's data set has a state from which it can
    continue.
    """
    source = getattr(loader, "dataset", None)
    if not isinstance(source, IterableDataset) or getattr(loader, "num_workers", 1) > 0:
        return False
    source = getattr(source, "source", source) if isinstance(loader, SharedStreamLoader) else source
    return callable(getattr(source, "state_dict", None)) and callable(
        getattr(source, "load_state_dict", None)
    )


def check_stateful(loader: Any, what: str) -> None:
    """Raise a ConfigError if `use_stateful_dataset` is not possible for the loader that is called `what`."""
    if not keeps_stream(loader):
        raise ConfigError(
            f"use_stateful_dataset=True is not supported for this {what}: it needs a DataLoader without "
            "processes (num_workers=0) over an IterableDataset that has state_dict() and load_state_dict()"
        )


def stream_state(loader: Any) -> dict[str, Any]:
    """Return the state of a loader's stream, after the batches that were read."""
    if isinstance(loader, SharedStreamLoader):
        stream: Any = loader.dataset
        return stream.state()  # type: ignore[no-any-return]
    return {"source": copy.deepcopy(loader.dataset.state_dict())}


class Rest(Iterator[Any]):
    """Items of one pass over `items` after the first `skipped`.

    Args:
        items: indices, batches of indices, or batches of data.
        skipped: number of items to skip.
        ahead: number of items that `draw` takes in advance, so that a sampler draws its order.
    """

    def __init__(self, items: Iterable[Any], skipped: int = 0, *, ahead: int = 1) -> None:
        self._items = items
        self._skipped = skipped
        self._ahead = ahead
        self._rest: Iterator[Any] | None = None

    def draw(self) -> Iterator[Any]:
        """Begin the pass, unless it has begun: skip the items, and return the iterator over the rest."""
        if self._rest is None:
            items = iter(self._items)
            deque(itertools.islice(items, self._skipped), maxlen=0)
            self._rest = itertools.chain(list(itertools.islice(items, self._ahead)), items)
        return self._rest

    def __next__(self) -> Any:
        return next(self.draw())


def loader_state(loader: Any, sampler: Any) -> dict[str, Any]:
    """Return the random states of a loader and its sampler, and their `state_dict()` if they have one.

    Args:
        loader: loader of the batches.
        sampler: the user's sampler, which decides the order, or None.
    """
    held: dict[str, Any] = {"started": keeps_processes(loader) and loader._iterator is not None}
    for name, owner in _keepers(loader, sampler):
        if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
            held[f"{name}_generator"] = generator.get_state()
        if callable(getattr(owner, "state_dict", None)):
            held[name] = owner.state_dict()
    if isinstance(loader, SharedStreamLoader):
        held["seed"] = loader.dataset.seed  # type: ignore[attr-defined]
    return held


def load_loader_state(loader: Any, sampler: Any, held: Mapping[str, Any]) -> None:
    """Load a result of `loader_state`."""
    for name, owner in _keepers(loader, sampler):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and f"{name}_generator" in held:
            generator.set_state(held[f"{name}_generator"])
        if name in held and callable(getattr(owner, "load_state_dict", None)):
            owner.load_state_dict(held[name])
    if isinstance(loader, SharedStreamLoader) and "seed" in held:
        loader.dataset.seed = held["seed"]  # type: ignore[attr-defined]
    if keeps_processes(loader) and not held.get("started"):
        # If persistent processes were started after the state was saved, the next pass would skip a random
        # draw.
        loader._iterator = None


def _keepers(loader: Any, sampler: Any) -> list[tuple[str, Any]]:
    batches = getattr(loader, "batch_sampler", None)
    own = [] if isinstance(batches, ShardedBatchSampler) else [("batch_sampler", batches)]
    return [("loader", loader), ("sampler", sampler), *own]


def iterator_at(
    loader: Any, position: Position, *, resumed: bool, prepared: Callable[[Any], Any]
) -> Iterator[Any]:
    """Return the iterator of a pass that starts at `position`.

    Args:
        loader: the loader.
        position: the position, for this loader.
        resumed: see `started_iterator`.
        prepared: function that returns the loader to iterate over.
    """
    with generators_at(position.generators):
        loader, rest = advanced(loader, position)
        iterator = started_iterator(prepared(loader), resumed=resumed)
        # The sampler draws its order in this block, with the generators as they were before the pass.
        rest.draw()
    return iterator


def started_iterator(loader: Any, *, resumed: bool) -> Iterator[Any]:
    """Return the loader's iterator.

    Args:
        loader: loader of the batches.
        resumed: True if a loaded state came from a loader that had already started its persistent workers. A
            loader with persistent workers draws their seed only once, at their start, so a resumed loader
            must not draw it again. The generators inside the workers start again, because they have ended
            with the workers' processes.
    """
    if not resumed or not keeps_processes(loader) or loader._iterator is not None:
        return iter(loader)
    before = loader.generator
    # The iterator draws from a copy of this process's generator, so the generator itself does not advance.
    loader.generator = torch.Generator()
    loader.generator.set_state(torch.get_rng_state())
    try:
        return iter(loader)
    finally:
        loader.generator = before


def keeps_processes(loader: Any) -> bool:
    """Return True if the loader's processes persist from one pass to the next."""
    return isinstance(loader, DataLoader) and loader.persistent_workers and loader.num_workers > 0
