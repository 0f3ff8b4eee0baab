"""Operators made from Lightning modules, which are trained by Lightning's own loops, epoch by epoch.

Source: Lightning, "Trainer", https://lightning.ai/docs/pytorch/stable/common/trainer.html.
    `TrainingOperator.from_ptl` has its name from RaySGD v1.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from trainkit.errors import CheckpointError, ConfigError, MissingDependencyError
from trainkit.plugins.lightning.fit import LightningFit, StepTest
from trainkit.plugins.lightning.trainer_parts import WorkerInfo, make_callback, make_strategy, quiet_lightning
from trainkit.train.checkpoint.state import Hyperparameters
from trainkit.train.data.feed import Batch, Feed
from trainkit.train.data.sharding import FULL_WEIGHT
from trainkit.train.distributed.observers import Timed
from trainkit.train.distributed.process_group import ProcessGroup
from trainkit.train.distributed.tensors import cpu_copy
from trainkit.train.operator import Predicted
from trainkit.train.step.context import BY_NAME, Registered, WorkerContext, taken
from trainkit.train.step.epoch import EpochBatches
from trainkit.train.step.stepper import Stepper
from trainkit.train.strategies.base import StepSettings, Strategy
from trainkit.train.strategies.ddp import DDPStrategy
from trainkit.train.strategies.single import SingleStrategy

PACKAGES = ("pytorch_lightning", "lightning.pytorch")


def package_of(cls: Any, kind: str) -> str | None:
    """Return the Lightning package from which `cls` inherits the class `kind`; None if `cls` does not inherit
    from it.
    """
    for base in getattr(cls, "__mro__", ()):
        for name in PACKAGES:
            if base.__name__ == kind and base.__module__.startswith(f"{name}."):
                return name
    return None


def require_module_class(cls: Any) -> str:
    """Return the package that a LightningModule's class belongs to.

    Raises:
        ConfigError: `cls` is not a subclass of LightningModule.
        MissingDependencyError: Lightning is not installed.
    """
    if isinstance(cls, type) and (name := package_of(cls, "LightningModule")) is not None:
        return name
    if not any(map(_installed, PACKAGES)):
        raise MissingDependencyError.of("from_ptl() needs Lightning", "lightning")
    shown = repr(cls) if isinstance(cls, type) else f"an object of {type(cls).__name__}"
    raise ConfigError(f"from_ptl() needs a LightningModule class, not {shown}; workers make the instances")


def _installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def untaken(config: Mapping[str, Any], classes: Sequence[type[Any]]) -> list[str]:
    """Return the keys of `config` that `made_from` passes to no class in `classes`."""
    if any("config" in inspect.signature(cls).parameters for cls in classes):
        return []
    given = {name for cls in classes for name in taken(cls, _names_in(config))}
    return [name for name in config if name not in given]


def made_from(cls: type[Any], config: Mapping[str, Any]) -> Any:
    """Make an instance of `cls`.

    If `cls` has a parameter `config`, pass the whole configuration, else the matching keys.

    Raises:
        ConfigError: a parameter without a default is not in `config`.
    """
    parameters = inspect.signature(cls).parameters
    if "config" in parameters:
        return cls(config=dict(config))
    given = taken(cls, _names_in(config))
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in BY_NAME and parameter.default is inspect.Parameter.empty and name not in given
    ]
    if missing:
        raise ConfigError(
            f"{cls.__name__}{inspect.signature(cls)} needs {', '.join(missing)}, but config has "
            f"{sorted(map(str, config))}: add the keys, or let the class take all keys as `config`"
        )
    return cls(**given)


def _names_in(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if isinstance(name, str) and name.isidentifier()}


_OURS = {
    "accelerator": "pass use_gpu= to TorchTrainer",
    "callbacks": "pass callbacks= to from_ptl",
    "devices": "pass num_workers= and gpus_per_worker= to TorchTrainer",
    "fast_dev_run": "call train(num_steps=1) and validate(num_steps=1)",
    "max_steps": "call train(num_steps=...) as often as you need",
    "min_steps": "call train(num_steps=...) as often as you need",
    "num_nodes": "pass num_workers= to TorchTrainer",
    "use_distributed_sampler": "pass add_dist_sampler= to TorchTrainer",
}
"""Arguments of Lightning's trainer that users must not set, each with its replacement in trainkit."""

_PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


class LightningFeed(Feed):
    """Feed for a loader that Lightning makes and reads; it counts batches and has the loader's state."""

    def __init__(self) -> None:
        super().__init__((), group=ProcessGroup(), training=False)
        self.num_steps: int | None = None
        self.over = False
        self._real: Feed | None = None
        self._held: Mapping[str, Any] = {}

    def batches(
        self, epoch_idx: int = 0, num_steps: int | None = None, timed: Timed | None = None
    ) -> Iterator[Batch]:
        # The argument `timed` is not used, because the time that Lightning waits for batches is not known to
        # the feed.
        self.num_steps, self.over, self.taken = num_steps, False, 0
        return self._ticks()

    def _ticks(self) -> Iterator[Batch]:
        # Lightning itself reads the real batches. The values that this iterator yields only count the
        # batches.
        while not self.over:
            self.taken += 1
            yield Batch(None, FULL_WEIGHT)

    def attach(self, feed: Feed) -> None:
        """Use `feed`, made from Lightning's loader, and load the state that was waiting for it."""
        self._real = feed
        feed.load_state(self._held)
        self._held = {}

    def steps(self) -> int | None:
        return None if self._real is None else self._real.steps()

    def state(self) -> dict[str, Any]:
        return dict(self._held) if self._real is None else self._real.state()

    def load_state(self, held: Mapping[str, Any]) -> None:
        if self._real is None:
            self._held = held
        else:
            self._real.load_state(held)


