"""Preparation of models and loaders in a training function, for a worker's device and several workers.

All functions also work outside of a trainer, where a plain script is a single worker with its own device.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from trainkit.errors import ConfigError
from trainkit.train.checkpoint.state import seed_generators
from trainkit.train.data.prefetch import DevicePrefetcher
from trainkit.train.data.sharding import with_batches
from trainkit.train.torch.context import TrainContext, metered, train_context

log = logging.getLogger(__name__)


def get_devices() -> list[torch.device]:
    """Return the devices of this worker: its GPUs, or the CPU.

    Outside of a trainer: the first GPU if this process sees any GPU, otherwise the CPU.
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
        model: a whole model, equal on all workers, or made equal by the wrapper.
        move_to_device: True, or the device; False does not move the model.
        parallel_strategy: "ddp": `DistributedDataParallel`; "fsdp": `FullyShardedDataParallel`; "fsdp2": the
            model itself, with parameters sharded by `fully_shard`; None: no wrapper. With a single worker the
            model is never wrapped.
        parallel_strategy_kwargs: further arguments of the wrapper.
        parallel_strategy_kwargs: further arguments of the wrapper.

    Raises:
        ConfigError: the strategy is unknown.
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
) -> DataLoader[Any]:
    """Return a loader of this worker's share of the samples, with batches on its device.

    torch's `DistributedSampler` splits the samples, and shuffles them if the loader shuffles. With several
    workers, call `loader.sampler.set_epoch(epoch)` before each epoch.

    Args:
        data_loader: a loader of all samples.
        add_dist_sampler: True shares the samples. It is ignored with one worker, with an iterable data set,
            and if the loader already has a `DistributedSampler`, even inside a batch_sampler.
        move_to_device: True moves batches to the device.
        auto_transfer: True copies the next batch to a GPU while the current batch is used.

    Raises:
        ConfigError: `data_loader` is not a `DataLoader`, or it has the user's own sampler or batch_sampler
            and its samples should be shared.
    """
    if not isinstance(data_loader, DataLoader):
        raise ConfigError(
            f"prepare_data_loader() needs a DataLoader, not a {type(data_loader).__name__}: pass "
            "torch.utils.data.DataLoader(data, batch_size=...)"
        )
    if isinstance(data_loader, _PreparedLoader):  # A loader that is wrapped twice would count batches twice.
        data_loader = data_loader._loader
    streams = isinstance(data_loader.dataset, IterableDataset)
    batches = data_loader.batch_sampler
    samplers = (data_loader.sampler, batches, getattr(batches, "sampler", None))
    shared = any(isinstance(sampler, DistributedSampler) for sampler in samplers)
    if add_dist_sampler and _world_size() > 1 and streams:
        log.warning(
            "prepare_data_loader: each of the %d workers reads all samples of %s, because it is an "
            "IterableDataset: skip the other workers' samples in its __iter__, and pass "
            "add_dist_sampler=False to turn this warning off",
            _world_size(),
            type(data_loader.dataset).__name__,
        )
    elif add_dist_sampler and _world_size() > 1 and not shared:
        data_loader = _shared(data_loader)
    device = get_device()
    moves = move_to_device and device.type != "cpu"
    if moves or train_context() is not None:
        return _PreparedLoader(data_loader, device if moves else None, auto_transfer)
    return data_loader


