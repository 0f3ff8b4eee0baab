"""Trying out whether layers can be split: each worker's part is run in turn, and compared with the whole."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from trainkit.train.strategies.tensor_plan import Candidate


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
