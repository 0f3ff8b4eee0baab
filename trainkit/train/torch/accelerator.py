"""Accelerate in a worker: refused where it would train otherwise than it was asked to, and say nothing.

On the CPU, Accelerate leaves out FSDP and fp16 without a word. `PartialState()` without `cpu=True` takes each
of several processes for the only one, and each of them would train a model of its own.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch.distributed as dist

from trainkit.errors import ConfigError

MODULE = "accelerate.state"


def watch_accelerate() -> None:
    """Check from now on what Accelerate makes of this process, as soon as it is imported."""
    if MODULE in sys.modules:
        check_states(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _OnImport())


class _OnImport(MetaPathFinder):
    """Has the checks made once Accelerate is imported, and is gone then."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(_run, loader.exec_module)
        return spec


def _run(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    execute(module)
    check_states(module)


def check_states(module: Any) -> None:
    """Have Accelerate's two states checked whenever they are made or asked for.

    Args:
        module: `accelerate.state`.
    """
    _check_after(module.PartialState, check_processes)
    _check_after(module.AcceleratorState, check_mode)


def _check_after(state: Any, check: Callable[[Any], None]) -> None:
    plain = state.__init__
    if hasattr(plain, "__wrapped__"):  # an engine without processes of its own runs several workers here
        return

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        check(self)

    state.__init__ = init


def check_processes(state: Any) -> None:
    """Refuse a `PartialState` that does not know the other workers.

    Raises:
        ConfigError: it counts other processes than there are.
    """
    workers = dist.get_world_size() if dist.is_initialized() else state.num_processes
    if state.num_processes != workers:
        raise ConfigError(
            f"Accelerate counts {state.num_processes} processes where there are {workers} workers, so each "
            "would train by itself: on the CPU make an Accelerator() first, or PartialState(cpu=True), and "
            "don't change ACCELERATE_USE_CPU"
        )


def check_mode(state: Any) -> None:
    """Refuse an `AcceleratorState` on the CPU that was asked for what only GPUs do.

    Raises:
        ConfigError: it was asked for FSDP or fp16.
    """
    if state.device.type != "cpu":
        return
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise ConfigError(
            "Accelerate was asked for FSDP, and this worker has no GPU: Accelerate would keep the whole "
            "model on each worker. Ask for ScalingConfig(use_gpu=True), or leave FSDP out; "
            "trainkit.train.torch.prepare_model(parallel_strategy='fsdp2') shards on the CPU too"
        )
    if state.mixed_precision == "fp16":
        raise ConfigError(
            "Accelerate was asked for mixed_precision='fp16', and this worker has no GPU: Accelerate would "
            "compute in full precision. Ask for 'bf16', or for ScalingConfig(use_gpu=True)"
        )
