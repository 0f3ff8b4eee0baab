"""Iterators whose items are made in several processes, by the names of `ray.util.iter`.

A shard is an actor that makes items as they are asked for, and some milliseconds of them ahead.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainkit.clock import SYSTEM
from trainkit.errors import ArgumentTypeError, ConfigError
from trainkit.runtime.api import get, remote, wait
from trainkit.runtime.session import running

__all__ = [
    "LocalIterator",
    "ParallelIterator",
    "ParallelIteratorWorker",
    "from_actors",
    "from_items",
    "from_iterators",
    "from_range",
]

Stage = Callable[[Iterator[Any]], Iterator[Any]]

_AHEAD_S = 0.005
_MOST_ITEMS = 1_000


def from_items(items: Sequence[Any], num_shards: int = 2, repeat: bool = False) -> ParallelIterator:
    """Return an iterator over a list, dealt in turn to the shards.

    Args:
        items: what to iterate over.
        num_shards: processes among which they are dealt.
        repeat: start again at the end, without end.
    """
    _require_shards(num_shards)
    listed = list(items)
    return from_iterators([listed[shard::num_shards] for shard in range(num_shards)], repeat)


def from_range(n: int, num_shards: int = 2, repeat: bool = False) -> ParallelIterator:
    """Return an iterator over the numbers below `n`: shards have parts of one size, the last also the rest.

    Args:
        n: the end, which is not among them.
        num_shards: see `from_items`, also for the next.
        repeat: as above.
    """
    _require_shards(num_shards)
    size = n // num_shards
    ends = [*(size * shard for shard in range(num_shards)), n]
    return from_iterators([range(*bounds) for bounds in itertools.pairwise(ends)], repeat)


def from_iterators(
    generators: Sequence[Iterable[Any] | Callable[[], Iterable[Any]]],
    repeat: bool = False,
    name: str | None = None,
) -> ParallelIterator:
    """Return an iterator with a shard for each of some iterables.

    Args:
        generators: iterables that can be pickled, or functions that return one.
        repeat: see `from_items`.
        name: shown by `repr`.
    """
    make: Any = remote(ParallelIteratorWorker)
    actors = [make.options(label="ParallelIterator").remote(each, repeat) for each in generators]
    return from_actors(actors, name)


def from_actors(actors: Sequence[Any], name: str | None = None) -> ParallelIterator:
    """Return an iterator with a shard for each actor; their class extends `ParallelIteratorWorker`.

    Args:
        actors: their handles.
        name: shown by `repr`.
    """
    _require_shards(len(actors))
    return ParallelIterator([_Shard(actor, ()) for actor in actors], name or f"shards={len(actors)}")


def _require_shards(count: int) -> None:
    if count < 1:
        raise ConfigError(f"{count} shards: give 1 or more")


class _Shard(NamedTuple):
    actor: Any
    stages: tuple[Stage, ...]

    def then(self, stage: Stage) -> _Shard:
        return self._replace(stages=(*self.stages, stage))


class _Iteration:
    """Items of one pass over a shard, each for one of several readers in turn."""

    def __init__(self, items: Iterator[Any], readers: int) -> None:
        self.items = items
        self.number = 0
        self.queues: list[deque[Any]] = [deque() for _ in range(readers)]
        self.ended: set[int] = set()

    def next_of(self, reader: int) -> Any:
        while not self.queues[reader]:
            item = next(self.items)
            owner = self.number % len(self.queues)
            if owner not in self.ended:
                self.queues[owner].append(item)
            self.number += 1
        return self.queues[reader].popleft()


class ParallelIteratorWorker:
    """Shard of a parallel iterator; a class of the user's that extends it may be an actor with more methods.

    Args:
        item_generator: an iterable, or a function that returns one.
        repeat: start again at the end, without end.
    """

    def __init__(self, item_generator: Any, repeat: bool) -> None:
        self._source = item_generator
        self._repeat = repeat
        self._iterations: dict[str, _Iteration] = {}

    def par_iter_start(self, iteration: str, stages: Sequence[Stage], readers: int = 1) -> None:
        """Begin a pass; nothing if another reader has begun it."""
        if iteration not in self._iterations:
            items = self._items(iteration)
            for stage in stages:
                items = stage(items)
            self._iterations[iteration] = _Iteration(items, readers)

    def _items(self, iteration: str) -> Iterator[Any]:
        while True:
            source = self._source() if callable(self._source) else self._source
            is_empty = True
            for item in source.of(iteration) if isinstance(source, _Slice) else source:
                is_empty = False
                yield item
            if is_empty or not self._repeat:
                return

    def par_iter_take(self, iteration: str, reader: int = 0, ahead_s: float = 0.0) -> tuple[list[Any], bool]:
        """Return the next items, at least one, made for `ahead_s`; and whether these are the last."""
        taken: list[Any] = []
        end = SYSTEM.monotonic() + ahead_s
        pass_over = self._iterations[iteration]
        pass_over.ended.discard(reader)
        try:
            while not taken or (SYSTEM.monotonic() < end and len(taken) < _MOST_ITEMS):
                taken.append(pass_over.next_of(reader))
        except StopIteration:
            self.par_iter_end(iteration, reader)
            return taken, True
        except BaseException:
            self.par_iter_end(iteration, reader)
            raise
        return taken, False

    def par_iter_end(self, iteration: str, reader: int = 0) -> None:
        """End a pass for one of its readers, and with the last of them for good."""
        pass_over = self._iterations.get(iteration)
        if pass_over is not None:
            pass_over.ended.add(reader)
            pass_over.queues[reader].clear()
            if len(pass_over.ended) == len(pass_over.queues):
                del self._iterations[iteration]


class _Slice(NamedTuple):
    """Every so-many-th item of some shards: what one shard of a repartition has."""

    parents: tuple[_Shard, ...]
    reader: int
    readers: int

    def of(self, iteration: str) -> Iterator[Any]:
        readers = [_Reader(parent, iteration, self.reader, self.readers) for parent in self.parents]
        yield from _in_turn(readers)


class _Reader:
    """Items of a shard, asked for before they are needed; the pass ends with the reader.

    Args:
        shard: where they are made.
        iteration: names the pass.
        reader: number of this one among those that share it.
        readers: how many share it.
        ahead_s: seconds for which a request makes items.
    """

    is_last = True

    def __init__(
        self, shard: _Shard, iteration: str, reader: int = 0, readers: int = 1, ahead_s: float = _AHEAD_S
    ) -> None:
        self._actor = shard.actor
        self._arguments = (iteration, reader, ahead_s)
        self.started = shard.actor.par_iter_start.remote(iteration, shard.stages, readers)
        self._items: deque[Any] = deque()
        self.ref: Any = self._ask()
        self._engine = running()
        self.is_last = False

    def __del__(self) -> None:
        if not self.is_last and running() is self._engine:
            self._actor.par_iter_end.remote(*self._arguments[:2])

    def _ask(self) -> Any:
        return self._actor.par_iter_take.remote(*self._arguments)

    def next(self) -> Any:
        """Return the next item.

        Raises:
            StopIteration: there is none.
        """
        while not self._items:
            if self.is_last:
                raise StopIteration
            self._items.extend(self.taken())
        return self._items.popleft()

    def taken(self) -> list[Any]:
        """Return what was asked for, and ask for more."""
        try:
            get(self.started)
            items, self.is_last = get(self.ref)
        except Exception:
            self.is_last = True  # the shard has ended the pass, or is dead
            raise
        self.ref = None if self.is_last else self._ask()
        return list(items)


def _in_turn(readers: list[_Reader]) -> Iterator[Any]:
    while readers:
        for reader in list(readers):
            try:
                yield reader.next()
            except StopIteration:
                readers.remove(reader)


class _Stages:
    """Methods that change what an iterator yields; a subclass says where they run."""

    def transform(self, fn: Stage) -> Any:
        """Return the iterator of what `fn` makes of an iterator."""
        raise NotImplementedError(f"{type(self).__name__} must define transform()")

    def for_each(
        self, fn: Callable[[Any], Any], max_concurrency: int = 1, resources: dict[str, Any] | None = None
    ) -> Any:
        """Return an iterator of `fn` of each item.

        Args:
            fn: called with an item.
            max_concurrency: more than 1: calls are tasks, so many at a time; their order stays.
            resources: options of these tasks, such as {"num_gpus": 1}.
        """
        if max_concurrency < 1:
            raise ConfigError(f"max_concurrency={max_concurrency}: give 1 or more")
        if max_concurrency == 1 and not resources:
            return self.transform(_Map(fn))
        return self.transform(_Tasks(fn, max_concurrency, resources or {}))

    def filter(self, fn: Callable[[Any], bool]) -> Any:
        """Return an iterator of the items for which `fn` is true."""
        return self.transform(_Filter(fn))

    def batch(self, n: int) -> Any:
        """Return an iterator of lists of `n` items; the last may be shorter."""
        if n < 1:
            raise ConfigError(f"batch({n}): give 1 or more")
        return self.transform(_Batch(n))

    def flatten(self) -> Any:
        """Return an iterator of the items of each item."""
        return self.transform(itertools.chain.from_iterable)

    def combine(self, fn: Callable[[Any], Iterable[Any]]) -> Any:
        """Return an iterator of the items of `fn` of each item."""
        return self.for_each(fn).flatten()


@dataclass(frozen=True)
class _Map:
    fn: Callable[[Any], Any]

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        return map(self.fn, items)


@dataclass(frozen=True)
class _Filter:
    fn: Callable[[Any], bool]

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        return filter(self.fn, items)


@dataclass(frozen=True)
class _Batch:
    size: int

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        return iter(lambda: [*itertools.islice(items, self.size)], [])


@dataclass(frozen=True)
class _Shuffle:
    size: int
    seed: int | None

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        chance = random.Random(self.seed)
        held: list[Any] = []
        for item in items:
            held.append(item)
            if len(held) >= self.size:
                yield held.pop(chance.randrange(len(held)))
        chance.shuffle(held)
        yield from held


@dataclass(frozen=True)
class _Tasks:
    fn: Callable[[Any], Any]
    most: int
    options: dict[str, Any]

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        call: Any = remote(_call)
        call = call.options(**self.options) if self.options else call
        running: deque[Any] = deque()
        for item in items:
            running.append(call.remote(self.fn, item))
            if len(running) >= self.most:
                yield get(running.popleft())
        while running:
            yield get(running.popleft())


def _call(fn: Callable[[Any], Any], item: Any) -> Any:
    return fn(item)


class ParallelIterator(_Stages):
    """Iterator whose items are made in shards; methods return another one, and nothing runs until it is read.

    Read it by `gather_sync`, `gather_async`, `take`, or shard by shard.
    """

    def __init__(self, shards: Sequence[_Shard], name: str) -> None:
        self._shards = tuple(shards)
        self.name = name

    def __repr__(self) -> str:
        return f"ParallelIterator[{self.name}]"

    def __iter__(self) -> Iterator[Any]:
        raise ArgumentTypeError(
            "call gather_sync() or gather_async() to iterate over the items of the shards"
        )

    def transform(self, fn: Stage) -> ParallelIterator:
        return ParallelIterator([shard.then(fn) for shard in self._shards], self.name)

    def local_shuffle(self, shuffle_buffer_size: int, seed: int | None = None) -> ParallelIterator:
        """Return an iterator that draws each item from so many; each shard shuffles its own."""
        return self.transform(_shuffle(shuffle_buffer_size, seed))

    def repartition(self, num_partitions: int, batch_ms: int = 0) -> ParallelIterator:
        """Return an iterator with so many shards, to which the items are dealt in turn.

        Args:
            num_partitions: how many.
            batch_ms: without effect: items travel together as they come.
        """
        del batch_ms
        _require_shards(num_partitions)
        parts = [_Slice(self._shards, reader, num_partitions) for reader in range(num_partitions)]
        return from_iterators([_Whole(part) for part in parts], name=self.name)

    def gather_sync(self) -> LocalIterator:
        """Return an iterator in this process that takes an item from each shard in turn."""
        return LocalIterator(lambda: _in_turn(self._readers()), self.name)

    def gather_async(self, batch_ms: int = 0, num_async: int = 1) -> LocalIterator:
        """Return an iterator in this process over items as they come.

        Args:
            batch_ms: milliseconds for which a shard makes items before it gives them away.
            num_async: without effect: a shard makes items while earlier ones are read.
        """
        if batch_ms < 0 or num_async < 1:
            raise ConfigError(
                f"gather_async(batch_ms={batch_ms}, num_async={num_async}): give 0 and 1, or more"
            )
        return LocalIterator(lambda: self._arriving(batch_ms / 1000), self.name)

    def batch_across_shards(self) -> LocalIterator:
        """Return an iterator over lists of the next item of each shard that has one."""

        def rounds() -> Iterator[list[Any]]:
            readers = self._readers()
            while readers:
                found = []
                for reader in list(readers):
                    try:
                        found.append(reader.next())
                    except StopIteration:
                        readers.remove(reader)
                if found:
                    yield found

        return LocalIterator(rounds, self.name)

    def part(self, iteration: str, reader: int, readers: int) -> Iterator[Any]:
        """Iterate over every so-many-th item of each shard, in a pass that several readers share.

        Args:
            iteration: names the pass; one that all have read to its end begins anew.
            reader: number of this one.
            readers: how many there are.
        """
        return _Slice(self._shards, reader, readers).of(iteration)

    def _readers(self, ahead_s: float = _AHEAD_S) -> list[_Reader]:
        iteration = uuid.uuid4().hex
        return [_Reader(shard, iteration, ahead_s=ahead_s) for shard in self._shards]

    def _arriving(self, ahead_s: float) -> Iterator[Any]:
        readers = {reader.ref: reader for reader in self._readers(ahead_s)}
        while readers:
            (ref,), _ = wait(list(readers))
            reader = readers.pop(ref)
            items = reader.taken()
            if not reader.is_last:
                readers[reader.ref] = reader
            yield from items

    def take(self, n: int) -> list[Any]:
        """Return the first `n` items at most."""
        return self.gather_sync().take(n)

    def show(self, n: int = 20) -> None:
        """Print the first `n` items at most."""
        self.gather_sync().show(n)

    def union(self, other: ParallelIterator) -> ParallelIterator:
        """Return an iterator with the shards of this one and of another."""
        if not isinstance(other, ParallelIterator):
            raise ArgumentTypeError(f"union({other!r}): give a ParallelIterator")
        return ParallelIterator([*self._shards, *other._shards], f"{self.name}+{other.name}")

    def select_shards(self, shards_to_keep: Sequence[int]) -> ParallelIterator:
        """Return an iterator over some of the shards, by their numbers."""
        _require_shards(len(shards_to_keep))
        return ParallelIterator([self._shards[number] for number in shards_to_keep], self.name)

    def num_shards(self) -> int:
        """Return how many shards there are."""
        return len(self._shards)

    def shards(self) -> list[LocalIterator]:
        """Return an iterator for each shard, which another process may read."""
        return [self.get_shard(number) for number in range(self.num_shards())]

    def get_shard(self, shard_index: int, batch_ms: int = 0, num_async: int = 1) -> LocalIterator:
        """Return an iterator over one shard, which another process may read.

        Args:
            shard_index: its number.
            batch_ms: see `gather_async`, for this and the next.
            num_async: as above.
        """
        if not 0 <= shard_index < self.num_shards():
            raise ConfigError(f"get_shard({shard_index}): there are {self.num_shards()} shards, from 0")
        return self.select_shards([shard_index]).gather_async(batch_ms, num_async)


class _Whole(NamedTuple):
    """Function that returns a slice, which the shard gives its own pass."""

    part: _Slice

    def __call__(self) -> _Slice:
        return self.part


def _shuffle(size: int, seed: int | None) -> _Shuffle:
    if size < 1:
        raise ConfigError(f"shuffle_buffer_size={size}: give 1 or more")
    return _Shuffle(size, seed)


class LocalIterator(_Stages):
    """Iterator in one process, with the methods of a parallel one; each `iter` is a pass of its own.

    Args:
        make: makes an iterator over the items.
        name: shown by `repr`.
    """

    def __init__(self, make: Callable[[], Iterator[Any]], name: str) -> None:
        self._make = make
        self.name = name
        self._current: Iterator[Any] | None = None

    def __repr__(self) -> str:
        return f"LocalIterator[{self.name}]"

    def __iter__(self) -> Iterator[Any]:
        return self._make()

    def __next__(self) -> Any:
        self._current = self._current or self._make()
        return next(self._current)

    def transform(self, fn: Stage) -> LocalIterator:
        return LocalIterator(lambda: fn(iter(self)), self.name)

    def shuffle(self, shuffle_buffer_size: int, seed: int | None = None) -> LocalIterator:
        """Return an iterator that draws each item from so many."""
        return self.transform(_shuffle(shuffle_buffer_size, seed))

    def take(self, n: int) -> list[Any]:
        """Return the first `n` items at most."""
        return [*itertools.islice(self, n)]

    def show(self, n: int = 20) -> None:
        """Print the first `n` items at most."""
        for item in self.take(n):
            print(item)  # noqa: T201

    def duplicate(self, n: int) -> list[LocalIterator]:
        """Return `n` iterators over one pass, whose items are kept until all have read them."""
        copies = itertools.tee(self, n)
        return [LocalIterator(lambda copy=copy: copy, self.name) for copy in copies]  # type: ignore[misc]

    def union(self, *others: LocalIterator, deterministic: bool = False) -> LocalIterator:
        """Return an iterator that takes an item from this one and each other in turn.

        Args:
            others: further iterators.
            deterministic: without effect: the order is always the same.
        """
        del deterministic

        def items() -> Iterator[Any]:
            left = [iter(each) for each in (self, *others)]
            while left:
                for each in list(left):
                    try:
                        yield next(each)
                    except StopIteration:
                        left.remove(each)

        return LocalIterator(items, self.name)