class _AutocastForward:
    """Forward method of a model in half precision.

    The model is an attribute of this object, so that copies and pickles of the model get their own forward.

    Args:
        model: the model whose current forward is called.
        device: type of the device.
        dtype: data type of the computation.
    """

    def __init__(self, model: nn.Module, device: str, dtype: torch.dtype) -> None:
        self._model = model
        self._own = vars(model).get("forward")
        self._device = device
        self._dtype = dtype

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The forward in full precision; `inspect.signature` finds its arguments under this name."""
        forward: Callable[..., Any] = self._own or functools.partial(type(self._model).forward, self._model)
        return forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self._device, dtype=self._dtype):
            return self.__wrapped__(*args, **kwargs)


class _Precision:
    """Mixed precision of this process, set by `accelerate`.

    Attributes:
        on: True if prepared models compute in half precision.
        prepared_in: context of the training function that last prepared a model.
        scaler: scaler of losses in fp16; None without a scaler, as for bf16 on the CPU.
    """

    on = False
    prepared_in: TrainContext | None = None
    scaler: torch.amp.GradScaler | None = None


def accelerate(amp: bool = False) -> None:
    """Train with automatic mixed precision; call it before models and optimizers are prepared.

    Args:
        amp: True: forward passes in fp16 with scaled losses on a GPU, or in bf16 on the CPU. False: full
            precision.

    Raises:
        ConfigError: this training function has already prepared a model, which would stay unchanged.
    """
    context = train_context()
    if amp and context is not None and context is _Precision.prepared_in:
        raise ConfigError("call accelerate(amp=True) before prepare_model: it changes no prepared model")
    _Precision.on = amp
    _Precision.scaler = torch.amp.GradScaler("cuda") if amp and get_device().type == "cuda" else None


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return `optimizer`; its step unscales the gradients if `accelerate` scales losses."""
    scaler, plain = _Precision.scaler, optimizer.step
    if scaler is None:
        return optimizer

    @functools.wraps(plain)
    def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
        # A schedule may have wrapped this function, but the scaler must call the optimizer's own step.
        outer = optimizer.step
        optimizer.step = plain  # type: ignore[method-assign]
        try:
            loss = scaler.step(optimizer) if closure is None else scaler.step(optimizer, closure)
            scaler.update()
        finally:
            optimizer.step = outer  # type: ignore[method-assign]
        return loss

    # torch's schedulers read the function from the bound method.
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    return optimizer


def backward(tensor: torch.Tensor) -> None:
    """Compute the gradients of the loss `tensor`, which is scaled if `accelerate` requires it."""
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
    # Without this variable cuBLAS is not deterministic (docs.nvidia.com/cuda/cublas, "Results
    # reproducibility").
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _shared(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return an equal loader of this worker's share of the samples."""
    if loader.batch_size is None:
        raise ConfigError(
            "prepare_data_loader: this loader has its own batch_sampler, or no batch size: use a "
            "DistributedSampler in the loader, or pass add_dist_sampler=False"
        )
    sampler = loader.sampler
    # torchdata's loaders have their own classes of samplers, so samplers are recognized by module and name.
    made = type(sampler).__module__.partition(".")[0] in ("torch", "torchdata") and type(sampler).__name__
    shuffles = made == "RandomSampler" and not sampler.replacement  # type: ignore[attr-defined]
    plain = shuffles or type(sampler) is SequentialSampler
    if not plain or len(sampler) != len(loader.dataset):  # type: ignore[arg-type]
        raise ConfigError(
            f"a DistributedSampler would replace your own {type(sampler).__name__}: use a DistributedSampler "
            "in the loader, or pass prepare_data_loader(add_dist_sampler=False)"
        )
    own: Any = DistributedSampler(loader.dataset, shuffle=shuffles)
    batches: Any = type(loader.batch_sampler)
    kind = batches if issubclass(batches, BatchSampler) else BatchSampler
    return with_batches(loader, kind(own, loader.batch_size, loader.drop_last))


class _PreparedLoader(DataLoader[Any]):
    """Loader that counts its batches and can move them to a device.

    Args:
        loader: loader of the batches; this object shares its attributes.
        device: a GPU; None does not move batches.
        ahead: True copies the next batch while the current batch is used.
    """

    __slots__ = ("_ahead", "_loader", "_prefetcher")  # All other attributes belong to the loader.

    def __init__(self, loader: DataLoader[Any], device: torch.device | None, ahead: bool) -> None:
        self.__dict__ = vars(loader)
        self._loader = loader
        self._prefetcher = None if device is None else DevicePrefetcher(device, channels_last=False)
        self._ahead = ahead

    def __getattr__(self, name: str) -> Any:
        if name in _PreparedLoader.__slots__:  # The attribute is not set yet, for example during unpickling.
            raise AttributeError(name)
        return getattr(self._loader, name)  # All other methods and properties belong to the user's loader.

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        batches: Iterable[Any] = self._loader
        if self._prefetcher is None:
            return metered(iter(batches))
        if self._ahead:
            return metered(iter(self._prefetcher.ahead(batches)))
        return metered(map(self._prefetcher.delivered, batches))
