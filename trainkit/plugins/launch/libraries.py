"""Checks in a worker, which raise an error or warn if a library would silently train differently than
requested.

On the CPU, Accelerate silently ignores FSDP and fp16. `PartialState()` without `cpu=True` assumes that each
process is the only one, so each process would train a separate model. Lightning's strategies `ddp_fork`,
`ddp_spawn` and `ddp_notebook` would start further processes in each worker, and these would wait for each
other forever.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from trainkit.errors import ConfigError


def watch_libraries() -> None:
    """Install the checks of each library when the library is imported, or now if it is imported already."""
    _watch(CHECKS)


def watch_ranks(rank: int, ranks: int, tell: Callable[[str], None]) -> None:
    """Make rank 0 of a script print one warning if Accelerate treats each rank as a separate program.

    Args:
        rank: rank of this process.
        ranks: number of ranks.
        tell: function that prints the warning's text.
    """
    if rank != 0:
        return
    told: list[str] = []

    def check(state: Any) -> None:
        if state.num_processes != ranks and not told:
            told.append(
                f"Accelerate counts {state.num_processes} process, but there are {ranks} ranks, so each rank "
                "trains its own model: on the CPU use Accelerator(cpu=True) or PartialState(cpu=True)"
            )
            tell(told[0])

    _watch({"accelerate.state": lambda module: _check_after(module.PartialState, check)})


def _watch(checks: Mapping[str, Callable[[Any], None]]) -> None:
    for name, check in checks.items():
        if name in sys.modules:
            check(sys.modules[name])
        else:
            _ON_IMPORT.add(name, check)


class _OnImport(MetaPathFinder):
    """Import hook that runs the checks for a library after the library has been imported."""

    def __init__(self) -> None:
        self._awaited: dict[str, list[Callable[[Any], None]]] = {}

    def add(self, name: str, check: Callable[[Any], None]) -> None:
        """Register a check for a module that is not imported yet."""
        if check not in self._awaited.setdefault(name, []):
            self._awaited[name].append(check)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._awaited:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(self._run, loader.exec_module, fullname)
        return spec

    def _run(self, execute: Callable[[ModuleType], None], name: str, module: ModuleType) -> None:
        # If the import fails, the checks do not run, and stay registered for the next import.
        execute(module)
        for check in self._awaited.pop(name, ()):
            check(module)


_ON_IMPORT = _OnImport()


def check_states(module: Any) -> None:
    """Make Accelerate's two state classes run a check whenever one of their instances is created.

    Args:
        module: the module `accelerate.state`.
    """
    _check_after(module.PartialState, check_processes)
    _check_after(module.AcceleratorState, check_mode)


def _check_after(state: Any, check: Callable[[Any], None]) -> None:
    plain = state.__init__
    made = getattr(plain, "checks", ())
    # If workers share this process, another worker may have installed the check already.
    if check in made:
        return

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        check(self)

    state.__init__ = init
    state.__init__.checks = (*made, check)


def check_processes(state: Any) -> None:
    """Raise ConfigError if a `PartialState` counts fewer processes than there are workers.

    Raises:
        ConfigError: the state's number of processes differs from the number of workers.
    """
    import torch.distributed as dist

    workers = dist.get_world_size() if dist.is_initialized() else state.num_processes
    if state.num_processes != workers:
        raise ConfigError(
            f"Accelerate counts {state.num_processes} processes, but there are {workers} workers, so each "
            "worker would train its own model: on the CPU create an Accelerator() or "
            "PartialState(cpu=True) first, and don't change ACCELERATE_USE_CPU"
        )


def check_mode(state: Any) -> None:
    """Raise ConfigError if an `AcceleratorState` on the CPU has settings that need GPUs.

    Raises:
        ConfigError: FSDP or fp16 was requested.
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


def check_launcher(module: Any) -> None:
    """Make Lightning refuse to start processes in a worker that already belongs to a process group.

    Args:
        module: Lightning's module that starts processes for its fork and spawn strategies.
    """
    launcher = module._MultiProcessingLauncher
    plain = launcher.launch
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def launch(self: Any, *args: Any, **options: Any) -> Any:
        import torch.distributed as dist

        if dist.is_initialized():
            workers = dist.get_world_size()
            raise ConfigError(
                "a strategy of Lightning such as 'ddp_fork' or 'ddp_spawn' would start processes in each of "
                f"the {workers} workers. To use the existing workers, pass strategy='ddp' with the number of "
                "workers per machine as devices, or strategy=RayDDPStrategy()"
            )
        return plain(self, *args, **options)

    launcher.launch = launch


CHECKS: dict[str, Callable[[Any], None]] = {
    "accelerate.state": check_states,
    **dict.fromkeys(
        (
            f"{package}.strategies.launchers.multiprocessing"
            for package in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
        ),
        check_launcher,
    ),
}
"""Maps modules of libraries to the function that installs checks in the module."""
