"""Tensor parallelism: the matrices of a layer are split over workers, which exchange activations.

    two workers          x ─┬─▶ columns 0..n/2 of A ─▶ act ─▶ rows 0..n/2 of B ─┐
                            └─▶ columns n/2..n of A ─▶ act ─▶ rows n/2..n of B ─┴─▶ sum ─▶ y

Source: Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", arXiv:1909.08053; implemented by torch.distributed.tensor.parallel,
https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ParallelStyle

from trainkit.errors import ConfigError
from trainkit.train.distributed.mesh import DATA, MODEL
from trainkit.train.strategies import gradients
from trainkit.train.strategies.base import ModelDegree, Models, Optimizers, Place, StepSettings, Strategy
from trainkit.train.strategies.blocks import chosen_blocks
from trainkit.train.strategies.modules import compile_in_place
from trainkit.train.strategies.sharded import (
    ShardedStrategy,
    refuse_ddps_arguments,
    refuse_unusable,
)
from trainkit.train.strategies.tensor_plan import split_model

Plan = Mapping[str, ParallelStyle] | Callable[[nn.Module, DeviceMesh], Any]


@dataclass(frozen=True, kw_only=True)
class TensorParallel(ModelDegree):
    """Tensor parallelism: each copy of the model is split over `degree` workers, layer by layer.

    Args:
        degree: number of workers that hold one copy of the model together; None means all workers. If the
            trainer has more workers, several copies of the model exist, and each copy gets its own samples.
        plan: way to split modules. A dictionary from names (or patterns such as `layers.*.fc1`) to torch's
            styles, such as `ColwiseParallel()`; or a function of (model, mesh of the `degree` workers) that
            returns such a dictionary, or that splits the model and returns it. Modules that are not in the
            plan are whole on each worker. None splits pairs of `nn.Linear` in an `nn.Sequential` with only
            element-wise modules between them.
        data: storage of several copies of a model: "replicate" keeps each copy complete and averages
            gradients; "shard" splits each parameter's part further over the copies, with FSDP2.

    Raises:
        ConfigError: an argument is wrong.
    """

    spreads: ClassVar[bool] = True

    too_few = "TensorParallel needs at least 2 workers: raise num_workers, or pass strategy='auto'"
    several_devices = "each worker uses only one device: pass gpus_per_worker=1 and use more workers"

    plan: Plan | None = None
    data: Literal["replicate", "shard"] = "replicate"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data not in ("replicate", "shard"):
            raise ConfigError(f'TensorParallel: data must be "replicate" or "shard", not {self.data!r}')
        if not (self.plan is None or callable(self.plan) or _is_plan(self.plan)):
            raise ConfigError(
                "TensorParallel: plan must be a dictionary {name of a module: ColwiseParallel(), ...} or "
                f"a function of (model, mesh), not {self.plan!r}"
            )

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        yield from super().mistakes(num_workers=num_workers, devices_per_worker=devices_per_worker, step=step)
        if step.channels_last and self.data == "shard":
            yield 'FSDP2 shards only contiguous parameters: leave out channels_last=True, or data="shard"'

    def build(self, place: Place) -> Strategy:
        return TensorParallelStrategy(self.for_workers(place.group.world_size), place)


class TensorParallelStrategy(gradients.AveragingStrategy, ShardedStrategy):
    """Tensor parallelism, seen from one worker; workers in a row of the mesh train on the same samples."""

    def __init__(self, spec: TensorParallel, place: Place) -> None:
        super().__init__(place, MODEL, spec.model_ways)
        self.averages = self.data.world_size > 1
        self._spec = spec
        self.meets_in_forward = self.averages and spec.data == "shard"
        self._sharded: list[FSDPModule] = []

    def place(self, models: Models, optimizers: Optimizers, ddp_args: Mapping[str, Any]) -> list[nn.Module]:
        refuse_ddps_arguments("TensorParallel", ddp_args, wrap=self._place.wrap)
        if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
            raise ConfigError("LBFGS needs whole gradients: use a different optimizer, or DDP()")
        for model in models:
            refuse_unusable(
                model, "already split: register the plain model, and pass a function that splits it as plan="
            )
        self._note(models, optimizers)
        for model in models:
            self._split(model)
        self._hand_over(models, optimizers)
        for optimizer in optimizers:
            gradients.step_by_kind(optimizer)
        return list(models)

    def _split(self, model: nn.Module) -> None:
        step, trained = self._step, any(parameter.requires_grad for parameter in model.parameters())
        if step.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # The model is split on the device where the user has put it, and moved afterwards, because the whole
        # model may not fit on this worker's device.
        self.group.broadcast_tensors([*model.parameters(), *model.buffers()])
        blocks = chosen_blocks(model, None)
        # A model without trainable parameters, such as a frozen teacher, may stay whole.
        required = trained or self._spec.plan is not None
        split_model(model, self._mesh[MODEL], self._spec.plan, self.group, required=required)
        model.to(self.devices[0])
        if step.compile:
            compile_in_place(*(blocks or [model]))
        self._buffers += list(model.buffers())
        if self.averages and trained:
            self._bring_together(model, blocks)

    def _bring_together(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Keep the copies of `model` equal: average their gradients, or shard the parameters with FSDP2."""
        copies = self._mesh[DATA]
        if self._spec.data == "replicate":
            self._averages.append(gradients.GradientAverage(model.parameters(), copies.get_group()))
            return
        try:
            for part in (*blocks, model):
                self._sharded.append(fully_shard(part, mesh=copies))
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(f'data="shard" can\'t shard this model: {error}') from error

    def sync_gradients(self, now: bool) -> None:
        super().sync_gradients(now)
        for part in self._sharded:
            part.set_requires_gradient_sync(now)

    def make_scaler(self) -> torch.amp.GradScaler:
        return gradients.SharedScaler(self.devices[0].type)

    def clip(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        return gradients.clip(parameters, max_norm, self.devices[0])

    def reshard(self) -> None:
        for part in self._sharded:
            part.reshard()

    def leave(self) -> None:
        self._sharded.clear()
        super().leave()


def _is_plan(plan: Any) -> bool:
    return isinstance(plan, Mapping) and all(
        isinstance(name, str) and isinstance(style, ParallelStyle) for name, style in plan.items()
    )
