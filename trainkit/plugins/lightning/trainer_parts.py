"""Strategy, cluster environment and callback with which Lightning's trainer runs inside a worker.

Lightning exists as two packages, `pytorch_lightning` and `lightning.pytorch`, whose classes can't be mixed.
The user's module decides which package is used. So this module makes subclasses of Lightning's classes only
after the package is known.
"""

from __future__ import annotations

import copy
import importlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from trainkit.errors import ConfigError
from trainkit.train.distributed.process_group import ProcessGroup


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """Device and ranks of a worker.

    Attributes:
        device: device of the module.
        group: all workers.
        local_rank: the worker's rank among the workers of its machine.
    """

    device: torch.device
    group: ProcessGroup
    local_rank: int


class Interrupted(BaseException):
    """Exception for Ctrl-C inside Lightning, because Lightning would exit the process after a
    KeyboardInterrupt.
    """


class _Direct:
    """Lightning's launcher for a process that is already running."""

    is_interactive_compatible = True

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt as error:
            raise Interrupted from error

    def kill(self, signum: int) -> None:
        """Do nothing, because no process was started."""


class _InWorker:
    """Mixin for Lightning's strategies in a worker, where trainkit starts processes and splits samples."""

    fit: Any  # A LightningFit, which handles loaders, losses and checkpoints.
    model: Any

    def _configure_launcher(self) -> None:
        self._launcher = _Direct()

    def setup(self, trainer: Any) -> None:
        # Lightning's handlers would keep SIGTERM from ending a worker that waits between epochs.
        trainer._signal_connector.register_signal_handlers = lambda: None
        super().setup(trainer)  # type: ignore[misc]
        self.fit.note_set_up()

    def process_dataloader(self, dataloader: Any) -> Any:
        lightning: Any = super()
        return self.fit.share(lightning.process_dataloader(dataloader))

    def backward(self, closure_loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        lightning: Any = super()
        weight = self.fit.weight
        return lightning.backward(closure_loss if weight == 1 else closure_loss * weight, *args, **kwargs)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        lightning: Any = super()
        if (
            reduce_op in ("mean", "avg", None)
            and isinstance(tensor, torch.Tensor)
            and not tensor.is_complex()
        ):
            # Integers, such as sample counts, may differ between workers, and a mean of integers would be
            # truncated.
            tensor = tensor if tensor.is_floating_point() else tensor.double()
        return lightning.reduce(tensor, group, reduce_op)

    def load_checkpoint(self, checkpoint_path: Any, **kwargs: Any) -> Any:
        return self.fit.state_to_load

    def teardown(self) -> None:
        lightning: Any = super()
        model = self.model
        lightning.teardown()
        if isinstance(model, DistributedDataParallel):
            # If these objects were freed later, they could free the process group and block; see
            # DDPStrategy.leave.
            vars(model).pop("logger", None)
            vars(model).pop("reducer", None)


class _Sharded:
    """Mixin for Lightning's strategy if trainkit's own strategy has sharded the module's parameters."""

    optimizers: Any
    _lightning_module: Any

    def configure_ddp(self) -> None:
        """Do nothing, because FSDP in the module gathers the parameters and averages the gradients."""

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        sharded = importlib.import_module("trainkit.train.strategies.sharded")
        states = []
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            held = [(group, parameter) for group in optimizer.param_groups for parameter in group["params"]]
            entries = {}
            for index, values in saved["state"].items():
                group, parameter = held[index]
                entries[index] = {
                    name: sharded.state_entry(name, value, parameter, group) for name, value in values.items()
                }
            states.append({**saved, "state": entries})
        lightning: Any = super()
        lightning.load_optimizer_state_dict({**checkpoint, "optimizer_states": states})

    def teardown(self) -> None:
        # Lightning must not move the module to the CPU, because the workers continue to use it.
        lightning: Any = super()
        module, self._lightning_module = self._lightning_module, None
        try:
            lightning.teardown()
        finally:
            self._lightning_module = module


class _Environment:
    """Mixin for Lightning's `ClusterEnvironment`, for workers that have already joined a process group."""

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 0
    worker: WorkerInfo

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self.worker.group.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing, because the number of workers is fixed."""

    def global_rank(self) -> int:
        return self.worker.group.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing, because the rank of a worker is fixed."""

    def local_rank(self) -> int:
        return self.worker.local_rank

    def node_rank(self) -> int:
        return 0


def make_strategy(package: Any, asked: Any, worker: WorkerInfo, fit: Any, *, sharded: bool) -> Any:
    """Return a strategy of Lightning, adapted to this worker.

    Args:
        package: `pytorch_lightning` or `lightning.pytorch`.
        asked: value of `strategy` in `trainer_args`: a name such as "ddp", a `DDPStrategy`, or None.
        worker: the worker's device and ranks.
        fit: a `LightningFit`, which handles loaders, losses and checkpoints.
        sharded: True if the module's parameters are sharded over the workers.

    Raises:
        ConfigError: `asked` has a different value, or the parameters are sharded and `asked` is not None.
    """
    if sharded and asked is not None:
        raise ConfigError(
            f"trainer_args['strategy']={asked!r} conflicts with TorchTrainer's sharding strategy=: pass one"
        )
    data_parallel = package.strategies.DDPStrategy
    names = {"ddp": {}, "ddp_find_unused_parameters_true": {"find_unused_parameters": True}}
    if asked is not None and asked not in names and not isinstance(asked, data_parallel):
        raise ConfigError(
            f"trainer_args['strategy']={asked!r} is not supported: a Lightning module trains on one worker "
            f"or data-parallel. Pass one of {tuple(names)} or a DDPStrategy, or leave it out"
        )
    if worker.group.world_size == 1:
        strategy = package.strategies.SingleDeviceStrategy(device=worker.device)
    else:
        strategy = (
            copy.deepcopy(asked)
            if isinstance(asked, data_parallel)
            else data_parallel(**names.get(asked or "ddp", {}))
        )
        # Lightning uses the local rank as an index into this list, but each worker sees only its own devices.
        strategy.parallel_devices = [worker.device] * (worker.local_rank + 1)
        environment = importlib.import_module(f"{package.__name__}.plugins.environments").ClusterEnvironment
        strategy.cluster_environment = type(
            "WorkerEnvironment", (_Environment, environment), {"worker": worker}
        )()
    bases = (_Sharded, _InWorker) if sharded else (_InWorker,)
    adopted: Any = type(f"Worker{type(strategy).__name__}", (*bases, type(strategy)), {"fit": fit})
    result = adopted.__new__(adopted)  # `result` is a copy of the strategy, with another class.
    vars(result).update(vars(strategy))
    return result


def make_callback(package: Any, fit: Any) -> Any:
    """Return a Lightning callback that notifies `fit`, a `LightningFit`, before and after each batch."""
    return package.callbacks.LambdaCallback(
        on_train_batch_start=lambda trainer, module, *batch: fit.begin_training_batch(*batch),
        on_train_batch_end=lambda trainer, module, outputs, *batch: fit.end_training_batch(outputs),
        on_validation_start=lambda trainer, module: fit.begin_validation(),
        on_validation_batch_start=lambda trainer, module, *batch: fit.begin_validation_batch(*batch),
        on_validation_batch_end=lambda trainer, module, outputs, *batch: fit.end_validation_batch(outputs),
    )


def resize(trainer: Any, limit: float) -> None:
    """Make the next epoch as long as `limit_train_batches=limit` requests.

    Lightning reads this setting only when it makes the loaders, so this function sets the values that
    Lightning derives from the setting.
    """
    loop, loader = trainer.fit_loop, trainer.fit_loop._combined_loader
    trainer.limit_train_batches = limit
    if loader is None:
        return  # Lightning will read the limit when the loop starts.
    loader.limits = [_limited(item, limit) for item in loader.flattened]
    combine = min if loader._mode == "min_size" else max
    loop.max_batches = combine(loader.limits)
    if isinstance(trainer.val_check_interval, float) and trainer.val_check_batch is not None:
        known = math.isfinite(loop.max_batches)
        trainer.val_check_batch = (
            max(1, int(loop.max_batches * trainer.val_check_interval)) if known else math.inf
        )


def _limited(loader: Any, limit: float) -> float:
    """Return the number of batches in a pass.

    `limit` is a number of batches (int), or a share of all batches (float).
    """
    try:
        length: float = len(loader)
    except (TypeError, NotImplementedError):
        length = math.inf
    if isinstance(limit, int):
        return min(length, limit)
    return int(length * limit) if math.isfinite(length) else length


_ADVICE = (
    r".*does not have many workers",
    r".*isinstance\(treespec, LeafSpec\)",  # code in Lightning causes this warning
)
"""Patterns of the warnings in which Lightning gives advice that can't be followed in a worker."""


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide Lightning's greetings and advice, but not its warnings about mistakes."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning.pytorch", "lightning")]
    greeting = [logger for logger in loggers if logger.level == logging.INFO]
    for logger in greeting:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for advice in _ADVICE:
                warnings.filterwarnings("ignore", message=advice)
            yield
    finally:
        for logger in greeting:
            logger.setLevel(logging.INFO)
