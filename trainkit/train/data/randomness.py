"""Random numbers of data sets that do not depend on the number of workers and loader processes.

map-style data    generators seeded by (seed, epoch, index) before each sample
streams           generators seeded by (seed, epoch), and used only while the stream is read
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from trainkit.errors import ConfigError
from trainkit.train.checkpoint.state import generator_states, load_generator_states
from trainkit.train.data.sharding import with_attributes


def seed_of(*parts: object) -> int:
    """Return a seed of 63 bits, a hash of the texts of `parts`."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _seed(value: int) -> None:
    # `torch.manual_seed` also seeds GPUs, which takes 50 times as long.
    torch.default_generator.manual_seed(value)
    random.seed(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value % 2**32)


def _states() -> tuple[torch.Tensor, Any, Any]:
    numpy = sys.modules.get("numpy")
    drawn = None if numpy is None else numpy.random.get_state(legacy=False)
    return torch.get_rng_state(), random.getstate(), drawn


def _load(states: tuple[torch.Tensor, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])


@contextmanager
def _kept() -> Iterator[None]:
    """Give the global generators their present states back at the end of the block."""
    outside = _states()
    try:
        yield
    finally:
        _load(outside)


class RandomSource:
    """Sequence of random numbers.

    While the sequence is in use, the global generators of torch, NumPy and Python return its numbers.

    Args:
        seed: seed of the generators.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: tuple[torch.Tensor, Any, Any] | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the global generators continue this sequence in the block.

        After the block, they continue their own sequences.
        """
        with _kept():
            if self._states is None:
                _seed(self._seed)
            else:
                _load(self._states)
            yield
            self._states = _states()

    def state(self) -> dict[str, Any]:
        """Return the position in the sequence, as plain values and tensors."""
        with self.in_use():
            return {name: each for name, each in generator_states().items() if name != "cuda"}

    def load(self, held: Mapping[str, Any]) -> None:
        """Continue at the position in a result of `state`; if the result is empty, begin the sequence."""
        if held:
            with _kept():
                load_generator_states(held)
                self._states = _states()


class SharedIntegers:
    """Integers by name, in memory that a process shares with its (even persistent) loader processes."""

    def __init__(self, **values: int) -> None:
        self._places = {name: place for place, name in enumerate(values)}
        shared: Any = torch.tensor(list(values.values()))
        self._values: torch.Tensor = shared.share_memory_()

    def __getitem__(self, name: str) -> int:
        return int(self._values[self._places[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self._values[self._places[name]] = value


class SeededSamples(Dataset[Any]):
    """Map-style data set whose random numbers depend only on the seed, the epoch and the sample's index.

    Args:
        source: the user's data set. The other attributes of the user's data set are also attributes of this
            object.
        seed: seed of all samples.
    """

    def __init__(self, source: Dataset[Any], seed: int) -> None:
        self.source = source
        self._seed = seed
        self._next = SharedIntegers(epoch=0)
        self._epoch = 0

    def __getattr__(self, name: str) -> Any:
        if name == "source" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next samples, in this process and in its loader processes."""
        self._next["epoch"] = epoch
        self._see(epoch)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        epoch = self._next["epoch"]
        if epoch != self._epoch:
            self._see(epoch)
        # In a loader process, no other code uses the global generators, so they are not restored afterwards.
        with nullcontext() if get_worker_info() is not None else _kept():
            return [self._sample(epoch, index) for index in indices]

    def _sample(self, epoch: int, index: Any) -> Any:
        # The index is converted to an int, because equal indices may have different types, such as NumPy's
        # integers.
        _seed(seed_of(self._seed, epoch, int(index) if hasattr(index, "__index__") else index))
        return self.source[index]

    def _see(self, epoch: int) -> None:
        self._epoch = epoch
        if callable(hook := getattr(self.source, "set_epoch", None)):
            hook(epoch)


def seeded_samples(loader: Any, seed: int | None, what: str) -> Any:
    """Return a copy of a loader whose samples draw their random numbers from (seed, epoch, index).

    Args:
        loader: a `DataLoader` over a map-style data set.
        seed: seed of all samples; None returns `loader` unchanged.
        what: name of the loader, for messages.

    Raises:
        ConfigError: `loader` has no map-style data set.
    """
    if seed is None:
        return loader
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"sample_seed={seed!r} needs a DataLoader over a map-style data set, because samples of {what} "
            "have no index: leave sample_seed out, and let the data draw random numbers by its own generators"
        )
    return with_attributes(loader, dataset=SeededSamples(loader.dataset, seed))
