"""Sharded data-parallel training with PyTorch's FSDP2: each worker holds a part of every parameter.

    block 0 ──all-gather──▶ whole for its forward ──▶ freed     (again for its backward)
    gradients ──reduce-scatter──▶ each worker its part ──▶ its part of the optimizer's step

With replicas, each group of workers holds a copy of the model. Workers of different groups exchange only
their parts of the gradients:

    four workers, replicas=2       part 0   part 1
    replica 0                        0        1        gathered along rows
    replica 1                        2        3        gradients averaged along columns too

Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel",
arXiv:2304.11277 (section 3.2.2: hybrid sharding); https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from trainkit.errors import ConfigError
from trainkit.train.distributed.mesh import DATA, REPLICA, degree_mistakes, make_mesh
from trainkit.train.strategies.base import Models, Optimizers, Place, StepSettings, Strategy, StrategySpec
from trainkit.train.strategies.blocks import Blocks, chosen_blocks
from trainkit.train.strategies.modules import compile_in_place
from trainkit.train.strategies.sharded import (
    ShardedStrategy,
    refuse_ddps_arguments,
    refuse_unusable,
)

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_PARAMETERS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class FSDP(StrategySpec):
    """Sharded data-parallel training: parameters, gradients and optimizer state are split over the workers.

    Args:
        shard_blocks: blocks: modules whose parameters are gathered together, chosen by their classes or by a
            function of (name, module). None finds blocks that are repeated in a stack, such as a
            transformer's layers. The parameters outside of blocks are gathered as one more group.
        reshard_after_forward: True frees a block's gathered parameters after its forward pass and gathers
            them again for its backward pass. False keeps them, which needs more memory and less
            communication.
        cpu_offload: True keeps parameters, gradients and optimizer state in CPU memory, and copies them to
            the GPU when they are used.
        forward_methods: names of methods besides `forward` that run the model's layers, such as "generate".
        replicas: number of copies of the model; each copy is sharded equally over `num_workers / replicas`
            workers.
    """

    spreads: ClassVar[bool] = True

    shard_blocks: Blocks = None
    reshard_after_forward: bool = True
    cpu_offload: bool = False
    forward_methods: tuple[str, ...] = ()
    replicas: int = 1

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        if devices_per_worker > 1:
            yield f"FSDP uses one GPU per worker, not {devices_per_worker}: use more workers instead"
        if step.channels_last:
            yield "FSDP shards only contiguous parameters: leave out channels_last=True"
        if any(degree_mistakes(self.replicas, self.replicas or 1)):
            yield f"replicas must be a positive integer, not {self.replicas!r}"
        elif self.replicas > 1 and (num_workers % self.replicas or num_workers == self.replicas):
            yield (
                f"{num_workers} workers can't hold {self.replicas} sharded copies: make num_workers a "
                f"multiple of {self.replicas}, at least {2 * self.replicas}, or pass DDP() for whole copies"
            )

    def build(self, place: Place) -> Strategy:
        return FSDPStrategy(place, self)


class FSDPStrategy(ShardedStrategy):
    """Sharded data-parallel training, seen from one worker."""

    averages = True
    meets_in_forward = True

    def __init__(self, place: Place, spec: FSDP) -> None:
        super().__init__(place)
        self._spec = spec
        ways = {DATA: place.group.world_size // spec.replicas}
        if spec.replicas > 1:
            ways = {REPLICA: spec.replicas, **ways}
        self._mesh = make_mesh(place.group, ways, self.devices[0])
        self._roots: list[FSDPModule] = []

    def place(self, models: Models, optimizers: Optimizers, ddp_args: Mapping[str, Any]) -> list[nn.Module]:
        refuse_ddps_arguments("FSDP", ddp_args, wrap=self._place.wrap)
        for model in models:
            _refuse_what_cannot_be_sharded(model)
        plans = [(model, chosen_blocks(model, self._spec.shard_blocks)) for model in models]
        self._note(models, optimizers)
        for model, blocks in plans:
            # The model is broadcast on the device where the user has put it, because the whole model may not
            # fit on a GPU.
            self.group.broadcast_tensors([*model.parameters(), *model.buffers()])
            self._shard(model, blocks)
        self._hand_over(models, optimizers)
        return list(models)

    def _shard(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        device = self.devices[0]
        offload = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        common: dict[str, Any] = {
            "mesh": self._mesh,
            "offload_policy": offload if self._spec.cpu_offload else OffloadPolicy(),
        }
        keep = not self._spec.reshard_after_forward
        if self._step.compile:
            # Each block is compiled separately, because the block's parameters are gathered before it runs
            # and freed afterwards.
            compile_in_place(*(blocks or [model]))
        for block in blocks:
            fully_shard(block, reshard_after_forward=not keep, mp_policy=self._precision(block), **common)
        # The backward pass needs the parameters outside of blocks first, so they stay gathered.
        trained = any(parameter.requires_grad for parameter in model.parameters())
        root = fully_shard(
            model, reshard_after_forward=not keep and not trained, mp_policy=self._precision(model), **common
        )
        for name in self._spec.forward_methods:
            if callable(getattr(model, name, None)):
                register_fsdp_forward_method(model, name)
        self._roots.append(root)

    def _precision(self, module: nn.Module) -> MixedPrecisionPolicy:
        """Return FSDP's policy: for 16-bit precision, parameters in 16 bits and gradient sums in 32 bits."""
        dtype = _PARAMETERS.get(self._step.precision)
        if dtype is None or any(isinstance(part, _BATCH_NORM) for part in _of_one_group(module)):
            # Batch norm keeps its statistics in 32 bits, so its weights need 32 bits. Autocast handles this.
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)

    def sync_gradients(self, now: bool) -> None:
        for root in self._roots:
            root.set_requires_gradient_sync(now)

    def clip(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        norm = super().clip(parameters, max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        # Batch norm statistics differ between workers. For evaluation, all workers use the statistics of
        # worker 0, as with DDP.
        for root in self._roots:
            self.group.broadcast_tensors(list(_module(root).buffers()))
        try:
            yield
        finally:
            self.reshard()

    def reshard(self) -> None:
        for root in self._roots:
            for part in _module(root).modules():
                if isinstance(part, FSDPModule):
                    part.reshard()

    def leave(self) -> None:
        self._roots.clear()
        super().leave()


def _module(root: FSDPModule) -> nn.Module:
    """Return `root` with type `nn.Module`, which the class of a sharded module also inherits from."""
    return cast(nn.Module, root)


def _of_one_group(module: nn.Module) -> Iterator[nn.Module]:
    """Yield `module` and the modules in it, except modules that are sharded separately."""
    yield module
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _of_one_group(child)


def _refuse_what_cannot_be_sharded(model: nn.Module) -> None:
    refuse_unusable(model, "already sharded: register the plain model; FSDP() shards it")
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ConfigError(f"{name} is a single number, which can't be sharded: give it the shape (1,)")
        if not parameter.is_contiguous():
            raise ConfigError(f"{name} is not contiguous, so it can't be sharded: use .contiguous()")
