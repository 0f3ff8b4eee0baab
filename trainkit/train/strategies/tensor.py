"""Tensor parallelism: each layer's matrices are split over workers, which exchange activations.

    two workers          x ─┬─▶ columns 0..n/2 of A ─▶ act ─▶ rows 0..n/2 of B ─┐
                            └─▶ columns n/2..n of A ─▶ act ─▶ rows n/2..n of B ─┴─▶ sum ─▶ y

Source: Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", arXiv:1909.08053; carried out by torch.distributed.tensor.parallel,
https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ParallelStyle

from trainkit.errors import CheckpointError, ConfigError
from trainkit.train.modules import skeleton
from trainkit.train.spread import local_part, shape_of, whole
from trainkit.train.step_settings import StepSettings
from trainkit.train.strategies import kinds
from trainkit.train.strategies.averaging import GradientAverage
from trainkit.train.strategies.base import Place, Strategy
from trainkit.train.strategies.mesh import DATA, MODEL, data_group, degree_mistakes, make_mesh
from trainkit.train.strategies.optimizers import ParameterSlots, parameter_names
from trainkit.train.strategies.single import SingleStrategy
from trainkit.train.strategies.splitting import split_model

log = logging.getLogger(__name__)

Plan = Mapping[str, ParallelStyle] | Callable[[nn.Module, DeviceMesh], Any]


@dataclass(frozen=True, kw_only=True)
class TensorParallel:
    """Each copy of the model is split over `degree` workers, layer by layer.

    Args:
        degree: workers that hold one copy together; None is all of them. With more workers there are
            several copies, among which the samples are dealt.
        plan: which modules are split, and how. Names (or patterns, as `layers.*.fc1`) to torch's styles, such
            as `ColwiseParallel()`; or a function of (model, mesh of the `degree` workers) that returns such
            a dictionary, or splits the model itself and returns it. What it doesn't name is whole on each
            worker. None: pairs of `nn.Linear`, and attention by heads, wherever a trial shows that it
            computes the same.
        data: how several copies of a model are kept: "replicate", each whole, gradients averaged; or
            "shard", each parameter's part spread further over the copies by FSDP2.

    Raises:
        ConfigError: an argument is wrong.
    """

    degree: int | None = None
    plan: Plan | None = None
    data: Literal["replicate", "shard"] = "replicate"

    def __post_init__(self) -> None:
        wrong = [] if self.degree is None else list(degree_mistakes(self.degree, self.degree or 1))
        if wrong:
            raise ConfigError(f"TensorParallel: degree={self.degree!r}: {wrong[0]}, or None for all workers")
        if self.data not in ("replicate", "shard"):
            raise ConfigError(f'TensorParallel: data={self.data!r}: give "replicate" or "shard"')
        if not (self.plan is None or callable(self.plan) or _is_plan(self.plan)):
            raise ConfigError(
                f"TensorParallel: plan={self.plan!r}: give {{name of a module: ColwiseParallel(), ...}}, or "
                f"a function of (model, mesh)"
            )

    def for_workers(self, num_workers: int) -> TensorParallel:
        """The same with a number for `degree`."""
        return self if self.degree is not None else replace(self, degree=num_workers)

    @property
    def model_ways(self) -> int:
        return self.degree or 1

    @property
    def reporter(self) -> int:
        return 0

    @property
    def spreads(self) -> bool:
        return True

    def mistakes(self, *, num_workers: int, devices_per_worker: int, step: StepSettings) -> Iterator[str]:
        degree = num_workers if self.degree is None else self.degree
        if degree == 1:
            yield "a model is split over 2 workers or more: give a larger num_workers, or strategy='auto'"
        yield from degree_mistakes(degree, num_workers)
        if devices_per_worker > 1:
            yield "each worker holds its part on one device: give gpus_per_worker=1 and more workers"

    def build(self, place: Place) -> Strategy:
        return TensorParallelStrategy(self.for_workers(place.group.world_size), place)


class TensorParallelStrategy(SingleStrategy):
    """See `TensorParallel`; workers of one row of the mesh compute the same from the same samples."""

    def __init__(self, spec: TensorParallel, place: Place) -> None:
        super().__init__(place)
        if not place.wrap:
            raise ConfigError("wrap_ddp=False leaves models as they are, but TensorParallel splits them")
        self.data = data_group(place.group, spec.model_ways)
        self.averages = self.data.world_size > 1
        self._spec = spec
        self._mesh = make_mesh(place.group, spec.model_ways, self.devices[0])
        self._slots = ParameterSlots([], [])
        self._skeletons: dict[int, nn.Module] = {}
        self._averages: list[GradientAverage] = []
        self._sharded: list[FSDPModule] = []

    # -- placing -------------------------------------------------------------------------------

    def place(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        ddp_args: Mapping[str, Any],
    ) -> list[nn.Module]:
        if ddp_args:
            raise ConfigError(
                f"ddp_args={dict(ddp_args)!r} are for DistributedDataParallel, which TensorParallel doesn't "
                f"use: leave them out"
            )
        for optimizer in optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise ConfigError("LBFGS needs all gradients in one piece: use another optimizer, or DDP()")
        self._slots = ParameterSlots(models, optimizers)
        self._skeletons = {id(model): skeleton(model) for model in models}
        placed = [self._placed(model) for model in models]
        self._slots.replace(optimizers, parameter_names(placed))
        for optimizer in optimizers:
            kinds.step_by_kind(optimizer)
        return placed

    def _placed(self, model: nn.Module) -> nn.Module:
        if self._place.step.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        trained = any(parameter.requires_grad for parameter in model.parameters())
        # A model with nothing to train, such as a frozen teacher, may stay whole.
        required = trained or self._spec.plan is not None
        # Split first, moved to the device then: no device need hold the whole.
        self.group.broadcast_tensors([*model.parameters(), *model.buffers()])
        original = model
        model = split_model(model, self._mesh[MODEL], self._spec.plan, self.group, required=required)
        self._skeletons[id(model)] = self._skeletons[id(original)]
        model = model.to(self.devices[0])
        if self.data.world_size > 1 and trained:
            self._over_data(model)
        if self._place.step.compile:
            model.compile()
        return model

    def _over_data(self, model: nn.Module) -> None:
        """Bring the copies of `model` together."""
        columns = self._mesh[DATA]
        if self._spec.data == "replicate":
            self._averages.append(GradientAverage(model.parameters(), columns.get_group()))
            return
        for block in _blocks(model):
            fully_shard(block, mesh=columns)
        fully_shard(model, mesh=columns)
        self._sharded.append(cast(FSDPModule, model))

    # -- stepping ------------------------------------------------------------------------------

    def sync_gradients(self, now: bool) -> None:
        for average in self._averages:
            average.active = now
        for model in self._sharded:
            model.set_requires_gradient_sync(now)

    def make_scaler(self) -> torch.amp.GradScaler:
        return kinds.SharedScaler(self.devices[0].type)

    def clip(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        return kinds.clip(parameters, max_norm)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        # Copies may have different numbers of validation batches, so forward passes must not bring
        # parameters together: those that FSDP2 spread are whole meanwhile.
        parts = [part for model in self._sharded for part in cast(nn.Module, model).modules()]
        sharded = [part for part in parts if isinstance(part, FSDPModule)]
        for part in sharded:
            part.unshard()
            part.set_reshard_after_forward(False, recurse=False)
        try:
            yield
        finally:
            for part in sharded:
                part.set_reshard_after_forward(part not in self._sharded, recurse=False)
                part.reshard()

    def leave(self) -> None:
        for average in self._averages:
            average.leave()
        self._averages.clear()
        self._sharded.clear()
        super().leave()

    # -- state ---------------------------------------------------------------------------------

    def state(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, Any]:
        return {
            "models": [model.state_dict() for model in models],
            "optimizers": self._slots.state(optimizers),
        }

    def load_state(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        state: Mapping[str, Any],
    ) -> None:
        self._slots.check(state["optimizers"])
        for model, saved in zip(models, state["models"], strict=True):
            _check(model.state_dict(), saved)
        for model, saved in zip(models, state["models"], strict=True):
            own = model.state_dict()
            model.load_state_dict({name: _like(value, own[name]) for name, value in saved.items()})
        self._slots.load(optimizers, state["optimizers"])

    def skeleton(self, model: nn.Module) -> nn.Module:
        return copy.deepcopy(self._skeletons[id(model)])


def _is_plan(plan: Any) -> bool:
    return isinstance(plan, Mapping) and all(
        isinstance(name, str) and isinstance(style, ParallelStyle) for name, style in plan.items()
    )


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated parts of a model: what its lists of modules hold, inner ones first."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return [block for held in reversed(lists) for block in held if any(True for _ in block.parameters())]


def _check(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless `saved` has the names and shapes of `own`."""
    if missing := sorted(set(own) ^ set(saved)):
        raise CheckpointError(f"the model and what was saved don't both have {', '.join(missing)}")
    for name, value in own.items():
        if shape_of(value) != shape_of(saved[name]):
            raise CheckpointError(
                f"{name} has the shape {shape_of(value)}, but {shape_of(saved[name])} was saved"
            )


def _like(saved: Any, own: Any) -> Any:
    return local_part(saved, own) if isinstance(own, torch.Tensor) else whole(saved)
