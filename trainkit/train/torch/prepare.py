"""Functions that prepare models and loaders in a training function for the worker's device and group.

All functions also work outside of a trainer, where a plain script is a single worker with its own device.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from trainkit.errors import ConfigError
from trainkit.train.checkpoint.state import seed_generators
from trainkit.train.data.feed import set_epoch
from trainkit.train.data.placed_loader import PlacedLoader
from trainkit.train.data.position import check_stateful
from trainkit.train.data.prefetch import DevicePrefetcher
from trainkit.train.data.randomness import seeded_samples
from trainkit.train.data.sharding import sampler_of, with_batches
from trainkit.train.data.streams import SharedStreamLoader
from trainkit.train.torch.context import TrainContext, metered, train_context

log = logging.getLogger(__name__)


def get_devices() -> list[torch.device]:
    """Return the devices of this worker: its GPUs, or the CPU.

    Outside of a trainer, return the first GPU if this process sees any GPU, otherwise the CPU.
    """
    context = train_context()
    if context is not None:
        return list(context.devices)
    return [torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")]


def get_device() -> torch.device:
    """Return the first of `get_devices()`."""
    return get_devices()[0]


def prepare_model(
    model: nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: Literal["ddp", "fsdp", "fsdp2"] | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a model on this worker's device, wrapped so that the workers train it together.

    Args:
        model: a whole model; the weights must be equal on all workers, unless the wrapper makes them equal.
        move_to_device: True moves the model to this worker's device; a device moves it there; False does not
            move it.
        parallel_strategy: "ddp" wraps in `DistributedDataParallel`, "fsdp" in `FullyShardedDataParallel`;
            "fsdp2" shards the parameters of the model itself by `fully_shard`; None neither wraps nor shards.
            With a single worker the model is never wrapped or sharded.
        parallel_strategy_kwargs: further arguments of the wrapper or of `fully_shard`.

    Raises:
        ConfigError: `parallel_strategy` has an unknown value.
    """
    if parallel_strategy not in ("ddp", "fsdp", "fsdp2", None):
        raise ConfigError(
            f"prepare_model(parallel_strategy={parallel_strategy!r}): give 'ddp', 'fsdp', 'fsdp2' or None"
        )
    device = move_to_device if isinstance(move_to_device, torch.device) else get_device()
    if move_to_device:
        model = model.to(device)
    context = _Precision.prepared_in = train_context()
    if _Precision.on:
        dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
        model.forward = _AutocastForward(model, device.type, dtype)
    if parallel_strategy is None or _world_size() == 1:
        return model
    more = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "ddp":
        if device.type == "cuda":
            more = {"device_ids": [device], "output_device": device, **more}
        model = nn.parallel.DistributedDataParallel(model, **more)
        if context is not None:
            context.meter.models.add(model)
        return model
    if parallel_strategy == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        if device.type == "cpu":
            more = {"device_id": device, **more}
        return FullyShardedDataParallel(model, **more)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, **{"mesh": init_device_mesh(device.type, (_world_size(),)), **more})
    return model


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
    sample_seed: int | None = None,
    use_stateful_dataset: bool = False,
) -> DataLoader[Any]:
    """Return a loader of this worker's share of the samples, with batches on its device.

    torch's `DistributedSampler` splits the samples, and shuffles them if the loader shuffles. Call
    `loader.set_epoch(epoch)` before each epoch, so that the epoch's order is the same for any number of
    workers. The samples of an iterable data set are dealt out to the workers and their loader processes by
    their position; a worker without a sample of the last batch gets a copy of that batch's first sample.

    Args:
        data_loader: a loader of all samples, equal on all workers.
        add_dist_sampler: True shares the samples among the workers. Pass False if an iterable data set
            already divides itself among workers and loader processes. The argument has no effect if the
            loader already has a `DistributedSampler`, even inside a batch_sampler. With one worker, True only
            shares an iterable data set among the loader processes.
        move_to_device: True moves batches to this worker's device.
        auto_transfer: True copies the next batch to a GPU while the current batch is used.
        sample_seed: seed of the random numbers that each sample of a map-style data set draws. If a seed is
            given, the random numbers depend only on (`sample_seed`, epoch, index), not on the number of
            workers and loader processes. The epoch is set by `loader.set_epoch(epoch)`. Default: samples draw
            from the generators of their process.
        use_stateful_dataset: True saves the `state_dict` of an iterable data set as the position, so that a
            resumed run does not read the data set again up to the position. The state must include all that
            the data set has read ahead: a data set of Hugging Face loses its shuffle buffer. Default: after a
            restart, samples before the position are read again. On a GPU, True also needs
            `auto_transfer=False`.

    Raises:
        ConfigError: `data_loader` is not a `DataLoader`; its samples should be shared although it has the
            user's own sampler or batch_sampler; `sample_seed` is given with an iterable data set; or
            `use_stateful_dataset` is given with loader processes, or without an iterable data set that has a
            state.
    """
    if not isinstance(data_loader, DataLoader):
        raise ConfigError(
            f"prepare_data_loader() needs a DataLoader, not a {type(data_loader).__name__}: pass "
            "torch.utils.data.DataLoader(data, batch_size=...)"
        )
    sampler = sampler_of(data_loader)
    if isinstance(data_loader, _PreparedLoader):  # A loader that is wrapped twice would count batches twice.
        sampler, data_loader = data_loader.sampler_of_all, data_loader._loader
    data_loader = seeded_samples(data_loader, sample_seed, "data_loader")
    if use_stateful_dataset:
        check_stateful(data_loader, "data_loader")
    if add_dist_sampler:
        data_loader = _share_of(data_loader)
    device = get_device()
    moves = move_to_device and device.type != "cpu"
    return _PreparedLoader(
        data_loader, sampler, device if moves else None, auto_transfer, use_stateful_dataset
    )


