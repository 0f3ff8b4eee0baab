"""Plans of tensor parallelism: found for a model, checked, and carried out.

    x ──▶ first (split by columns) ──▶ a part of the units ──▶ last (split by rows) ──▶ sum

This gives the numbers of the whole only if the model treats each unit (each head) between the two by itself.
Names and order suggest where to split. A trial with small random inputs then shows if it is so: each worker's
part is run in turn, and compared with the whole. Layers for which the trial shows nothing are left whole.

Source: Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils import _pytree as pytree

from trainkit.errors import ConfigError
from trainkit.train.distributed.process_group import ProcessGroup

ATTENTION: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("wq", "wk", "wv", "wo"),
    ("query", "key", "value", "out"),
    ("to_q", "to_k", "to_v", "to_out"),
    ("q", "k", "v", "o"),
)
"""Names of the projections to queries, keys and values, and of the one after attention."""

GATED: tuple[tuple[str, ...], ...] = (
    ("gate_proj", "up_proj", "down_proj"),
    ("gate", "up", "down"),
    ("w1", "w3", "w2"),
)
"""Names of the two that are multiplied, and of the one after them (Shazeer 2020, arXiv:2002.05202)."""

HEADS = (
    "n_heads num_heads n_head nhead heads num_attention_heads n_local_heads "
    "n_kv_heads num_kv_heads n_kv_head num_key_value_heads n_local_kv_heads"
).split()
"""Attributes of an attention module that count its heads; each worker has its share of them."""


@dataclass(frozen=True)
class Candidate:
    """Linear layers of one module that may be split together.

    Attributes:
        module: name of the module whose children they are; "" is the model.
        first: names of the children to split by columns.
        last: name of the child to split by rows.
        heads: attributes of the module to divide.
    """

    module: str
    first: tuple[str, ...]
    last: str
    heads: Mapping[str, int] = field(default_factory=dict)

    def styles(self) -> dict[str, ParallelStyle]:
        """Return the styles for torch's `parallelize_module`, by full name."""
        prefix = f"{self.module}." if self.module else ""
        columns: dict[str, ParallelStyle] = {prefix + name: ColwiseParallel() for name in self.first}
        return {**columns, prefix + self.last: RowwiseParallel()}


def default_candidates(model: nn.Module, ways: int) -> list[Candidate]:
    """Return the layers that may be split over `ways` workers, to be tried; alike on every worker."""
    shared = _shared(model)
    found = []
    for name, module in model.named_modules():
        layers = {
            child: layer
            for child, layer in module.named_children()
            if type(layer) is nn.Linear and layer not in shared
        }
        found += list(_candidates(name, module, layers, ways))
    return found


def heads_of(module: nn.Module) -> dict[str, int]:
    """Return the attributes of `module` that count heads."""
    values = {name: getattr(module, name, None) for name in HEADS}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 0
    }


def _shared(model: nn.Module) -> set[nn.Module]:
    """Return modules that occur twice, or share a parameter with another: splitting would separate them."""
    modules = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    owners = Counter(
        parameter for module in modules for parameter in module._parameters.values() if parameter is not None
    )
    twice = {module for module, count in modules.items() if count > 1}
    return twice | {
        module
        for module in modules
        if any(owners[parameter] > 1 for parameter in module._parameters.values() if parameter is not None)
    }


