"""How a model's matrices are split if its user doesn't say: pairs of `nn.Linear`, and attention by heads.

    x ──▶ first (split by columns) ──▶ what lies between, on a part of the units ──▶ last (by rows) ──▶ sum

That gives the numbers of the whole only if what lies between treats each unit (each head) by itself. Names
and order suggest where to split; a trial with small random inputs then shows whether it is so, and what can't
be shown is left whole.

Source: Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.utils import _pytree as pytree

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
        """For torch's `parallelize_module`, by full name."""
        prefix = f"{self.module}." if self.module else ""
        columns: dict[str, ParallelStyle] = {prefix + name: ColwiseParallel() for name in self.first}
        return {**columns, prefix + self.last: RowwiseParallel()}


def default_candidates(model: nn.Module, ways: int) -> list[Candidate]:
    """What may be split over `ways` workers, to be tried by `computes_the_same`; alike on every worker."""
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
    """The attributes of `module` that count heads."""
    values = {name: getattr(module, name, None) for name in HEADS}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 0
    }


def _shared(model: nn.Module) -> set[nn.Module]:
    """Modules that occur twice, or hold a parameter that another one holds too: splitting would part them."""
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


# -- the trial ---------------------------------------------------------------------------------


def computes_the_same(model: nn.Module, candidate: Candidate, ways: int) -> bool:
    """Whether the module computes with its layers split what it computes with whole ones; changes nothing.

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
    """Ways to call `module` with `values`, the likelier one first."""
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
    """Whether both compute the same; None if the module can't be called so."""
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
    """Whether what lies between first and last layers takes anything that wants a gradient but those layers.

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
    """The split parameters as worker `rank` of `ways` holds them."""
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
    """A block that runs `module` in evaluation mode and leaves no trace in it or in random states."""
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
