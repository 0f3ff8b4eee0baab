"""Operators made of Lightning modules: Lightning's own loops train, the trainer says when.

Source: Lightning, "Trainer", https://lightning.ai/docs/pytorch/stable/common/trainer.html; the entrance
is RaySGD v1's, `TrainingOperator.from_ptl`.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from trainkit.errors import CheckpointError, ConfigError
from trainkit.runtime import preload
from trainkit.train.context import WorkerContext
from trainkit.train.data import Feed
from trainkit.train.lightning_data import Data, ticking
from trainkit.train.lightning_fit import LightningFit
from trainkit.train.lightning_parts import Seat, make_strategy, make_watch, quiet_lightning
from trainkit.train.lightning_plan import (
    PACKAGES,
    LightningPlan,
    arguments_of_step,
    made_from,
    require_module_class,
    untaken,
)
from trainkit.train.overruling import SetUp
from trainkit.train.registration import Registered
from trainkit.train.stepping import Stepper
from trainkit.train.strategies.ddp import DDPStrategy
from trainkit.train.strategies.single import SingleStrategy
from trainkit.train.tensors import cpu_copy

T = TypeVar("T")

log = logging.getLogger(__name__)

for _package in PACKAGES:
    preload.register(_package)  # It takes seconds to import.


class LightningMethods:
    """The methods of an operator that has Lightning train; put before `TrainingOperator` by `from_ptl`.

    Attributes:
        lightning_trainer: Lightning's `Trainer`, once training, validation or a loaded state called for it.
        validates_in_training: an epoch of training ends with Lightning's own validation.
    """

    plan: ClassVar[LightningPlan]
    validates_in_training: ClassVar[bool] = True

    # Of `TrainingOperator`:
    model: Any
    registered: Registered
    stepper: Stepper
    train_feed: Feed | None
    validation_feed: Feed | None
    global_step: int
    _context: WorkerContext
    _config: dict[str, Any]

    _fit: LightningFit | None = None

    def setup(self, config: dict[str, Any]) -> None:
        """Make the module and, if its class was given, the data module; Lightning sets them up later."""
        plan = self.plan
        # Precision, accumulation and clipping are Lightning's to carry out.
        self.stepper.delegated()
        self._package = importlib.import_module(plan.package)
        self._seat = self._checked_seat()
        self.model = made_from(plan.module_cls, config)
        # Not placed by us, Lightning's strategy does it; listed, so that weights have their place in a state.
        self.registered.models.append(self.model)
        data = plan.datamodule
        self.datamodule = made_from(data, config) if isinstance(data, type) else copy.deepcopy(data)
        classes = [plan.module_cls, *([data] if isinstance(data, type) else [])]
        if self._context.strategy.group.rank == 0 and (unused := untaken(config, classes)):
            log.warning(
                "config has %s, which no parameter of %s is named after, so nothing is done with it",
                ", ".join(map(repr, unused)),
                " or ".join(cls.__name__ for cls in classes),
            )
        self.train_feed = Data()
        if self._has_validation():
            self.validation_feed = Data()
        if _defines(self.model, "configure_model", self._base("LightningModule")):
            self._running()  # It has no weights before.

    def get_model(self) -> Any:
        """Return this worker's `LightningModule`, as RaySGD's operators of Lightning modules do."""
        return self.model

    @property
    def lightning_trainer(self) -> Any:
        return None if self._fit is None else self._fit.trainer

    @property
    def lightning_set_up(self) -> SetUp | None:
        """What `configure_optimizers` made of the configuration, as `overruling` takes it; None before."""
        return None if self._fit is None else self._fit.set_up

    def train_epoch(
        self, iterator: Iterable[Any], info: dict[str, Any], num_steps: int | None = None, epoch_idx: int = 0
    ) -> Mapping[str, Any]:
        """One epoch of Lightning's, with its validation; what the module logged in it, and counts."""
        del info, epoch_idx  # Lightning has its own.
        if not isinstance(self.train_feed, Data):
            raise ConfigError(
                "train(dataset=) is not for Lightning modules: give the loader to "
                "from_ptl(train_dataloader=...), or a data module that changes it"
            )
        fit = self._running()
        with ticking(self.train_feed, iterator) as ticks:
            metrics = fit.train(num_steps, ticks)
        self.global_step = int(fit.trainer.global_step)
        return metrics

    def validate(self, val_iterator: Iterable[Any], info: dict[str, Any]) -> Mapping[str, Any]:
        """Lightning's validation loop, with its hooks; what the module logged in it, and counts."""
        del info
        feed = self.validation_feed
        num_steps = feed.num_steps if isinstance(feed, Data) else None
        with ticking(feed, val_iterator) as ticks:
            return self._running().validate(num_steps, ticks)

    def state_dict(self) -> dict[str, Any]:
        """Lightning's checkpoint; empty before it has begun."""
        if self._fit is None:
            return {}
        return {"lightning": self._fit.checkpoint() if self._fit.alive else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """End what runs, in order, and begin again from a checkpoint of Lightning's.

        Raises:
            CheckpointError: Lightning doesn't take it; what was there goes on.
        """
        if "lightning" in state_dict and state_dict["lightning"] is None:
            raise CheckpointError("this state was taken after Lightning's fit had ended by an error")
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
            raise CheckpointError(f"Lightning does not take this state: {error}") from error

    def close(self) -> None:
        """Let Lightning run its hooks for the end of training and of the fit."""
        if self._fit is not None:
            try:
                self._fit.end()
            except Exception:
                # Raised too, but at a shutdown nobody may be left to be told.
                log.exception("Lightning's hooks at the end of the fit failed")
                raise

    # -- inside --------------------------------------------------------------------------------

    def _running(self) -> LightningFit:
        if self._fit is None:
            self._fit = self._begun(None)
        return self._fit

    def _begun(self, state: Mapping[str, Any] | None) -> LightningFit:
        plan, package, seat = self.plan, self._package, self._seat
        utilities = importlib.import_module(f"{plan.package}.utilities.rank_zero")
        utilities.rank_zero_only.rank = seat.rank
        fit = LightningFit(seat=seat, split=self._split, shared=self._shared, state=state)
        arguments = self._trainer_arguments()
        strategy = make_strategy(package, arguments.pop("strategy", None), seat, fit)
        callbacks = [make_watch(package, fit), *copy.deepcopy(list(plan.callbacks))]
        with quiet_lightning():
            trainer = package.Trainer(**arguments, strategy=strategy, callbacks=callbacks)
        data = {"datamodule": self.datamodule}
        if self.datamodule is None:
            data = {"train_dataloaders": plan.train_dataloader, "val_dataloaders": plan.val_dataloader}
        fit.begin(trainer, self.model, **data)
        return fit

    def _checked_seat(self) -> Seat:
        """This worker's place, if Lightning can train from there.

        Raises:
            ConfigError: the trainer was given what Lightning does in its own way, or can't do here.
        """
        context, strategy = self._context, self._context.strategy
        wrong = []
        if type(strategy) not in (SingleStrategy, DDPStrategy):
            wrong.append(
                "strategy: Lightning modules are trained on one worker or data-parallel; leave it out (a "
                "DDPStrategy of Lightning's own can be given as trainer_args['strategy'])"
            )
        if strategy.group.world_size > 1 and not strategy.averages:
            wrong.append("wrap_ddp=False: Lightning wraps the module itself; leave it out")
        if context.scheduler_step_freq is not None:
            wrong.append("scheduler_step_freq: Lightning steps schedulers as configure_optimizers says")
        wrong += [
            f"{name}: do it in the module, or by trainer_args of Lightning"
            for name in ("compile", "channels_last", "detect_nan")
            if getattr(context.step, name)
        ]
        if wrong:
            raise ConfigError("TorchTrainer with a Lightning module can't take " + "; ".join(wrong))
        group = strategy.group
        return Seat(
            device=strategy.devices[0],
            rank=group.rank,
            local_rank=context.local_rank,
            world_size=group.world_size,
        )

    def _trainer_arguments(self) -> dict[str, Any]:
        """Arguments of Lightning's trainer: quiet, and endless, unless the user says otherwise."""
        given, step = dict(self.plan.trainer_args), self._context.step
        names = [base.__name__ for callback in self.plan.callbacks for base in type(callback).__mro__]
        return {
            "accelerator": "cpu" if self._seat.device.type == "cpu" else "gpu",
            "devices": 1,
            "max_epochs": -1,
            "logger": False,
            "enable_checkpointing": "Checkpoint" in names,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
            **arguments_of_step(step, given),
            **given,
        }

    def _split(self, loader: Any) -> Feed:
        # Of validation data too each worker gets as many batches as the others, as Lightning's DDP and
        # sync_dist meet in every one.
        return self._context.strategy.split_data(loader, training=True)

    def _shared(self, feed: Feed) -> None:
        if isinstance(self.train_feed, Data):
            self.train_feed.attach(feed)

    def _has_validation(self) -> bool:
        owner, kind = (
            (self.model, "LightningModule")
            if self.datamodule is None
            else (self.datamodule, "LightningDataModule")
        )
        loader = self.plan.val_dataloader is not None or _defines(owner, "val_dataloader", self._base(kind))
        return loader and _defines(self.model, "validation_step", self._base("LightningModule"))

    def _base(self, name: str) -> Any:
        return getattr(self._package, name)


def _defines(thing: Any, method: str, base: Any) -> bool:
    return getattr(type(thing), method, None) is not getattr(base, method, None)


def lightning_operator(
    base: type[T],
    module_cls: type[Any],
    *,
    train_dataloader: Any,
    val_dataloader: Any,
    datamodule: Any,
    callbacks: Sequence[Any],
    trainer_args: Mapping[str, Any] | None,
) -> type[T]:
    """A subclass of `base`, a `TrainingOperator`, that has Lightning train `module_cls`."""
    plan = LightningPlan(
        module_cls=module_cls,
        package=require_module_class(module_cls),
        train_dataloader=train_dataloader,
        val_dataloader=val_dataloader,
        datamodule=datamodule,
        callbacks=tuple(callbacks),
        trainer_args=dict(trainer_args or {}),
    )
    attributes = {"plan": plan, "__doc__": module_cls.__doc__, "__module__": module_cls.__module__}
    return type(f"{module_cls.__name__}Operator", (LightningMethods, base), attributes)
