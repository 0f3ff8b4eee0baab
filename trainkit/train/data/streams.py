"""Sharing of streams among workers: each worker's samples of every global batch of an iterable data set.

    stream                       0 1 2 3 │ 4 5 6 7 │ 8 9
    two workers, batch_size=2    step 0    step 1    step 2
    rank 0                       0   2     4   6     8
    rank 1                         1   3     5   7     9

Every worker, and each of its loader processes, reads the whole stream and keeps its own samples. So workers
exchange nothing, and all workers end at the same step. The global batches have the same samples in the same
order as with one worker, for any number of workers and loader processes. With several loader processes, each
collates every n-th global batch, because torch takes batches from loader processes in turn. Every process
reads the whole stream, but `collate_fn` runs only once for each sample.
"""

from __future__ import annotations

import copy
import itertools
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as loader_process

from trainkit.train.data.randomness import RandomSource, SharedIntegers, seed_of
from trainkit.train.data.sharding import (
    LoaderView,
    global_batch_size,
    samples_of_rank,
    with_attributes,
)

_END: Any = object()

_NONE = -1, 0
"""Index and size of the incomplete batch of a pass, if no incomplete batch is taken yet."""


class Share(NamedTuple):
    """A worker's share of a global batch.

    Attributes:
        data: samples of the worker; after collation, the worker's batch.
        size: number of samples of the global batch, over all workers.
        origin: checksum of the stream's first sample, with which workers detect that they read different
            streams; 0 if the sample has no checksum.
    """

    data: Any
    size: int
    origin: int = 0


@dataclass(frozen=True)
class Deal:
    """Rule that gives one worker its samples of a stream.

    Attributes:
        rank: rank of the worker.
        world_size: number of workers.
        batch_size: number of samples for each worker in a step.
        drop_last: True leaves out an incomplete last global batch.
        in_step: True if every worker takes part in every step. A worker without a sample in the last global
            batch then gets a copy of that batch's first sample.
        total: see `global_batch_size`.
    """

    rank: int
    world_size: int
    batch_size: int
    drop_last: bool
    in_step: bool
    total: int | None = None

    @property
    def global_batch_size(self) -> int:
        """Number of samples of a full global batch."""
        return global_batch_size(self.batch_size, self.world_size, self.total)

    def shares(
        self, stream: Iterable[Any], *, skipped: int = 0, process: int = 0, processes: int = 1
    ) -> Iterator[Share]:
        """Yield this worker's shares of the stream's global batches that one loader process collates.

        Args:
            stream: all samples, in the same order on every worker and in every loader process.
            skipped: number of samples before the first global batch.
            process: index of the loader process.
            processes: number of loader processes.
        """
        size, samples = self.global_batch_size, iter(stream)
        _skip(samples, skipped + process * size)
        while (share := self._share(samples)) is not None:
            yield share
            if share.size < size:
                return
            _skip(samples, (processes - 1) * size)

    def length(self, samples: int) -> int:
        """Return the number of samples that this worker gets from a stream of `samples`, including copies of
        samples.
        """
        full, rest = divmod(samples, self.global_batch_size)
        last = 0 if self.drop_last else samples_of_rank(rest, self.rank, self.world_size)
        if self.in_step and rest and not self.drop_last:
            last = max(last, 1)
        return full * samples_of_rank(self.global_batch_size, self.rank, self.world_size) + last

    def _share(self, samples: Iterator[Any]) -> Share | None:
        own, head, size = [], None, 0
        for index, sample in enumerate(itertools.islice(samples, self.global_batch_size)):
            if index == 0:
                head = sample
            if index % self.world_size == self.rank:
                own.append(sample)
            size = index + 1
        if size == 0 or (self.drop_last and size < self.global_batch_size):
            return None
        if not own and self.in_step:
            own = [head]
        return Share(own, size) if own else None


def _skip(samples: Iterator[Any], count: int) -> None:
    deque(itertools.islice(samples, count), maxlen=0)


