"""Strategies, environment and callback for Lightning's `Trainer` in a training function, under Ray's names.

If this process has imported both Lightning packages, instances work with both. A strategy behaves like the
strategy of the Lightning package whose trainer uses it.
"""

from __future__ import annotations

import os
import sys
from abc import ABCMeta
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from trainkit.errors import ConfigError
from trainkit.plugins.lightning.callbacks import FIRST, PACKAGES, OfEitherPackage, class_in
from trainkit.train.data.placed_loader import PlacedLoader
from trainkit.train.data.sharding import sampler_of
from trainkit.train.torch.context import report
from trainkit.train.torch.prepare import get_device
from trainkit.tune.core.checkpoint import Checkpoint, temporary_folder
from trainkit.tune.core.checks import load, require_whole
from trainkit.tune.trial.context import get_context

_environments: Any = load(f"{FIRST.__name__}.plugins.environments", "Lightning trainers", "lightning")


def _lightnings(kind: type) -> type:
    return next(base for base in kind.__mro__ if base.__module__.startswith(PACKAGES))


class _Extending(ABCMeta):
    """Metaclass of a strategy class that extends the class of the other Lightning package."""

    theirs: type

    def mro(cls) -> list[type]:
        found, theirs = super().mro(), cls.__dict__["theirs"].__mro__
        before = {*theirs, *_lightnings(found[1]).__mro__}
        return [*(each for each in found if each not in before), *theirs]


class _ResumableLoader(PlacedLoader):
    """Loader of a fit, which Lightning's checkpoints store with the position of the last trained batch.

    Args:
        loader: the loader with this worker's share of the samples.
        trainer: Lightning's trainer.
    """

    # Lightning saves the checkpoint of an epoch before it begins the next pass.
    has_position_at_end = True
    __slots__ = ("_trainer",)

    def __init__(self, loader: DataLoader[Any], trainer: Any) -> None:
        super().__init__(
            loader, rank=trainer.global_rank, world_size=trainer.world_size, sampler=sampler_of(loader)
        )
        self._trainer = trainer

    def __iter__(self) -> Any:
        # Lightning begins the pass of a fit that resumes before it sets the sampler's epoch, and processes of
        # the loader draw their samples at once. So the pass begins with the first batch.
        yield from super().__iter__()

    def _taken_ahead(self) -> int:
        # If the number of batches is unknown, Lightning takes a batch in advance.
        return len(getattr(self._trainer.fit_loop._data_fetcher, "batches", ()))

    def _order(self) -> dict[str, Any]:
        return {**super()._order(), "epoch": self._trainer.current_epoch}


class _OnWorker(OfEitherPackage):
    """Mixin for a strategy, which gives the device and the samples of this worker."""

    NEEDS_GPUS = False
    world_size: int
    global_rank: int

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._given = (arguments, options)

    @property
    def accelerator(self) -> Any:
        return self._accelerator

    @accelerator.setter
    def accelerator(self, accelerator: Any) -> None:
        """Store the trainer's accelerator; its class shows to which Lightning package the trainer belongs."""
        kind = type(self)
        for package in filter(None, map(sys.modules.get, PACKAGES)):
            theirs = class_in(package, self.NAME)
            if not isinstance(accelerator, package.accelerators.Accelerator) or _lightnings(kind) is theirs:
                continue
            base: Any = kind.__bases__[0] if isinstance(kind, _Extending) else kind
            more = {"theirs": theirs, "__module__": kind.__module__}
            self.__class__ = cast(Any, _Extending(kind.__name__, (base,), more))
            arguments, options = self._given
            _OnWorker.__init__(self, *arguments, **options)
        self._accelerator = accelerator

    def setup_environment(self) -> None:
        if self.NEEDS_GPUS and self.root_device.type == "cpu":
            raise ConfigError(
                "RayFSDPStrategy needs GPUs, because Lightning does not support sharding on CPUs: "
                "set ScalingConfig(use_gpu=True), or use RayDDPStrategy()"
            )
        super().setup_environment()  # type: ignore[misc]

    def setup(self, trainer: Any) -> None:
        # Lightning's handler of SIGTERM would run a collective in the middle of any other collective, and
        # would be inherited by the processes of loaders.
        trainer._signal_connector.register_signal_handlers = lambda: None
        super().setup(trainer)  # type: ignore[misc]

    @property
    def root_device(self) -> torch.device:
        return get_device()

    def process_dataloader(self, dataloader: Any) -> Any:
        loader = super().process_dataloader(dataloader)  # type: ignore[misc]
        trainer = self.lightning_module.trainer  # type: ignore[attr-defined]
        if not trainer.training or not isinstance(loader, DataLoader) or hasattr(loader, "state_dict"):
            return loader
        return _ResumableLoader(loader, trainer)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}


class RayDDPStrategy(_OnWorker, FIRST.strategies.DDPStrategy):  # type: ignore[misc]
    """Lightning's `DDPStrategy` in the process group of trainkit's workers; the arguments are Lightning's."""

    NAME = "strategies.DDPStrategy"


