"""The strategies that have a short name: what `TorchTrainer(strategy=)` takes as a string."""

from __future__ import annotations

import importlib
from typing import Any, cast

from trainkit.errors import ConfigError
from trainkit.train.strategies.base import StrategySpec

# Loaded when asked for: each brings its own part of torch.distributed.
HOMES = {
    "single": ("trainkit.train.strategies.single", "Single"),
    "ddp": ("trainkit.train.strategies.ddp", "DDP"),
    "fsdp": ("trainkit.train.strategies.fsdp", "FSDP"),
    "layers": ("trainkit.train.strategies.layers", "Layers"),
    "tensor": ("trainkit.train.strategies.tensor", "TensorParallel"),
    "pipeline": ("trainkit.train.strategies.pipeline", "Pipeline"),
}


def named_strategy(value: str | StrategySpec, *, num_workers: int) -> StrategySpec:
    """The strategy that `value` means, which may be one already.

    Args:
        value: a name, or "auto": single with one worker, data-parallel with several.
        num_workers: of the trainer.

    Raises:
        ConfigError: no strategy has that name, or it is something else.
    """
    if value == "auto":
        value = "single" if num_workers == 1 else "ddp"
    if isinstance(value, str):
        if value not in HOMES:
            raise _unknown(value)
        module, name = HOMES[value]
        value = cast(StrategySpec, getattr(importlib.import_module(module), name)())
    if isinstance(value, type) or not _is_spec(value):
        raise _unknown(value)
    # A strategy may mean "all workers" by an argument that it was not given.
    fitted = getattr(value, "for_workers", None)
    return value if fitted is None else cast(StrategySpec, fitted(num_workers))


def _unknown(value: Any) -> ConfigError:
    if isinstance(value, type) and _is_spec(value):
        return ConfigError(f"strategy={value.__name__}: that is the class; give a value, {value.__name__}()")
    return ConfigError(
        f"strategy={value!r}: give one of {('auto', *HOMES)}, or a strategy with settings, such as FSDP(...) "
        f"from trainkit.train.strategies.fsdp"
    )


def _is_spec(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("model_ways", "reporter", "spreads", "mistakes", "build"))
