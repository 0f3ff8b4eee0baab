"""Sharing of data sets among the workers of a training function."""

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
        datasets_to_split: "all", or the names of the data sets to share; each worker gets other data sets
            whole.
        seed: shuffle an indexable data set in each epoch, with this seed plus the epoch's number; None: no
            shuffling. With a `DataLoader` over the shard, call `shard.set_epoch` before each pass.

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
    """Batches of a shard; each iteration is a new pass.

    Args:
        start: function that starts a pass.
    """

    def __init__(self, start: Callable[[], Iterator[Any]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return metered(self._start())

    def map(self, function: Callable[[Any], Any]) -> Batches:
        """Return the batches after `function` is applied to each of them."""
        return Batches(lambda: map(function, self._start()))


class DatasetShard:
    """One worker's share of a data set; each pass over the shard is an epoch.

    All shards have equal lengths; surplus samples are left out. For an indexable data set a worker has the
    samples rank, rank + n, rank + 2 n, ... of the epoch's order.

    `iter` always starts a pass at the first sample. An interrupted pass counts as a complete epoch. Only
    `load_state_dict` makes a pass start in the middle.

    A `DataLoader` reads an indexable shard by index, which is not a pass: the order stays constant until
    `set_epoch` is called. Loader processes with `persistent_workers=True` do not see this call.

    Args:
        data: an indexable data set with a length, or any iterable.
        rank: rank of the worker.
        world_size: number of workers that share the data set.
        seed: seed of the shuffling; see `DataConfig`.
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
        """Return the number of this worker's samples; a stream is read completely for this."""
        return len(self) if _indexable(self._data) else sum(1 for _ in self._of_stream())

    def __getitem__(self, index: int) -> Any:
        """Return a sample of this worker in the epoch's order, so that a `DataLoader` can read the shard."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        return self._data[self._order(self._position["epoch"])[index % len(self)]]

    def __iter__(self) -> Iterator[Any]:
        return self._begin(iter)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the epoch of the next pass; with a seed, the epoch determines the order."""
        self.load_state_dict({"epoch": epoch, "taken": 0})

    def state_dict(self) -> dict[str, int]:
        """Return the position of the latest pass: `epoch`, and `taken`, the number of samples taken.

        A sample counts when it leaves the shard. Samples that a `DataLoader` reads by index do not count.
        Samples that are prefetched before the training loop needs them count early.
        """
        return dict(self._position)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Make the next pass, and only this pass, continue where `state_dict` was called.

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
        """Return batches of tensors, which can be iterated over repeatedly: each pass is an epoch.

        Args:
            batch_size: number of samples in a batch of this worker.
            collate_fn: function from a list of samples to a batch; None: torch's default.
            drop_last: leave out an incomplete last batch.
            device: device for the tensors.
            dtypes: data type of all tensors, or data types by key.
            prefetch_batches: Ray's argument; has no effect.
            local_shuffle_buffer_size: size of a buffer of upcoming samples, from which each sample is drawn;
                None: no shuffling.
            local_shuffle_seed: seed of these draws, which are equal in each pass.

        Raises:
            ConfigError: the buffer's size is below 1.
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
        """Return batches of NumPy arrays; `iter_torch_batches` describes the arguments."""
        return self.iter_torch_batches(**options).map(partial(map_tensors, lambda tensor: tensor.numpy()))

    def _begin(self, drawn: Callable[[Iterable[Any]], Iterator[Any]]) -> Iterator[Any]:
        """Start a pass and return its samples; `drawn` rearranges the epoch's order."""
        # Each pass has its own position, so that an interrupted pass can't change the next pass.
        position = self._position = self._next
        self._next = {"epoch": position["epoch"] + 1, "taken": 0}
        return self._samples(position, drawn)

    def _samples(
        self, position: dict[str, int], drawn: Callable[[Iterable[Any]], Iterator[Any]]
    ) -> Iterator[Any]:
        indexable = _indexable(self._data)
        # The order starts at the first sample even when resuming, so that earlier random draws are repeated.
        places = drawn(self._order(position["epoch"]) if indexable else self._of_stream())
        for place in itertools.islice(places, position["taken"], None):
            sample = self._data[place] if indexable else place
            # Counted before the yield, so that a state saved in the loop's body includes this sample.
            position["taken"] += 1
            yield sample
        if self._position is position:
            self._position = self._next

    def _order(self, epoch: int) -> Sequence[int]:
        """Return the indices of this worker's samples in an epoch; the latest order is cached."""
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
        """Yield one sample from each complete round, in which every worker gets a sample."""
        source = iter(self._data)
        while len(several := list(itertools.islice(source, self._world_size))) == self._world_size:
            yield several[self._rank]


def split(data: Any, workers: int, name: str, config: DataConfig) -> Sequence[Any]:
    """Return the shards of a data set, by rank.

    Args:
        data: a Ray Dataset; or an indexable data set with a length, such as torch's or Hugging Face's; or any
            iterable that can restart and gives the same samples in the same order each time.
        workers: number of shards.
        name: key of the data set in `datasets`.
        config: the trainer's configuration for data sets.

    Raises:
        ConfigError: `data` has an unsupported type, such as a dictionary, a text or a table, or it has fewer
            samples than workers.
    """
    shared = config.datasets_to_split == "all" or name in config.datasets_to_split
    if hasattr(data, "streaming_split"):  # A Ray Dataset splits itself.
        shards: Sequence[Any] = data.streaming_split(workers, equal=True) if shared else [data] * workers
        return shards
    # This test recognizes frames and series of pandas, and tables of polars and pyarrow.
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
    # torch's IterableDataset has a `__getitem__` that only raises, so it is not indexable.
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