class RayFSDPStrategy(_OnWorker, FIRST.strategies.FSDPStrategy):  # type: ignore[misc]
    """Lightning's `FSDPStrategy` in the process group of trainkit's workers; the arguments are Lightning's.

    Raises:
        ConfigError: the trainer starts on a worker without a GPU.
    """

    NAME = "strategies.FSDPStrategy"
    NEEDS_GPUS = True


class RayDeepSpeedStrategy(_OnWorker, FIRST.strategies.DeepSpeedStrategy):  # type: ignore[misc]
    """Lightning's `DeepSpeedStrategy` in the process group of trainkit's workers; the arguments are
    Lightning's.

    Raises:
        lightning.fabric.utilities.exceptions.MisconfigurationException: DeepSpeed is not installed.
    """

    NAME = "strategies.DeepSpeedStrategy"


class RayLightningEnvironment(OfEitherPackage, _environments.LightningEnvironment):  # type: ignore[misc]
    """Lightning environment with the workers' ranks, for `Trainer(plugins=[RayLightningEnvironment()])`."""

    NAME = "plugins.environments.LightningEnvironment"

    def world_size(self) -> int:
        return get_context().get_world_size()

    def global_rank(self) -> int:
        return get_context().get_world_rank()

    def local_rank(self) -> int:
        return get_context().get_local_rank()

    def node_rank(self) -> int:
        return get_context().get_node_rank()

    def set_world_size(self, size: int) -> None:
        """Do nothing, because the number of workers is fixed."""

    def set_global_rank(self, rank: int) -> None:
        """Do nothing, because the rank of a worker is fixed."""

    def teardown(self) -> None:
        """Do nothing, because Lightning's method would remove the environment variable WORLD_SIZE."""


def prepare_trainer(trainer: Any) -> Any:
    """Check that `trainer` trains together with the other workers; return it unchanged.

    Args:
        trainer: a `Trainer(strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()])`, or a trainer
            with another strategy of this module.

    Raises:
        ConfigError: the trainer has a strategy from elsewhere, or a wrong rank or number of workers.
    """
    strategy, context = trainer.strategy, get_context()
    if not isinstance(strategy, _OnWorker):
        raise ConfigError(
            f"prepare_trainer: {type(strategy).__name__} is not one of RayDDPStrategy, RayFSDPStrategy and "
            "RayDeepSpeedStrategy: pass Trainer(strategy=RayDDPStrategy())"
        )
    environment = strategy.cluster_environment  # type: ignore[attr-defined]
    found = (environment.global_rank(), environment.world_size())
    if found != (context.get_world_rank(), context.get_world_size()):
        raise ConfigError(
            f"prepare_trainer: {type(environment).__name__} identifies this process as worker "
            f"{found[0]} of {found[1]}, but it is worker {context.get_world_rank()} of "
            f"{context.get_world_size()}: pass Trainer(plugins=[RayLightningEnvironment()])"
        )
    return trainer


class RayTrainReportCallback(OfEitherPackage, FIRST.callbacks.Callback):  # type: ignore[misc]
    """Callback that reports Lightning's logged metrics and a checkpoint after each training epoch.

    The reported metrics are `trainer.callback_metrics`, with the additional keys `epoch` and `step`. The
    checkpoint contains the file `checkpoint.ckpt`, with the position in the epoch. To resume from this file:
    `trainer.fit(model, ckpt_path=...)`.

    Args:
        checkpoint_upload_mode: see `trainkit.train.report`.
        validation: see `trainkit.train.report`.
        every_n_train_steps: number of optimizer steps after which a report is also made within an epoch;
            default: reports only after epochs.

    Raises:
        ConfigError: `every_n_train_steps` is below 1.
    """

    NAME = "callbacks.Callback"
    CHECKPOINT_NAME = "checkpoint.ckpt"

    def __init__(
        self,
        checkpoint_upload_mode: Any = None,
        validation: Any = False,
        every_n_train_steps: int | None = None,
    ) -> None:
        super().__init__()
        require_whole("every_n_train_steps", every_n_train_steps, 1, optional=True)
        self.every_n_train_steps = every_n_train_steps
        self._reported_step = 0
        self.checkpoint_upload_mode = checkpoint_upload_mode
        self.validation = validation

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Store the step at which the fit begins, whose checkpoint exists already."""
        self._reported_step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *batch: Any) -> None:
        """Report metrics and a checkpoint if enough optimizer steps have run since the last report."""
        step, every = trainer.global_step, self.every_n_train_steps
        # A batch whose gradients are accumulated makes no step. After the last batch, this method makes no
        # report, because the epoch's report follows with the same weights. Lightning would also end a fit
        # that resumes between these two reports.
        due = every is not None and step % every == 0 and step != self._reported_step
        if due and not trainer.is_last_batch:
            self._reported_step = step
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report metrics and a checkpoint; Lightning calls this method on all workers."""
        self._report(trainer)

    def _report(self, trainer: Any) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        with temporary_folder("trainkit_checkpoint_") as folder:
            trainer.save_checkpoint(os.path.join(folder, self.CHECKPOINT_NAME), weights_only=False)
            report(
                metrics,
                checkpoint=Checkpoint.from_directory(folder),
                checkpoint_upload_mode=self.checkpoint_upload_mode,
                validation=self.validation,
            )