class SharedStream(IterableDataset[Share]):
    """One worker's shares of a stream. Each loader process has the shares that it collates.

    While the stream is read, `get_worker_info()` returns None and the global random generators have states
    that are equal on all workers and in all loader processes. So a stream that divides itself among loader
    processes, or shuffles by these generators, gives the same samples in the same order everywhere.

    Args:
        source: the user's stream.
        deal: rule for this worker's samples.
        seed: seed of the generators, equal on all workers.
    """

    def __init__(self, source: IterableDataset[Any], deal: Deal, seed: int) -> None:
        self.source = source
        self.deal = deal
        # Persistent loader processes have copies of this object, but share these numbers.
        self._next = SharedIntegers(epoch=0, skipped=0, seed=seed)
        self._random = RandomSource(seed)
        self._loaded: Mapping[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        # The state of the source does not count the samples of this object, so this object does not pass it
        # on as its own state.
        if name in ("source", "state_dict", "load_state_dict") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return self.deal.length(len(self.source))  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next passes, which the source receives in every loader process."""
        self._next["epoch"] = epoch
        self._set_epoch_of_source(epoch)

    @property
    def epoch(self) -> int:
        """Epoch of the next passes."""
        return self._next["epoch"]

    @property
    def seed(self) -> int:
        """Seed of the generators."""
        return self._next["seed"]

    @seed.setter
    def seed(self, value: int) -> None:
        self._next["seed"] = value

    def start_at(self, samples: int, state: Mapping[str, Any]) -> None:
        """Make the next passes start after `samples` samples of all workers.

        Args:
            samples: number of samples.
            state: result of `state` at this position, if this process reads the stream; otherwise empty.
        """
        self._next["skipped"], self._loaded = (0, state) if state else (samples, {})

    def state(self) -> dict[str, Any]:
        """Return the state of the source, and of the generators that it draws from in this process."""
        # The method is called between two shares, so all samples that were read belong to earlier shares.
        return {"source": copy.deepcopy(self.source.state_dict()), "random": self._random.state()}  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Share]:
        # The numbers are read now, because they may change before the first sample is read.
        return self._shares(self._next["epoch"], self._next["skipped"])

    def _shares(self, epoch: int, skipped: int) -> Iterator[Share]:
        info = get_worker_info()
        if info is not None:
            self._set_epoch_of_source(epoch)
        process, processes = (0, 1) if info is None else (info.id, info.num_workers)
        self._random = random = RandomSource(seed_of(self.seed, epoch))
        loaded, self._loaded = self._loaded, {}
        if loaded:
            random.load(loaded.get("random", {}))
            self.source.load_state_dict(loaded["source"])  # type: ignore[attr-defined]
        with random.in_use(), _whole():
            samples = iter(self.source)
            first = next(samples, _END)
        stream = samples if first is _END else itertools.chain((first,), samples)
        shares = self.deal.shares(stream, skipped=skipped, process=process, processes=processes)
        origin = checksum(first)
        while True:
            with random.in_use(), _whole():
                share = next(shares, None)
            if share is None:
                return
            yield share._replace(origin=origin)

    def _set_epoch_of_source(self, epoch: int) -> None:
        if callable(hook := getattr(self.source, "set_epoch", None)):
            hook(epoch)


@contextmanager
def _whole() -> Iterator[None]:
    """Let `get_worker_info()` return None in the block, so that a stream does not divide itself."""
    info, loader_process._worker_info = loader_process._worker_info, None
    try:
        yield
    finally:
        loader_process._worker_info = info


class _Collated:
    """Function that collates a worker's share of a global batch.

    Args:
        collate: the user's function.
        single: True if the user's loader does not form batches, so that each sample is a batch.
    """

    def __init__(self, collate: Callable[[Any], Any], single: bool) -> None:
        self._collate = collate
        self._single = single

    def __call__(self, share: Share) -> Share:
        return share._replace(data=self._collate(share.data[0] if self._single else share.data))


class SharedStreamLoader(LoaderView):
    """Loader of one worker's batches of a stream, with the settings of the user's loader.

    Args:
        loader: the user's loader of the whole stream.
        rank: rank of the worker.
        world_size: number of workers.
        in_step: True if every worker takes part in every step.
        seed: seed of the random generators while the stream is read, equal on all workers.
        total: see `global_batch_size`.
        compare: function that receives `origin` at the first batch of each pass; None compares nothing.

    Attributes:
        deal: rule for this worker's samples.
        origin: checksum of the first sample of the last started pass; -1 before the first batch.
    """

    __slots__ = ("_compare", "_first", "_last", "deal", "origin")

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        rank: int,
        world_size: int,
        in_step: bool,
        seed: int = 0,
        total: int | None = None,
        compare: Callable[[int], None] | None = None,
    ) -> None:
        single = loader.batch_size is None
        deal = Deal(rank, world_size, loader.batch_size or 1, loader.drop_last, in_step, total)
        # Without a batch sampler, a loader takes one item of its data set as a batch.
        clone = with_attributes(
            loader,
            dataset=SharedStream(loader.dataset, deal, seed),  # type: ignore[arg-type]
            batch_sampler=None,
            collate_fn=_Collated(loader.collate_fn, single),
        )
        super().__init__(clone)
        self.deal = deal
        self.origin = -1
        self._first: tuple[int, Mapping[str, Any]] = (0, {})
        self._last = _NONE
        self._compare = compare

    def __iter__(self) -> Any:
        stream: Any = self.dataset
        stream.start_at(*self._first)
        self._first = (0, {})
        return self._delivered(iter(self._loader))

    def start_at(self, samples: int, state: Mapping[str, Any]) -> None:
        """Make the next pass start after `samples` samples of all workers.

        Args:
            samples: number of samples.
            state: result of `SharedStream.state` at this position, or empty.
        """
        self._first = samples, state if self.num_workers == 0 else {}

    def size(self, index: int) -> int:
        """Return the size of global batch `index` of this pass.

        An incomplete batch must have been taken already.
        """
        return self._last[1] if self._last[0] == index else self.deal.global_batch_size

    def weight(self, index: int) -> float:
        """Return the factor for this worker's mean loss in batch `index`, if gradients are averaged."""
        size, world_size = self.size(index), self.deal.world_size
        return samples_of_rank(size, self.deal.rank, world_size) * world_size / size

    def _delivered(self, shares: Iterator[Share]) -> Iterator[Any]:
        self.origin, self._last = -1, _NONE
        for index, share in enumerate(shares):
            self.origin = share.origin
            if index == 0 and self._compare is not None:
                self._compare(share.origin)
            if share.size < self.deal.global_batch_size:
                self._last = index, share.size
            yield share.data


def checksum(sample: Any) -> int:
    """Return a checksum of the tensors, arrays, texts and numbers in `sample`; 0 for other values."""
    if isinstance(sample, torch.Tensor):
        if sample.layout is not torch.strided or sample.is_quantized:
            return 0
        return zlib.crc32(sample.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    if isinstance(sample, (str, int, float, complex, bytes, type(None))):
        return zlib.crc32(repr(sample).encode())
    if isinstance(sample, Mapping):
        return checksum([*sample.keys(), *sample.values()])
    if isinstance(sample, (list, tuple)):
        return zlib.crc32(repr([checksum(each) for each in sample]).encode())
    if callable(in_bytes := getattr(sample, "tobytes", None)):
        # An array of objects has no checksum, because its bytes are the addresses of the objects.
        return 0 if getattr(getattr(sample, "dtype", None), "hasobject", False) else zlib.crc32(in_bytes())
    return 0