class _AutocastForward:
    """Replacement for a model's forward method that computes in half precision.

    The model is an attribute of this object, so that copies and pickles of the model get their own forward
    method.

    Args:
        model: model whose current forward method is called.
        device: type of the model's device, such as "cuda".
        dtype: data type in which autocast computes.
    """

    def __init__(self, model: nn.Module, device: str, dtype: torch.dtype) -> None:
        self._model = model
        self._own = vars(model).get("forward")
        self._device = device
        self._dtype = dtype

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The original forward method; `inspect.signature` reads its parameters from this attribute."""
        forward: Callable[..., Any] = self._own or functools.partial(type(self._model).forward, self._model)
        return forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self._device, dtype=self._dtype):
            return self.__wrapped__(*args, **kwargs)


class _Precision:
    """Mixed precision of this process, set by `accelerate`.

    Attributes:
        on: True if prepared models compute in half precision.
        prepared_in: context of the last training function that prepared a model.
        scaler: loss scaler for fp16 on a GPU; None if losses are not scaled.
    """

    on = False
    prepared_in: TrainContext | None = None
    scaler: torch.amp.GradScaler | None = None


def accelerate(amp: bool = False) -> None:
    """Turn automatic mixed precision on or off; call this before models and optimizers are prepared.

    Args:
        amp: True computes forward passes in fp16 with scaled losses on a GPU, or in bf16 on the CPU. False
            computes in full precision.

    Raises:
        ConfigError: this training function has already prepared a model, which would still compute in full
            precision.
    """
    context = train_context()
    if amp and context is not None and context is _Precision.prepared_in:
        raise ConfigError("call accelerate(amp=True) before prepare_model: it changes no prepared model")
    _Precision.on = amp
    _Precision.scaler = torch.amp.GradScaler("cuda") if amp and get_device().type == "cuda" else None


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return `optimizer`, with a step that unscales the gradients if `accelerate` has turned scaling on."""
    scaler, plain = _Precision.scaler, optimizer.step
    if scaler is None:
        return optimizer

    @functools.wraps(plain)
    def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
        # A scheduler may have wrapped the method `step`, but the scaler must call the optimizer's own method.
        outer = optimizer.step
        optimizer.step = plain  # type: ignore[method-assign]
        try:
            loss = scaler.step(optimizer) if closure is None else scaler.step(optimizer, closure)
            scaler.update()
        finally:
            optimizer.step = outer  # type: ignore[method-assign]
        return loss

    # torch's schedulers read `optimizer.step.__func__`, so the new step must be a bound method.
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    return optimizer


def backward(tensor: torch.Tensor) -> None:
    """Compute the gradients of the loss `tensor`; scale it first if `accelerate` has turned scaling on."""
    scaler = _Precision.scaler
    scaled = tensor if scaler is None else scaler.scale(tensor)
    scaled.backward()  # type: ignore[no-untyped-call]


