"""Carrying out a plan of tensor parallelism on one model, with what torch leaves to its caller checked."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from trainkit.errors import ConfigError
from trainkit.train.process_group import WorkerGroup
from trainkit.train.strategies.tensor_plan import (
    ATTENTION,
    Candidate,
    computes_the_same,
    default_candidates,
    heads_of,
)

log = logging.getLogger(__name__)

PROJECTIONS = {name for names in ATTENTION for name in names}


def refuse_what_cannot_be_split(model: nn.Module) -> None:
    """Raise ConfigError if `model` has no values, or is split already."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise ConfigError(
                f"{name} is split already: register the plain model, and split it in plan=, a function"
            )
        if parameter.is_meta:
            raise ConfigError(
                f'{name} is on the "meta" device, without values: register a model with its weights; only '
                f"worker 0's are used, so the others' may be model.to_empty(device='cpu')"
            )


def split_model(
    model: nn.Module, mesh: DeviceMesh, plan: Any, group: WorkerGroup, *, required: bool = True
) -> None:
    """Split the parameters of `model` over `mesh` as `plan` says; see `TensorParallel`.

    Args:
        model: with the same values on all workers; it is changed.
        mesh: one-dimensional.
        plan: None for the default.
        group: all workers.
        required: whether it is a mistake if nothing is split.

    Raises:
        ConfigError: the plan does not fit the model, or there is none and nothing can be split.
    """
    chosen: list[Candidate] | None = None
    owners = _owners(model)
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    if plan is None:
        chosen = _default_candidates(model, mesh.size(), group)
        plan = {name: style for candidate in chosen for name, style in candidate.styles().items()}
    elif callable(plan):
        plan = plan(model, mesh)
        if plan is model:
            plan = {}
        elif not isinstance(plan, Mapping):
            raise ConfigError(
                f"plan(model, mesh) returned a {type(plan).__name__}: return a dictionary of names to "
                f"styles, or the same model, split"
            )
    if chosen is None:
        _check_names(model, plan, mesh.size())
    _apply(model, mesh, plan)
    for candidate in chosen or ():
        for name, count in candidate.heads.items():
            setattr(model.get_submodule(candidate.module), name, count)
    _tie(model, owners)
    for name, parameter in model.named_parameters():
        if name in wanted:
            parameter.requires_grad_(wanted[name])
    _check_shards(model, mesh.size(), required=required)
    _leave_fast_paths(model)


def _default_candidates(model: nn.Module, ways: int, group: WorkerGroup) -> list[Candidate]:
    candidates = default_candidates(model, ways)
    # Rounding may differ between machines: all do what worker 0 finds.
    found = group.broadcast_integers([int(computes_the_same(model, each, ways)) for each in candidates])
    chosen = [candidate for candidate, right in zip(candidates, found, strict=True) if right]
    if group.rank == 0:
        names = [name for candidate in chosen for name in candidate.styles()]
        log.info("split over %d workers: %s", ways, ", ".join(names) or "nothing")
    return chosen


def _apply(model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]) -> None:
    for name, style in plan.items():
        try:
            parallelize_module(model, mesh, {name: style})
        except (NotImplementedError, AssertionError, ValueError, RuntimeError) as error:
            raise ConfigError(f"plan: {name!r} can't be split by {style!r}: {error}") from error


def _check_names(model: nn.Module, plan: Mapping[str, Any], ways: int) -> None:
    modules = dict(model.named_modules())
    for pattern, style in plan.items():
        if not isinstance(pattern, str) or not isinstance(style, ParallelStyle):
            raise ConfigError(f"plan: {pattern!r}: {style!r}: give names of modules, and torch's styles")
        named = [name for name in modules if name and _matches(name, pattern)]
        if not named:
            raise ConfigError(
                f"plan: no module is called {pattern!r}; the model has {', '.join(list(modules)[1:40])}"
            )
        for name in named:
            owner, _, own = name.rpartition(".")
            heads = heads_of(modules[owner]) if own in PROJECTIONS else {}
            if any(count % ways for count in heads.values()):
                raise ConfigError(
                    f"plan: {name} is split over {ways} workers, which can't share its heads evenly "
                    f"({heads}): give a degree that divides them"
                )


def _matches(name: str, pattern: str) -> bool:
    """As torch does: part by part."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


Owner = tuple[nn.Module, str]


def _owners(model: nn.Module) -> list[list[Owner]]:
    """The places of each parameter that has several."""
    places: dict[int, list[Owner]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places[id(parameter)].append((module, name))
    return [owners for owners in places.values() if len(owners) > 1]


def _tie(model: nn.Module, shared: list[list[Owner]]) -> None:
    """Make one again of what was one parameter before each of its modules was split."""
    for owners in shared:
        (first, name), *others = owners
        kept: Any = first._parameters[name]
        for module, other in others:
            tensor: Any = module._parameters[other]
            if _layout(tensor) != _layout(kept):
                raise ConfigError(
                    f"plan: {type(first).__name__}.{name} and {type(module).__name__}.{other} are one "
                    f"parameter: split both in the same way, or neither"
                )
            module._parameters[other] = kept


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.placements if isinstance(tensor, DTensor) else None


def _check_shards(model: nn.Module, ways: int, *, required: bool) -> None:
    split = 0
    for name, parameter in model.named_parameters():
        for placement in parameter.placements if isinstance(parameter, DTensor) else ():
            if placement.is_shard():
                split += 1
                length = parameter.shape[placement.dim]  # type: ignore[attr-defined]
                if length % ways:
                    raise ConfigError(
                        f"plan: {name} has {length} units to split, which {ways} workers can't share evenly: "
                        f"give a degree that divides it, or leave it out of the plan"
                    )
    if required and not split:
        raise ConfigError(
            f"nothing of {type(model).__name__} was split over {ways} workers: no pair of nn.Linear was "
            f"found with only element-wise functions between them and a width that {ways} divides. Say what "
            f"to split, as in TensorParallel(plan={{'fc1': ColwiseParallel(), 'fc2': RowwiseParallel()}}), "
            f"or use FSDP()"
        )


def _leave_fast_paths(model: nn.Module) -> None:
    """Keep torch's own transformer from packing its input for a kernel that takes no split weights."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False
