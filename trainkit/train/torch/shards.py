"""Shards of data sets, which divide the samples among the workers of a training function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.data import IterableDataset, default_collate

from trainkit.errors import ConfigError
from trainkit.train.distributed.tensors import map_tensors
from trainkit.train.torch.context import metered
from trainkit.tune.core.checks import require, require_whole


@dataclass(frozen=True)
class DataConfig:
    """Settings for sharing a trainer's data sets among its workers.

    Args:
        datasets_to_split: "all", or names of the data sets to divide among the workers; each worker gets all
            samples of other data sets.
        seed: number that, added to the epoch's number, is the seed by which an indexable data set is shuffled
            in each epoch; None means no shuffling. With a `DataLoader` over the shard, call `shard.set_epoch`
            before each pass.

    Raises:
        ConfigError: a value is out of range.
    """

    datasets_to_split: Literal["all"] | Sequence[str] = "all"
    seed: int | None = None

    def __post_init__(self) -> None:
        names = self.datasets_to_split
        require(
            names == "all" or not isinstance(names, str),
            f"datasets_to_split must be 'all' or a list of names, not {names!r}",
        )
        require_whole("seed", self.seed, 0, optional=True)


class Batches:
    """Iterable of a shard's batches; each iteration is a new pass over the shard.

    Args:
        start: function that starts a pass and returns an iterator over its batches.
    """

    def __init__(self, start: Callable[[], Iterator[Any]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return metered(self._start())

    def map(self, function: Callable[[Any], Any]) -> Batches:
        """Return an iterable of the batches with `function` applied to each batch."""
        return Batches(lambda: map(function, self._start()))


class DatasetShard:
    """One worker's share of a data set; each pass over the shard is an epoch.

    All shards have equal lengths; surplus samples are left out. If the data set is indexable, a worker gets
    the samples at the positions rank, rank + n, rank + 2 n, ... in the epoch's order, with n workers.

    `iter` always starts a pass at the first sample. An interrupted pass counts as a complete epoch. A pass
    starts in the middle only after a call of `load_state_dict`.

    If a `DataLoader` reads an indexable shard by index, no pass starts, so the order stays constant until
    `set_epoch` is called. Loader processes with `persistent_workers=True` do not notice a call of
    `set_epoch`.

    Args:
        data: an indexable data set with a length, or any iterable.
        rank: rank of the worker.
        world_size: number of workers that share the data set.
        seed: seed of the shuffling, as in `DataConfig`; None means no shuffling.
    """

    def __init__(self, data: Any, rank: int, world_size: int, seed: int | None = None) -> None:
        self._data = data
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._drawn: tuple[tuple[int, int], Sequence[int]] | None = None
        self.set_epoch(0)

    def __len__(self) -> int:
        if not _indexable(self._data):
            raise TypeError("this data set has no length: iterate over it")
        return len(self._data) // self._world_size

    def count(self) -> int:
        """Return the number of this worker's samples; to count a stream, read it to its end."""
        return len(self) if _indexable(self._data) else sum(1 for _ in self._of_stream())

    def __getitem__(self, index: int) -> Any:
        """Return this worker's sample at `index` in the epoch's order; `DataLoader` reads shards this way."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        return self._data[self._order(self._position["epoch"])[index % len(self)]]

    def __iter__(self) -> Iterator[Any]:
        return self._begin(iter)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the number of the next pass, which determines the order if a seed is set."""
        self.load_state_dict({"epoch": epoch, "taken": 0})

    def state_dict(self) -> dict[str, int]:
        """Return the number of the latest pass as `epoch`, and the number of samples that this pass has
        returned as `taken`.

        A sample is counted when the shard returns it, so prefetched samples are counted before they are used.
        Samples that a `DataLoader` reads by index are not counted.
        """
        return dict(self._position)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Make the next pass start where `state_dict` was called; later passes start at the beginning.

        The pass continues with the same samples if the same method starts it, with the same
        `local_shuffle_buffer_size` and `local_shuffle_seed`.
        """
        self._position = self._next = {"epoch": state["epoch"], "taken": state["taken"]}

    def iter_rows(self) -> Iterator[Any]:
        """Return an iterator over this worker's samples."""
        return iter(self)

    def iter_torch_batches(
        self,
        *,
        batch_size: int = 256,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        device: torch.device | str | None = None,
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None,
        prefetch_batches: int = 1,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Batches:
        """Return an iterable of batches of tensors; each iteration over it is a pass, which is an epoch.

        Args:
            batch_size: number of samples in a batch of this worker.
            collate_fn: function that makes a batch from a list of samples; None means torch's default
                function.
            drop_last: True leaves out an incomplete last batch.
            device: device for the tensors.
            dtypes: data type of all tensors, or data types by key of a batch; None keeps the data types.
            prefetch_batches: Ray's argument; has no effect.
            local_shuffle_buffer_size: number of upcoming samples in a buffer from which the next sample is
                drawn at random; None means no such shuffling.
            local_shuffle_seed: seed of the random draws from the buffer, which are the same in each pass.

        Raises:
            ConfigError: `local_shuffle_buffer_size` is below 1.
        """
        require_whole("local_shuffle_buffer_size", local_shuffle_buffer_size, 1, optional=True)
        collate = default_collate if collate_fn is None else collate_fn

        def drawn(places: Iterable[Any]) -> Iterator[Any]:
            if local_shuffle_buffer_size is None:
                return iter(places)
            return _shuffled(iter(places), local_shuffle_buffer_size, local_shuffle_seed)

        def start() -> Iterator[Any]:
            samples = self._begin(drawn)
            lists = iter(lambda: list(itertools.islice(samples, batch_size)), [])
            full = (batch for batch in lists if not drop_last or len(batch) == batch_size)
            return (_moved(collate(batch), device, dtypes) for batch in full)

        return Batches(start)

    def iter_batches(self, **options: Any) -> Batches:
        """Return an iterable of batches of NumPy arrays; `iter_torch_batches` describes the arguments."""
        return self.iter_torch_batches(**options).map(partial(map_tensors, lambda tensor: tensor.numpy()))

    def _begin(self, drawn: Callable[[Iterable[Any]], Iterator[Any]]) -> Iterator[Any]:
        """Start a pass and return an iterator over its samples; `drawn` changes the epoch's order."""
        # Each pass has its own position, because an interrupted pass may continue while the next pass runs.
        position = self._position = self._next
        self._next = {"epoch": position["epoch"] + 1, "taken": 0}
        return self._samples(position, drawn)

    def _samples(
        self, position: dict[str, int], drawn: Callable[[Iterable[Any]], Iterator[Any]]
    ) -> Iterator[Any]:
        indexable = _indexable(self._data)
        # Even a resumed pass draws the order from the first sample on, so that its random draws are the same.
        places = drawn(self._order(position["epoch"]) if indexable else self._of_stream())
        for place in itertools.islice(places, position["taken"], None):
            sample = self._data[place] if indexable else place
            # A sample is counted before it is yielded, so that a state that is saved in the loop's body
            # includes the sample.
            position["taken"] += 1
            yield sample
        if self._position is position:
            self._position = self._next

    def _order(self, epoch: int) -> Sequence[int]:
        """Return the indices of this worker's samples in an epoch; the last epoch's result is cached."""
        samples = len(self._data)
        mine = slice(self._rank, len(self) * self._world_size, self._world_size)
        if self._seed is None:
            return range(samples)[mine]
        if self._drawn is None or self._drawn[0] != (epoch, samples):
            generator = torch.Generator().manual_seed(self._seed + epoch)
            order = torch.randperm(samples, generator=generator)[mine].tolist()
            self._drawn = ((epoch, samples), order)
        return self._drawn[1]

    def _of_stream(self) -> Iterator[Any]:
        """Yield this worker's sample of each complete round, in which every worker gets one sample."""
        source = iter(self._data)
        while len(several := list(itertools.islice(source, self._world_size))) == self._world_size:
            yield several[self._rank]


def split(data: Any, workers: int, name: str, config: DataConfig) -> Sequence[Any]:
    """Return a data set's shards for all workers, by rank.

    Args:
        data: a Ray Dataset; or an indexable data set with a length, such as data sets of torch or Hugging
            Face; or any iterable that can restart and gives the same samples in the same order each time.
        workers: number of shards.
        name: key of the data set in `datasets`.
        config: the trainer's configuration for data sets.

    Raises:
        ConfigError: `data` has an unsupported type, such as a dictionary, a text or a table, or it has fewer
            samples than workers.
    """
    shared = config.datasets_to_split == "all" or name in config.datasets_to_split
    if hasattr(data, "streaming_split"):  # This is a Ray Dataset, which can split itself.
        shards: Sequence[Any] = data.streaming_split(workers, equal=True) if shared else [data] * workers
        return shards
    # This condition is true for frames and series of pandas, and for tables of polars and pyarrow.
    table = hasattr(data, "iloc") or (hasattr(data, "columns") and hasattr(data, "schema"))
    if table or isinstance(data, Mapping | str | bytes | bytearray):
        raise ConfigError(
            f"datasets[{name!r}] is a {type(data).__name__}, which does not define its samples: pass a list "
            "of samples; for a table, its rows, from to_dict('records') of pandas or to_dicts() of polars"
        )
    if not _indexable(data) and (not isinstance(data, Iterable) or isinstance(data, Iterator)):
        raise ConfigError(
            f"datasets[{name!r}] is a {type(data).__name__}: pass an indexable data set with a length, or an "
            "iterable that can restart"
        )
    ways = workers if shared else 1
    if _indexable(data) and len(data) < ways:
        raise ConfigError(
            f"datasets[{name!r}] has fewer samples ({len(data)}) than workers ({workers}): "
            "give each worker one sample or more"
        )
    return [DatasetShard(data, rank if shared else 0, ways, config.seed) for rank in range(workers)]


def _indexable(data: Any) -> bool:
    # torch's IterableDataset is not indexable, although it has a `__getitem__`, which only raises an error.
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset)


def _shuffled(samples: Iterator[Any], size: int, seed: int | None) -> Iterator[Any]:
    generator = torch.Generator()
    if seed is not None:
        generator.manual_seed(seed)
    held = list(itertools.islice(samples, size))
    while held:
        place = int(torch.randint(len(held), (), generator=generator))
        held[place], held[-1] = held[-1], held[place]
        yield held.pop()
        held.extend(itertools.islice(samples, 1))


def _moved(batch: Any, device: Any, dtypes: Any) -> Any:
    if isinstance(batch, Mapping) and isinstance(dtypes, Mapping):
        return {key: _moved(value, device, dtypes.get(key)) for key, value in batch.items()}
    return map_tensors(lambda tensor: tensor.to(device=device, dtype=dtypes), batch)