@contextmanager
def ticking(feed: Feed | None, iterator: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Yield an iterator that counts the batches in the block; at the end of the block it is ended."""
    ticks = iter(iterator)
    if isinstance(ticks, EpochBatches):
        # The pause is turned off, because Lightning's loop can't pause, and because the last tick of a worker
        # with an error would wait for the other workers.
        ticks.pause = None
    try:
        yield ticks
    finally:
        if isinstance(feed, LightningFeed):
            feed.over = True
            next(ticks, None)


@dataclass(frozen=True, kw_only=True)
class LightningPlan:
    """Arguments of `from_ptl`."""

    module_cls: type[Any]
    package: str
    train_dataloader: Any = None
    val_dataloader: Any = None
    datamodule: Any = None
    callbacks: Sequence[Any] = ()
    trainer_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loaders = self.train_dataloader is not None or self.val_dataloader is not None
        if loaders and self.datamodule is not None:
            raise ConfigError("from_ptl() takes either train_dataloader= and val_dataloader=, or datamodule=")
        kind = self.datamodule if isinstance(self.datamodule, type) else type(self.datamodule)
        if self.datamodule is not None and package_of(kind, "LightningDataModule") != self.package:
            raise ConfigError(
                f"from_ptl(datamodule={self.datamodule!r}): pass a LightningDataModule of {self.package}, or "
                f"its class, because {self.module_cls.__name__} is a module of this package"
            )
        wrong = [item for item in self.callbacks if package_of(type(item), "Callback") != self.package]
        if wrong:
            raise ConfigError(f"from_ptl(callbacks={wrong!r}): pass callbacks of {self.package}")
        if ours := [f"{name}: {_OURS[name]}" for name in self.trainer_args if name in _OURS]:
            raise ConfigError("from_ptl(): trainer_args must not contain " + "; ".join(ours))


def arguments_of_step(step: StepSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `step`, settings of `TorchTrainer`, as arguments of Lightning's trainer.

    Raises:
        ConfigError: `given`, the user's arguments, contains one of these arguments too.
    """
    asked: dict[str, Any] = {}
    if step.precision != "32":
        asked["precision"] = _PRECISIONS[step.precision]
    if step.grad_accumulation_steps > 1:
        asked["accumulate_grad_batches"] = step.grad_accumulation_steps
    if step.max_grad_norm is not None:
        asked["gradient_clip_val"] = step.max_grad_norm
    if both := sorted(set(asked) & set(given)):
        raise ConfigError(
            f"from_ptl(): trainer_args contains {', '.join(both)}, which arguments of TorchTrainer "
            "(precision, grad_accumulation_steps, max_grad_norm) also set: set each value only once"
        )
    return asked


T = TypeVar("T")

log = logging.getLogger(__name__)


class LightningMethods:
    """Methods that replace methods of `TrainingOperator` in operators that train with Lightning.

    Attributes:
        lightning_trainer: Lightning's `Trainer`; None until training, validation or a loaded state needs it.
        validates_in_training: True if each training epoch ends with Lightning's own validation.
    """

    _plan: ClassVar[LightningPlan]
    validates_in_training: ClassVar[bool] = True
    _predicts: ClassVar[bool] = True

    # The following attributes belong to `TrainingOperator`.
    model: Any
    _registered: Registered
    _stepper: Stepper
    _train_feed: Feed | None
    _validation_feed: Feed | None
    global_step: int
    _context: WorkerContext
    _strategy: Strategy
    _config: dict[str, Any]

    _fit: LightningFit | None = None
    _sharded: bool
    """True if the module's parameters are sharded over the workers."""

    def setup(self, config: dict[str, Any]) -> None:
        """Make the module and the data module; Lightning calls their own `setup` later."""
        plan = self._plan
        # Lightning itself handles precision, accumulation and clipping.
        self._stepper.delegated()
        self._package = importlib.import_module(plan.package)
        self._worker = self._checked_worker()
        self.model = made_from(plan.module_cls, config)
        # Lightning's strategy moves the module to its device. The module is registered only so that the
        # trainer's state contains its weights.
        self._sharded = _is_fsdp(self._strategy)
        if self._sharded:
            self._shard()
        models = self._registered.models
        models.append(self.model)
        data = plan.datamodule
        self.datamodule = made_from(data, config) if isinstance(data, type) else copy.deepcopy(data)
        classes = [plan.module_cls, *([data] if isinstance(data, type) else [])]
        if self._context.strategy.group.rank == 0 and (unused := untaken(config, classes)):
            log.warning(
                "ignoring %s in config, because %s has no parameter with that name",
                ", ".join(map(repr, unused)),
                " or ".join(cls.__name__ for cls in classes),
            )
        self._train_feed = LightningFeed()
        if self._has_validation():
            self._validation_feed = LightningFeed()
        if self._overrides_of_module("configure_model"):
            self._running()  # Without this call, the module would have no weights yet.

    def get_model(self) -> Any:
        """Return this worker's `LightningModule`; RaySGD's operators have this method too."""
        return self.model

    @property
    def lightning_trainer(self) -> Any:
        return None if self._fit is None else self._fit.trainer

    @property
    def lightning_set_up(self) -> Hyperparameters | None:
        """Hyperparameters that `configure_optimizers` derived from the configuration; None before it ran."""
        return None if self._fit is None else self._fit.set_up

    def train_epoch(
        self, iterator: Iterable[Any], info: dict[str, Any], num_steps: int | None = None, epoch_idx: int = 0
    ) -> Mapping[str, Any]:
        """Run one epoch of Lightning, with its validation; return the logged values and the counts."""
        del info, epoch_idx  # Lightning counts epochs itself.
        if not isinstance(self._train_feed, LightningFeed):
            raise ConfigError("train() takes no dataset= with Lightning: pass from_ptl(train_dataloader=...)")
        fit = self._running()
        with ticking(self._train_feed, iterator) as ticks:
            metrics = fit.train(num_steps, ticks)
        self.global_step = int(fit.trainer.global_step)
        return metrics

    def validate(self, val_iterator: Iterable[Any], info: dict[str, Any]) -> Mapping[str, Any]:
        """Run Lightning's validation loop with its hooks; return the logged values and counts."""
        del info
        feed = self._validation_feed
        num_steps = feed.num_steps if isinstance(feed, LightningFeed) else None
        with ticking(feed, val_iterator) as ticks:
            return self._running().validate(num_steps, ticks)

    def begin_range_test(self, test: StepTest) -> None:
        """Let `test` set the learning rate of each following step and read the loss."""
        fit = self._running()
        fit.range_test = test
        trainer = fit.trainer
        test.optimizers = trainer.optimizers
        # The weights after a test are discarded, so Lightning must not write checkpoints, stop early or log.
        apart = ("Checkpoint", "EarlyStopping")
        trainer.callbacks = [
            each for each in trainer.callbacks if not any(_is_a(each, name) for name in apart)
        ]
        trainer.logger = None

    def predict(self, dataset: Any, num_steps: int | None) -> list[Predicted]:
        """Run Lightning's prediction loop; `TorchTrainer.predict` describes the arguments."""
        if dataset is None and not self._has_loader("predict_dataloader"):
            owner = self._plan.module_cls if self.datamodule is None else type(self.datamodule)
            raise ConfigError(f"predict() needs {owner.__name__}.predict_dataloader, or dataset=")
        loader = dataset(self._config) if callable(dataset) else dataset
        return self._running().predict(loader, num_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return a dictionary with Lightning's checkpoint; it is empty before Lightning has started."""
        if self._fit is None:
            return {}
        return {"lightning": self._fit.checkpoint() if self._fit.alive else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """End the current fit cleanly, and start a new one from Lightning's checkpoint.

        Raises:
            CheckpointError: Lightning refuses the checkpoint; the previous state continues.
        """
        if "lightning" in state_dict and state_dict["lightning"] is None:
            raise CheckpointError("this state can't be loaded: it was saved after Lightning's fit had failed")
        running = self._fit if self._fit is not None and self._fit.alive else None
        before = None if running is None else cpu_copy(running.checkpoint())
        self.close()
        self._fit = None
        if not state_dict:
            return
        try:
            self._fit = self._begun(cpu_copy(state_dict["lightning"]))
        except Exception as error:
            if before is not None:
                self._fit = self._begun(before)
            raise CheckpointError(f"Lightning can't load this state: {error}") from error

    def close(self) -> None:
        """Let Lightning run its hooks for the end of training and of the fit."""
        if self._fit is not None:
            try:
                self._fit.end()
            except Exception:
                # The error is also logged, because a shutdown may ignore the raised error.
                log.exception("Lightning's hooks at the end of the fit failed")
                raise

    def _running(self) -> LightningFit:
        if self._fit is None:
            self._fit = self._begun(None)
        return self._fit

    def _begun(self, state: Mapping[str, Any] | None) -> LightningFit:
        plan, package, worker = self._plan, self._package, self._worker
        utilities = importlib.import_module(f"{plan.package}.utilities.rank_zero")
        utilities.rank_zero_only.rank = worker.group.rank
        fit = LightningFit(worker=worker, split=self._split, shared=self._shared, state=state)
        arguments = self._trainer_arguments()
        strategy = make_strategy(package, arguments.pop("strategy", None), worker, fit, sharded=self._sharded)
        callbacks = [make_callback(package, fit), *copy.deepcopy(list(plan.callbacks))]
        with quiet_lightning():
            trainer = package.Trainer(**arguments, strategy=strategy, callbacks=callbacks)
        data = {"datamodule": self.datamodule}
        if self.datamodule is None:
            data = {"train_dataloaders": plan.train_dataloader, "val_dataloaders": plan.val_dataloader}
        fit.begin(trainer, self.model, **data)
        return fit

    def _checked_worker(self) -> WorkerInfo:
        """Return this worker's device and ranks, after checking the trainer's settings.

        Raises:
            ConfigError: the trainer has settings that Lightning handles itself or does not support here.
        """
        context, strategy = self._context, self._context.strategy
        wrong = []
        if type(strategy) not in (SingleStrategy, DDPStrategy) and not _is_fsdp(strategy):
            wrong.append(
                "strategy: a Lightning module trains on one worker, data-parallel or with FSDP(); leave "
                "strategy out, or pass a DDPStrategy of Lightning as trainer_args['strategy']"
            )
        if _is_fsdp(strategy) and self._overrides_of_module("configure_model"):
            wrong.append("FSDP() with configure_model: make the module's layers in __init__")
        given = self._plan.trainer_args
        keeps = any(_is_a(each, "Checkpoint") for each in self._plan.callbacks)
        if _is_fsdp(strategy) and (keeps or given.get("enable_checkpointing")):
            wrong.append("FSDP() with Lightning's checkpoints, which hold only one rank's part: call save()")
        if strategy.group.world_size > 1 and not strategy.averages:
            wrong.append("wrap_ddp=False: leave it out, because Lightning wraps the module itself")
        if context.scheduler_step_freq is not None:
            wrong.append("scheduler_step_freq: leave it out, because configure_optimizers sets it")
        wrong += [
            f"{name}: set it in the module, or with Lightning's own argument in trainer_args"
            for name in ("compile", "channels_last", "detect_nan")
            if getattr(context.step, name)
        ]
        if context.step.ema_decay is not None:
            wrong.append("ema_decay: pass Lightning's EMAWeightAveraging in callbacks=")
        if wrong:
            raise ConfigError(
                "TorchTrainer does not support these settings with a Lightning module: " + "; ".join(wrong)
            )
        return WorkerInfo(device=strategy.devices[0], group=strategy.group, local_rank=context.local_rank)

    def _shard(self) -> None:
        """Shard the module's parameters before Lightning makes optimizers from them."""
        from torch.distributed.fsdp import register_fsdp_forward_method

        if not self.model.automatic_optimization:
            raise ConfigError(
                f"{type(self.model).__name__} uses manual optimization, which FSDP() does not support: "
                "it gathers weights once per training_step, and would miss steps inside. Use strategy='ddp'"
            )
        self._strategy.place([self.model], [], {})
        for step in ("training_step", "validation_step", "predict_step"):
            # Lightning calls these methods directly, so FSDP must treat each method as a forward pass.
            if self._overrides_of_module(step):
                register_fsdp_forward_method(self.model, step)

    def _overrides_of_module(self, method: str) -> bool:
        return _defines(self._plan.module_cls, method, self._package.LightningModule)

    def _trainer_arguments(self) -> dict[str, Any]:
        """Return arguments for Lightning's trainer; by default it prints nothing and trains without end."""
        given, step = dict(self._plan.trainer_args), self._context.step
        return {
            "accelerator": "cpu" if self._worker.device.type == "cpu" else "gpu",
            "devices": 1,
            "max_epochs": -1,
            "logger": False,
            "enable_checkpointing": any(_is_a(each, "Checkpoint") for each in self._plan.callbacks),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
            **arguments_of_step(step, given),
            **given,
        }

    def _split(self, loader: Any) -> Feed:
        # With `training=True`, validation data is also split into equally many batches per worker, because
        # Lightning's DDP and `sync_dist` communicate in each batch.
        feed = self._strategy.split_data(loader, training=True)
        feed.advice = "give each worker's loader equally many batches"
        return feed

    def _shared(self, feed: Feed) -> None:
        if isinstance(self._train_feed, LightningFeed):
            self._train_feed.attach(feed)

    def _has_validation(self) -> bool:
        loader = self._plan.val_dataloader is not None or self._has_loader("val_dataloader")
        return loader and self._overrides_of_module("validation_step")

    def _has_loader(self, method: str) -> bool:
        """Return True if the data module defines `method`.

        If no data module exists, return True if the module defines `method`.
        """
        if self.datamodule is None:
            return self._overrides_of_module(method)
        return _defines(type(self.datamodule), method, self._package.LightningDataModule)


def _defines(cls: type[Any], method: str, base: Any) -> bool:
    return getattr(cls, method, None) is not getattr(base, method, None)


def _is_a(callback: Any, name: str) -> bool:
    """Return True if `callback` is an instance of Lightning's class `name`, in either package."""
    return any(base.__name__ == name for base in type(callback).__mro__)


def _is_fsdp(strategy: Strategy) -> bool:
    # The strategy's module is not imported, because its import takes half a second. If the strategy is FSDP,
    # the module is already loaded.
    loaded = sys.modules.get("trainkit.train.strategies.fsdp")
    return loaded is not None and isinstance(strategy, loaded.FSDPStrategy)


def lightning_operator(base: type[T], module_cls: type[Any], **arguments: Any) -> type[T]:
    """Return a subclass of `base`, a `TrainingOperator`, that trains `module_cls` with Lightning.

    Args:
        base: the operator's class.
        module_cls: the user's subclass of LightningModule.
        **arguments: arguments of `LightningPlan`.
    """
    plan = LightningPlan(module_cls=module_cls, package=require_module_class(module_cls), **arguments)
    attributes = {"_plan": plan, "__doc__": module_cls.__doc__, "__module__": module_cls.__module__}
    return type(f"{module_cls.__name__}Operator", (LightningMethods, base), attributes)