def enable_reproducibility(seed: int = 0) -> None:
    """Seed all generators of this process, and restrict torch to deterministic algorithms.

    Args:
        seed: seed of Python's, NumPy's and torch's generators; equal on all workers unless the caller adds
            the rank.
    """
    seed_generators(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # cuBLAS is only deterministic with this variable (docs.nvidia.com/cuda/cublas, "Results
    # reproducibility").
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _share_of(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader of this worker's share of the samples.

    A loader that already has only this share stays unchanged.
    """
    if isinstance(loader.dataset, IterableDataset):
        alone = _world_size() == 1 and loader.num_workers == 0
        if alone or isinstance(loader, SharedStreamLoader):
            return loader
        rank, compare = (dist.get_rank(), _Origins(type(loader.dataset))) if _world_size() > 1 else (0, None)
        # The loader's own generator may have a different seed on each rank, because processes have different
        # seeds.
        return SharedStreamLoader(loader, rank=rank, world_size=_world_size(), in_step=True, compare=compare)
    batches = loader.batch_sampler
    samplers = (loader.sampler, batches, getattr(batches, "sampler", None))
    if _world_size() == 1 or any(isinstance(sampler, DistributedSampler) for sampler in samplers):
        return loader
    return _shared(loader)


class _Origins:
    """Comparison of the first samples that the workers read from a stream, which must be equal.

    The workers exchange checksums through torch's key-value store. The workers do not wait for each other,
    because perhaps not all of them read the stream. A difference only causes a warning, because the workers
    may prepare different streams of one class.

    Args:
        kind: class of the stream.
    """

    _numbers: ClassVar[Counter[str]] = Counter()

    def __init__(self, kind: type[Any]) -> None:
        self._name = kind.__qualname__
        self._key = f"trainkit/stream/{self._name}/{self._numbers[self._name]}"
        self._numbers[self._name] += 1
        self._compared = False

    def __call__(self, origin: int) -> None:
        if self._compared:
            return
        self._compared = True
        store = dist.distributed_c10d._get_default_store()
        own = dist.get_rank()
        store.set(f"{self._key}/{own}", str(origin))
        for rank in range(_world_size()):
            key = f"{self._key}/{rank}"
            if rank != own and store.check([key]) and int(store.get(key)) != origin:
                log.warning(
                    "the stream %s begins with different samples on workers %d and %d, but each worker must "
                    "read the whole stream and keeps its own share. If the stream divides itself among the "
                    "workers, pass prepare_data_loader(add_dist_sampler=False); if it is shuffled, give its "
                    "generator the same seed on all workers",
                    self._name,
                    *sorted((own, rank)),
                )
                return


def _shared(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader with the same settings for this worker's share of the samples."""
    if loader.batch_size is None:
        raise ConfigError(
            "prepare_data_loader: this loader has its own batch_sampler, or no batch size: use a "
            "DistributedSampler in the loader, or pass add_dist_sampler=False"
        )
    sampler = loader.sampler
    # torchdata has its own class of random samplers, so random samplers are recognized by module and class
    # name.
    made = type(sampler).__module__.partition(".")[0] in ("torch", "torchdata") and type(sampler).__name__
    shuffles = made == "RandomSampler" and not sampler.replacement  # type: ignore[attr-defined]
    plain = shuffles or type(sampler) is SequentialSampler
    if not plain or len(sampler) != len(loader.dataset):  # type: ignore[arg-type]
        raise ConfigError(
            f"a DistributedSampler would replace your own {type(sampler).__name__}: use a DistributedSampler "
            "in the loader, or pass prepare_data_loader(add_dist_sampler=False)"
        )
    rank, world_size = dist.get_rank() if _world_size() > 1 else 0, _world_size()
    own: Any = DistributedSampler(loader.dataset, world_size, rank, shuffle=shuffles)
    batches: Any = type(loader.batch_sampler)
    kind = batches if issubclass(batches, BatchSampler) else BatchSampler
    return with_batches(loader, kind(own, loader.batch_size, loader.drop_last))


class _PreparedLoader(PlacedLoader):
    """Loader that keeps its position, counts its batches and can move them to a device.

    Args:
        loader: loader of this worker's batches.
        sampler: the user's sampler of all samples.
        device: GPU to move batches to; None does not move batches.
        ahead: True copies the next batch while the current batch is used.
        stateful: see `use_stateful_dataset` of `prepare_data_loader`.
    """

    __slots__ = ("_ahead", "_prefetcher")

    def __init__(
        self, loader: DataLoader[Any], sampler: Any, device: torch.device | None, ahead: bool, stateful: bool
    ) -> None:
        rank, size = dist.get_rank() if _world_size() > 1 else 0, _world_size()
        super().__init__(loader, rank=rank, world_size=size, sampler=sampler, use_stateful_dataset=stateful)
        self._prefetcher = None if device is None else DevicePrefetcher(device, channels_last=False)
        self._ahead = ahead

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, which decides the order of samples for any number of workers.

        If the loader or its sampler has a `generator`, a single worker draws the order from this generator.
        """
        sampler = sampler_of(self._loader)
        own = self.generator is not None or getattr(sampler, "generator", None) is not None
        draws = self._order().get("sampler") == RandomSampler.__name__ and not own
        if draws and self._world_size == 1 and self.batch_size is not None:
            self._loader = _shared(self._loader)
            self.__dict__ = vars(self._loader)
        set_epoch(self._loader, epoch)

    @property
    def reads_ahead(self) -> bool:
        return self._prefetcher is not None and self._ahead and not self.keeps_position

    def _delivered(self, batches: Iterator[Any]) -> Iterator[Any]:
        if self._prefetcher is None:
            return metered(batches)
        # The loader's own state would also count a batch that is fetched in advance.
        if self.reads_ahead:
            return metered(iter(self._prefetcher.ahead(batches)))
        return metered(map(self._prefetcher.delivered, batches))
