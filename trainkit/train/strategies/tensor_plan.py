"""Plans of tensor parallelism, which say how modules are split: default plan, checks and application.

    x ──▶ first (split by columns) ──▶ a part of the units ──▶ last (split by rows) ──▶ sum

The two split layers give the same result as the whole layers if each unit between them is computed
independently of other units. Units are independent between two `nn.Linear` in an `nn.Sequential` with only
element-wise functions between them. For other pairs of layers the user must know whether units are
independent.

Source: Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from trainkit.errors import ConfigError
from trainkit.train.distributed.process_group import ProcessGroup

log = logging.getLogger(__name__)

ELEMENT_WISE = {
    *(nn.Identity, nn.Dropout, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU),
    *(nn.Mish, nn.Softplus, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh),
    *(nn.Hardsigmoid, nn.Hardswish, nn.Hardshrink, nn.Softshrink, nn.Threshold),
}
"""Modules without parameters that compute each output value from one input value."""


def default_plan(model: nn.Module, ways: int) -> dict[str, ParallelStyle]:
    """Return a plan for all pairs of layers that can safely be split over `ways` workers.

    A pair is two `nn.Linear` in an `nn.Sequential` with only element-wise modules between them.
    """
    plan: dict[str, ParallelStyle] = {}
    shared = _shared(model)
    for prefix, module in model.named_modules():
        if type(module).forward is not nn.Sequential.forward:
            continue
        first: str | None = None
        for child, layer in module._modules.items():
            name = f"{prefix}.{child}" if prefix else child
            if layer is None or _has_hooks(layer):
                first = None
            elif type(layer) in ELEMENT_WISE:
                continue
            elif type(layer) is not nn.Linear or layer in shared:
                first = None
            elif first is not None:
                plan |= {first: ColwiseParallel(), name: RowwiseParallel()}
                first = None
            elif layer.out_features % ways == 0:
                first = name
    return plan


def _has_hooks(layer: nn.Module) -> bool:
    """Return True if the layer has hooks, because hooks may need the values or gradients of all units."""
    return any(
        (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    )


def _shared(model: nn.Module) -> set[nn.Module]:
    """Return modules that occur twice or share a parameter; splitting them would end the sharing."""
    modules = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    owners = Counter(parameter for module in modules for parameter in module.parameters(recurse=False))
    return {
        module
        for module, count in modules.items()
        if count > 1 or any(owners[parameter] > 1 for parameter in module.parameters(recurse=False))
    }


def split_model(
    model: nn.Module, mesh: DeviceMesh, plan: Any, group: ProcessGroup, *, required: bool = True
) -> None:
    """Split the parameters of `model` over `mesh` according to `plan`; see `TensorParallel`.

    Args:
        model: a model with equal values on all workers; it is changed in place.
        mesh: one-dimensional mesh of the workers that hold one copy of the model.
        plan: plan as in `TensorParallel`; None means the default plan.
        group: all workers.
        required: True raises an error if nothing is split.

    Raises:
        ConfigError: the plan does not fit the model, or nothing is split although `required` is True.
    """
    owners = _owners(model)
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    if plan is None:
        plan = default_plan(model, mesh.size())
        if group.rank == 0:
            log.info("modules split over %d workers: %s", mesh.size(), ", ".join(plan) or "nothing")
    elif callable(plan):
        plan = plan(model, mesh)
        if plan is model:
            plan = {}
        elif not isinstance(plan, Mapping):
            raise ConfigError(f"plan() must return a dict or the split model, not a {type(plan).__name__}")
    _check_names(model, plan)
    _apply(model, mesh, plan)
    _tie(model, owners)
    for name, parameter in model.named_parameters():
        if name in wanted:
            parameter.requires_grad_(wanted[name])
    _check_shards(model, mesh.size(), required=required)
    _leave_fast_paths(model)


def _apply(model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]) -> None:
    for name, style in plan.items():
        try:
            parallelize_module(model, mesh, {name: style})
        except (NotImplementedError, AssertionError, ValueError, RuntimeError) as error:
            raise ConfigError(f"plan: {name!r} can't be split by {style!r}: {error}") from error


def _check_names(model: nn.Module, plan: Mapping[str, Any]) -> None:
    names = [name for name, _ in model.named_modules() if name]
    for pattern, style in plan.items():
        if not isinstance(pattern, str) or not isinstance(style, ParallelStyle):
            raise ConfigError(f"plan must map module names to torch's styles, not {pattern!r} to {style!r}")
        if not any(_matches(name, pattern) for name in names):
            raise ConfigError(f"plan: no module matches {pattern!r}; the modules are {', '.join(names[:39])}")


def _matches(name: str, pattern: str) -> bool:
    """Return True if `name` matches `pattern`; each part between dots must match, as in torch."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


Owner = tuple[nn.Module, str]


def _owners(model: nn.Module) -> list[list[Owner]]:
    """Return a list for each shared parameter: the modules that have the parameter, each with the parameter's
    name in the module.
    """
    places: dict[int, list[Owner]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places[id(parameter)].append((module, name))
    return [owners for owners in places.values() if len(owners) > 1]


def _tie(model: nn.Module, shared: list[list[Owner]]) -> None:
    """Make modules share a parameter again if they shared it before they were split."""
    for owners in shared:
        (first, name), *others = owners
        kept: Any = first._parameters[name]
        for module, other in others:
            tensor: Any = module._parameters[other]
            if _layout(tensor) != _layout(kept):
                raise ConfigError(
                    f"plan: {type(first).__name__}.{name} and {type(module).__name__}.{other} are the same "
                    "parameter: split both in the same way, or neither"
                )
            module._parameters[other] = kept


def _layout(tensor: Tensor) -> Any:
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
                        f"plan: {name} has {length} units, which can't be split evenly among {ways} workers: "
                        f"pass a degree that divides {length}, or leave {name} out of the plan"
                    )
    if required and not split:
        raise ConfigError(
            f"no module of {type(model).__name__} was split over {ways} workers: without a plan, only pairs "
            "of nn.Linear in an nn.Sequential are split, with element-wise modules between them and a width "
            f"that {ways} divides. Pass a plan that splits the first layers by columns and the next by rows: "
            "TensorParallel(plan={'*.fc1': ColwiseParallel(), '*.fc2': RowwiseParallel()}), or use FSDP()"
        )


def _leave_fast_paths(model: nn.Module) -> None:
    """Turn off nested tensors in torch's transformer, because their kernel can't use split weights."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False
