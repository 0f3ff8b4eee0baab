"""Functions that compile models in place, copy models with or without values, and cut models evenly."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, cast

import torch
from torch import nn


def compile_in_place(*modules: nn.Module) -> None:
    """Compile `modules` with `torch.compile`; their parameters and names stay unchanged.

    torch's `module.compile()` works for a user's own class, but skips torch's own classes, such as
    `nn.Sequential`. So `compile_in_place` compiles a small function around the forward method. Equal modules
    share the compiled code. Different modules have separate functions, because torch limits compilations per
    function (`torch._dynamo.config.recompile_limit`).
    """
    codes: dict[Any, CodeType] = {}
    for module in modules:
        _compile(module, codes.setdefault(_kind(module), _traced(module.forward).__code__.replace()))


def _kind(module: nn.Module) -> tuple[Any, ...]:
    """Return a key for `module`; modules with equal keys can share compiled code."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    values = [
        (name, key, value)
        for name, part in module.named_modules()
        for key, value in [("class", type(part)), *vars(part).items()]
        if isinstance(value, (bool, int, float, str, type))
    ]
    return (*values, *((name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in tensors))


def _traced(forward: Callable[..., Any]) -> FunctionType:
    def traced(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return cast(FunctionType, traced)


def _compile(module: nn.Module, code: CodeType) -> None:
    function = _traced(module.forward)
    function.__code__ = code
    compiled, call, own = torch.compile(function), module._call_impl, vars(module)

    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return call(*args, **kwargs)  # type: ignore[no-untyped-call]
        # Only the forward method is compiled, because hooks, such as FSDP2's hooks that gather parameters,
        # would break the graph. The forward method is replaced only during a call, so that copies and pickles
        # of the module do not contain the compiled function.
        before = own.get("forward")
        own["forward"] = compiled
        try:
            return call(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            if before is None:
                del own["forward"]
            else:
                own["forward"] = before

    # `Module.compile()` sets this attribute too. No other attribute replaces a module's call without wrapping
    # the module.
    module._compiled_call_impl = called


class StrategyHook:
    """Base class of forward pre-hooks that strategies add to modules, and remove from copies for the user."""


def on_cpu(model: nn.Module) -> nn.Module:
    """Return a copy of `model` on the CPU, without using further memory of the model's device."""
    return _copied(model, lambda tensor: tensor.detach().to("cpu", copy=True))


def skeleton(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with parameters on "meta".

    Buffers keep their values, because a state may lack buffers.
    """
    return _copied(model, lambda tensor: torch.empty_like(tensor, device="meta"))


def filled(model: nn.Module, state: Mapping[str, torch.Tensor]) -> nn.Module:
    """Fill a result of `skeleton` with the values of `state`; parameters with several names are shared again.

    Args:
        model: result of `skeleton`, which is changed in place.
        state: whole tensors by name, on the CPU.
    """
    shared: dict[int, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in shared:
                value = state[f"{prefix}.{name}" if prefix else name]
                shared[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
            module._parameters[name] = shared[id(parameter)]
    model.load_state_dict(state)
    return model


def lies_elsewhere(model: nn.Module, device: torch.device) -> bool:
    """Return True if a parameter or buffer is on a device other than the CPU and `device`."""
    places = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return not places <= {torch.device("cpu"), device}


def _copied(model: nn.Module, parameter_of: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    copies: dict[int, Any] = {}
    for parameter in model.parameters():
        copies[id(parameter)] = nn.Parameter(parameter_of(parameter), requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        copies[id(buffer)] = buffer.detach().to("cpu", copy=True)
    # deepcopy takes objects from its memo instead of copying them, so the copies made above are passed as
    # memo.
    clone = copy.deepcopy(model, copies)
    for module in clone.modules():
        hooks: dict[int, Any] = module._forward_pre_hooks
        for key, hook in list(hooks.items()):
            if isinstance(hook, StrategyHook):
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
    return clone


def even_starts(sizes: Sequence[int], groups: int) -> list[int]:
    """Cut `sizes` into `groups` non-empty groups; return the indices where groups after the first start.

    The largest group is as small as possible. If several cuts achieve this, the cut with the smallest sum of
    squares is chosen.
    """
    ends = [0, *itertools.accumulate(sizes)]
    # `best[end]` is (cost, starts) of the best way to cut the sizes before `end` into `round_` groups.
    best: dict[int, tuple[tuple[int, int], list[int]]] = {0: ((0, 0), [])}
    for round_ in range(1, groups + 1):
        longer: dict[int, tuple[tuple[int, int], list[int]]] = {}
        for end in range(round_, len(sizes) - (groups - round_) + 1):
            found: tuple[tuple[int, int], list[int]] | None = None
            # The latest start is tried first and wins ties, so that an activation function stays with the
            # layer before it.
            for start in (start for start in reversed(best) if start < end):
                (largest, squares), starts = best[start]
                size = ends[end] - ends[start]
                cost = max(largest, size), squares + size * size
                if found is None or cost < found[0]:
                    found = cost, [*starts, start]
                elif size > found[0][0]:
                    break  # Earlier starts would make the last group even larger.
            if found is not None:
                longer[end] = found
        best = longer
    return best[len(sizes)][1][1:]