def _candidates(name: str, module: nn.Module, layers: dict[str, nn.Linear], ways: int) -> Iterator[Candidate]:
    left = dict(layers)
    for names in ATTENTION:
        if all(child in left for child in names):
            *first, last = names
            heads = heads_of(module)
            if not any(count % ways for count in heads.values()) and _fits(left, first, ways):
                yield Candidate(
                    name, tuple(first), last, {key: count // ways for key, count in heads.items()}
                )
            for child in names:
                del left[child]
    for names in GATED:
        if all(child in left for child in names):
            *first, last = names
            if _fits(left, first, ways) and left[first[0]].out_features == left[last].in_features:
                yield Candidate(name, tuple(first), last)
            for child in names:
                del left[child]
    # The rest in the order of their definition, which a Sequential runs them in.
    order = list(left)
    while len(order) > 1:
        first_name, last = order[0], order[1]
        if _fits(left, [first_name], ways) and left[first_name].out_features == left[last].in_features:
            yield Candidate(name, (first_name,), last)
            del order[:2]
        else:
            del order[0]


def _fits(layers: dict[str, nn.Linear], first: Sequence[str], ways: int) -> bool:
    return not any(layers[child].out_features % ways for child in first)


def computes_the_same(model: nn.Module, candidate: Candidate, ways: int) -> bool:
    """Return True if the module computes the same with split layers as with whole ones; change nothing.

    Each worker's part is run in turn, in evaluation mode, on small random inputs, with what the last layer
    gives replaced by the sum that all workers would get. Inputs have the features of the first layer, with
    one and two dimensions before them; what else the module takes is given None, or the same input.
    """
    module = model.get_submodule(candidate.module)
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        names = list(module._modules)
        start, end = names.index(candidate.first[0]), names.index(candidate.last)
        module = nn.Sequential(*[module.get_submodule(name) for name in names[start : end + 1]])
        candidate = Candidate("", ("0",), str(end - start), candidate.heads)
    like = module.get_parameter(f"{candidate.first[0]}.weight")
    width = like.shape[1]
    generator = torch.Generator().manual_seed(0)
    with _undisturbed(module, like.device):
        for shape in ((2, 4, width), (6, width)):
            values = torch.randn(shape, generator=generator).to(device=like.device, dtype=like.dtype)
            for inputs in _inputs(module, values):
                if (answer := _tried(module, candidate, inputs, ways)) is not None:
                    return answer
    return False


def _inputs(module: nn.Module, values: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield ways to call `module` with `values`, the likelier one first."""
    required = [
        parameter
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    count = max(1, len(required))
    yield (values, *[None] * (count - 1))
    if count > 1:
        yield (values,) * count


def _tried(module: nn.Module, candidate: Candidate, inputs: tuple[Any, ...], ways: int) -> bool | None:
    """Return True if both compute the same, None if the module can't be called so."""
    last = module.get_submodule(candidate.last)
    seen: list[torch.Tensor] = []
    instead: list[torch.Tensor] = []

    def keep(layer: nn.Module, args: Any, output: torch.Tensor) -> Any:
        seen.append(output)
        return instead[0] if instead else None

    handle = last.register_forward_hook(keep)
    try:
        # Whatever a module of the user's raises, when called with what it wasn't made for, means "not so".
        try:
            expected = module(*inputs)
        except Exception:
            return None
        if len(seen) != 1 or _touches_others(module, candidate, inputs, seen):
            return False
        instead.append(seen[0])
        seen.clear()
        total = torch.zeros_like(instead[0])
        for rank in range(ways):
            try:
                with _attributes(module, candidate.heads):
                    output = torch.func.functional_call(
                        module, _part(module, candidate, rank, ways), inputs, strict=False
                    )
            except Exception:
                return False
            if len(seen) != 1 or seen[0].shape != total.shape or not _equal(output, expected):
                return False
            total = total + seen.pop()
        return _close(total, instead[0])
    finally:
        handle.remove()


def _touches_others(
    module: nn.Module, candidate: Candidate, inputs: tuple[Any, ...], seen: list[torch.Tensor]
) -> bool:
    """Return True if a part between the first and the last layers takes another value that wants a gradient.

    A worker would find only its own units' part of that gradient: torch sums it where the first layers begin.
    """
    split = [*candidate.first, candidate.last]
    own = {parameter for child in split for parameter in module.get_submodule(child).parameters()}
    others = [
        parameter for parameter in module.parameters() if parameter not in own and parameter.requires_grad
    ]

    def cut(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(value.detach() for value in args)

    handles = [module.get_submodule(child).register_forward_pre_hook(cut) for child in candidate.first]
    try:
        with torch.enable_grad():
            values = inputs[0].detach().requires_grad_()
            seen.clear()
            module(*[values if value is inputs[0] else value for value in inputs])
            result = seen[0].sum()
            if not result.requires_grad:
                return False
            found = torch.autograd.grad(result, [values, *others], allow_unused=True)
        return any(gradient is not None for gradient in found)
    finally:
        seen[:] = [value.detach() for value in seen]
        for handle in handles:
            handle.remove()


def _part(module: nn.Module, candidate: Candidate, rank: int, ways: int) -> dict[str, torch.Tensor]:
    """Return the split parameters as worker `rank` of `ways` holds them."""
    part: dict[str, torch.Tensor] = {}
    for child in candidate.first:
        for name, parameter in module.get_submodule(child).named_parameters():
            part[f"{child}.{name}"] = parameter.chunk(ways, dim=0)[rank]
    last = module.get_submodule(candidate.last)
    for name, parameter in last.named_parameters():
        if parameter.dim() > 1:
            part[f"{candidate.last}.{name}"] = parameter.chunk(ways, dim=1)[rank]
        elif rank > 0:  # a bias counts once
            part[f"{candidate.last}.{name}"] = torch.zeros_like(parameter)
    return part


def _equal(output: Any, expected: Any) -> bool:
    ours, theirs = pytree.tree_leaves(output), pytree.tree_leaves(expected)
    return len(ours) == len(theirs) and all(
        _close(mine, its)
        if isinstance(mine, torch.Tensor) and isinstance(its, torch.Tensor)
        else mine is its or mine == its
        for mine, its in zip(ours, theirs, strict=True)
    )


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    tolerance = 1e-3 if one.dtype in (torch.float32, torch.float64) else 5e-2
    scale = float(other.abs().max()) if other.numel() else 0.0
    return bool(torch.isfinite(other).all()) and float((one - other).abs().max()) <= tolerance * max(
        scale, 1e-6
    )


@contextmanager
def _undisturbed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Put `module` into evaluation mode for the block, and restore it and random states afterwards."""
    modes = {part: part.training for part in module.modules()}
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        module.eval()
        try:
            yield
        finally:
            for part, training in modes.items():
                part.training = training


@contextmanager
def _attributes(module: nn.Module, values: Mapping[str, int]) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


log = logging.getLogger(__name__)

PROJECTIONS = {name for names in ATTENTION for name in names}


def split_model(
    model: nn.Module, mesh: DeviceMesh, plan: Any, group: ProcessGroup, *, required: bool = True
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


def _default_candidates(model: nn.Module, ways: int, group: ProcessGroup) -> list[Candidate]:
    candidates = default_candidates(model, ways)
    # Worker 0 tries for all: rounding may differ between machines.
    mine = candidates if group.rank == 0 else []
    found = group.broadcast_integers([int(computes_the_same(model, each, ways)) for each in mine])
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
    """Match a name with a pattern part by part, like torch."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


Owner = tuple[nn.Module, str]


def _owners(model: nn.Module) -> list[list[Owner]]:
    """Return the places of each parameter that has several."""
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
