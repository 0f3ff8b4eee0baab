"""Data of an operator: the context of its worker, and the models and optimizers that it registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trainkit.errors import ConfigError
from trainkit.train.strategies.base import Place, StepSettings, Strategy
from trainkit.train.strategies.single import SingleStrategy


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Settings of a worker, passed to its operator's constructor; the default is one process on the CPU.

    Attributes:
        strategy: strategy that places models and shares data.
        local_rank: this worker's rank among the workers of its machine.
        step: settings for precision, accumulation and clipping.
        use_tqdm: True if a progress bar is shown.
        scheduler_step_freq: "batch", "epoch", "manual", or None without schedulers.
    """

    strategy: Strategy = field(default_factory=lambda: SingleStrategy(Place(devices=(torch.device("cpu"),))))
    local_rank: int = 0
    step: StepSettings = field(default_factory=StepSettings)
    use_tqdm: bool = False
    scheduler_step_freq: str | None = None


T = TypeVar("T")


@dataclass(frozen=True)
class Registered:
    """Objects that an operator has registered; the models are already on their devices and wrapped."""

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)

    def check_optimizers(self, models: Sequence[nn.Module], criterion: Any) -> None:
        """Raise ConfigError if no optimizer has a parameter of `models` or `criterion`.

        Only one optimizer must have a parameter of the models. The other optimizers may train other
        parameters, such as a temperature.
        """
        modules = [*models, *([criterion] if isinstance(criterion, nn.Module) else [])]
        owned = {id(parameter) for module in modules for parameter in module.parameters()}
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        if not any(id(parameter) in owned for group in groups for parameter in group["params"]):
            raise ConfigError(
                "register(): no optimizer has a parameter of the models, so training would change nothing: "
                "make the optimizers from the registered models, after any code that replaces layers"
            )


def as_list(value: Any, kind: type[T], what: str) -> list[T]:
    """Return `value`, which is a single object, a list or a tuple, as a list.

    Raises:
        ConfigError: `value` is empty, or an item is not an instance of `kind`.
    """
    # Other iterables count as a single object; for example, an nn.Sequential is one model.
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not items or not all(isinstance(item, kind) for item in items):
        raise ConfigError(f"register(): {what} must be one {kind.__name__} or a list of them, not {value!r}")
    return items


def in_shape_of(given: Any, items: list[T]) -> T | list[T] | tuple[T, ...]:
    """Return `items` as a list if `given` is a list, as a tuple if `given` is a tuple, and otherwise the only
    item.
    """
    if isinstance(given, tuple):
        return tuple(items)
    return items if isinstance(given, list) else items[0]


def check_wrapping(ddp_args: Any, apex_args: Any) -> None:
    """Raise ConfigError unless `ddp_args` is a dictionary or None, and `apex_args` is empty."""
    if ddp_args is not None and not isinstance(ddp_args, Mapping):
        raise ConfigError(
            f"register(): ddp_args must be a dictionary, not {ddp_args!r}. It applies to all models. To wrap "
            "models differently, pass wrap_ddp=False to TorchTrainer and wrap them in setup"
        )
    if apex_args:
        raise ConfigError(
            f"register(apex_args={apex_args!r}): Apex is not supported; leave apex_args out. For torch's own "
            "mixed precision, pass precision='fp16' or 'bf16' to TorchTrainer"
        )


def check_schedulers(schedulers: Sequence[Any], frequency: str | None) -> None:
    """Raise ConfigError if `schedulers` can't be stepped with this `scheduler_step_freq`."""
    wrong = [item for item in schedulers if not callable(getattr(item, "step", None))]
    if wrong:
        raise ConfigError(f"register(schedulers=): {wrong[0]!r} has no step(); pass learning rate schedulers")
    if schedulers and frequency is None:
        raise ConfigError(
            "schedulers are registered, but scheduler_step_freq is missing: pass "
            "scheduler_step_freq='batch', 'epoch' or 'manual' to TorchTrainer"
        )
    if frequency != "manual" and any(isinstance(item, ReduceLROnPlateau) for item in schedulers):
        raise ConfigError(
            f"ReduceLROnPlateau steps by a metric, so scheduler_step_freq={frequency!r} is not supported: "
            "pass 'manual', and call trainer.update_scheduler(metric)"
        )


BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def taken(method: Callable[..., Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `named` that `method` accepts as keyword arguments; all entries if `method` has
    no signature.
    """
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return dict(named)
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return dict(named)
    return {name: named[name] for name in named if name in parameters and parameters[name].kind in BY_NAME}
