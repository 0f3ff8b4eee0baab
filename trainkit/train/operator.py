"""`TrainingOperator`: what a user subclasses to say what is trained, on which data, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from trainkit.errors import ConfigError
from trainkit.train import prefetch
from trainkit.train.context import WorkerContext
from trainkit.train.data import Feed
from trainkit.train.keys import NUM_SAMPLES
from trainkit.train.loop import run_epoch
from trainkit.train.modes import enter_training, evaluating
from trainkit.train.registration import Registered, as_list, check_schedulers, in_shape_of
from trainkit.train.stepping import Stepper
from trainkit.train.tensors import channels_last, to_device
from trainkit.train.turns import WHOLE, Turn


class TrainingOperator:
    """Models, optimizers and data of one worker, with the loops that run them.

    Subclass it and define `setup`, which calls `register` and `register_data`. Override `train_batch` or
    `validate_batch` for another step, `train_epoch` or `validate` for another loop.

    Args:
        config: the user's configuration, given to `setup`.
        context: the worker; default, a single process on the CPU, for tests and debugging.
    """

    model: Any
    """The registered model, wrapped; if there is one."""
    models: list[Any]
    optimizer: Any
    """The registered optimizer; if there is one."""
    optimizers: list[Any]
    criterion: Any
    scheduler: Any
    """The registered scheduler; if there is one."""
    schedulers: list[Any]
    train_feed: Feed | None = None
    validation_feed: Feed | None = None
    global_step: int = 0
    """Training steps run so far."""

    def __init__(self, config: Mapping[str, Any] | None = None, context: WorkerContext | None = None) -> None:
        self._config = dict(config or {})
        self._context = context or WorkerContext()
        # What was registered; the attributes beside it are the user's to replace.
        self.registered = Registered()
        self.models = self.registered.models
        self.optimizers = self.registered.optimizers
        self.schedulers = self.registered.schedulers
        self.criterion = None
        self.stepper = Stepper(
            self._context.step,
            self._context.strategy,
            self.registered,
            turn=self._turn,
            global_step=lambda: self.global_step,
        )
        self.setup(self._config)

    # -- what a subclass says ------------------------------------------------------------------

    def setup(self, config: dict[str, Any]) -> None:
        """Make models, optimizers and loaders, and register them. Runs once on every worker."""
        raise NotImplementedError(f"{type(self).__name__} must define setup(self, config)")

    def register(
        self,
        *,
        models: nn.Module | Sequence[nn.Module],
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        criterion: Any = None,
        schedulers: Any = None,
        ddp_args: Mapping[str, Any] | None = None,
    ) -> tuple[Any, ...]:
        """Hand over what is trained; call it once, in `setup`.

        Args:
            models: one module or a list; placed on the device and, with several workers, wrapped.
            optimizers: one or a list, made from the models' parameters.
            criterion: loss function (output, target) to a mean over the batch.
            schedulers: one learning rate scheduler or a list; stepped as `scheduler_step_freq` says.
            ddp_args: keyword arguments for `DistributedDataParallel`.

        Returns:
            (models, optimizers), then criterion and schedulers if they were given; each one or a list,
            as it came in.

        Raises:
            ConfigError: an argument is of the wrong kind, or `register` was called before.
        """
        held = self.registered
        if held.models:
            raise ConfigError(
                "register() was called twice: give all models and optimizers in one call, as lists"
            )
        held.optimizers[:] = as_list(optimizers, torch.optim.Optimizer, "optimizers")
        held.schedulers[:] = as_list(schedulers, object, "schedulers") if schedulers is not None else []
        check_schedulers(held.schedulers, self.scheduler_step_freq)
        modules = as_list(models, nn.Module, "models")
        held.models[:] = self._context.strategy.place(modules, held.optimizers, ddp_args or {})
        self.criterion = criterion.to(self.device) if isinstance(criterion, nn.Module) else criterion
        for name in ("model", "optimizer", "scheduler"):
            if len(several := getattr(held, f"{name}s")) == 1:
                setattr(self, name, several[0])

        returned: list[Any] = [in_shape_of(models, held.models), in_shape_of(optimizers, held.optimizers)]
        if criterion is not None:
            returned.append(self.criterion)
        if schedulers is not None:
            returned.append(in_shape_of(schedulers, held.schedulers))
        return tuple(returned)

    def register_data(self, *, train_loader: Any = None, validation_loader: Any = None) -> None:
        """Hand over the data; with several workers each gets its share of it.

        Args:
            train_loader: a `DataLoader` or another iterable of batches.
            validation_loader: the same; every sample is counted once, however many workers there are.

        Raises:
            ConfigError: a loader can't be iterated over, or can't be shared among workers.
        """
        if train_loader is not None:
            loader = prefetch.pinned(train_loader, self.device)
            self.train_feed = self._context.strategy.split_data(loader, training=True)
        if validation_loader is not None:
            loader = prefetch.pinned(validation_loader, self.device)
            self.validation_feed = self._context.strategy.split_data(loader, training=False)

    # -- training ------------------------------------------------------------------------------

    def train_epoch(
        self, iterator: Iterable[Any], info: dict[str, Any], num_steps: int | None = None, epoch_idx: int = 0
    ) -> Mapping[str, Any]:
        """Train on the batches of one epoch; frozen models stay in the mode that they were left in.

        A last batch may be too small for all workers: those left without a sample get one of another's.
        `backward` gives it no weight; a step that calls `loss.backward()` counts it twice.

        Args:
            iterator: this worker's batches; it ends after `num_steps`.
            info: what the caller of `TorchTrainer.train` passed on, and `epoch_idx`.
            num_steps: steps asked for; None is one pass over the data.
            epoch_idx: epochs finished before this one.

        Returns:
            Metrics by name; numbers are averaged over workers by their `num_samples`.
        """
        enter_training(self.registered.models)
        self.stepper.begin_epoch()
        return run_epoch(
            self.train_batch,
            self._brought_ahead(iterator, self.train_batch, TrainingOperator.train_batch),
            feed=self._feed(self.train_feed),
            info=info,
            first_step=self.global_step,
            before_step=self.stepper.begin,
            after_step=self._after_step,
        )

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Mapping[str, Any]:
        """One optimizer step; by default for one model, one optimizer, and a batch (*features, target).

        Args:
            batch: as the loader gives it, still on the CPU.
            batch_info: `info` of `train_epoch`, with `batch_idx` and `global_step`.

        Returns:
            Metrics: numbers or one-element tensors (a loss may stay on its device), means over the
            batch; `num_samples` is their weight.
        """
        features, target = self._features_and_target(batch)
        loss = self.forward_backward(features, target)
        self.optimizer_step()
        counted = {NUM_SAMPLES: target.shape[0]}
        return counted if loss is None else {"train_loss": loss, **counted}

    def forward_backward(self, features: Sequence[Any], target: Any) -> torch.Tensor | None:
        """Loss and gradients of one batch, with one model and its criterion, whatever the strategy.

        Args:
            features: the model's inputs, on the device.
            target: the criterion's second argument, on the device.

        Returns:
            The loss, a mean over the batch, detached; None where it is another worker's, as in a pipeline.
        """
        model, criterion = self._single_model("train_batch")
        strategy = self._context.strategy
        self.stepper.delegated()
        return strategy.forward_backward(model, criterion, features, target, self.stepper.scaled)

    def autocast(self) -> AbstractContextManager[object]:
        """A block for forward pass and loss of a step of your own, run in the trainer's `precision`."""
        return self.stepper.autocast()

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of `loss`, a mean over the batch.

        The same as `loss.backward()`, except that with several workers an epoch's uneven last batch is
        weighted, so that the averaged gradient is the whole batch's; a sample that only stands in, so that
        this worker takes part in the step, weighs nothing. `loss.backward()` would count it.
        """
        self.stepper.backward(loss)

    def optimizer_step(self) -> bool:
        """Step all optimizers and clear the gradients, if the accumulation is complete.

        In a step of your own, in place of `optimizer.step()` and `zero_grad()`: it scales, clips and
        accumulates as the trainer was asked to.

        Returns:
            Whether the optimizers were stepped.
        """
        return self.stepper.step()

    # -- validation ----------------------------------------------------------------------------

    def validate(self, val_iterator: Iterable[Any], info: dict[str, Any]) -> Mapping[str, Any]:
        """Evaluate on the validation batches, without gradients; arguments and result as `train_epoch`'s."""
        with torch.no_grad(), evaluating(self.registered.models):
            return run_epoch(
                self.validate_batch,
                self._brought_ahead(val_iterator, self.validate_batch, TrainingOperator.validate_batch),
                feed=self._feed(self.validation_feed),
                info=info,
            )

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Mapping[str, Any]:
        """Loss and, where targets are classes, accuracy of one batch; arguments as `train_batch`'s."""
        model, criterion = self._single_model("validate_batch")
        features, target = self._features_and_target(batch)
        metrics: dict[str, Any] = {NUM_SAMPLES: target.shape[0]}
        result = self._context.strategy.forward(model, criterion, features, target)
        if result is None:
            return metrics
        output, metrics["val_loss"] = result
        if not target.is_floating_point() and output.dim() == target.dim() + 1:
            metrics["val_accuracy"] = (output.argmax(dim=1) == target).double().mean()
        return metrics

    # -- the user's own state ------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint shall hold beside models, optimizers and schedulers: plain values and tensors."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned when the checkpoint was written."""

    # -- what it knows -------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that `setup` was given."""
        return self._config

    @property
    def device(self) -> torch.device:
        """Where this worker's batches and models go."""
        return self._context.strategy.devices[0]

    @property
    def devices(self) -> list[torch.device]:
        """All devices of this worker."""
        return list(self._context.strategy.devices)

    @property
    def world_rank(self) -> int:
        """This worker's number among all, from 0."""
        return self._context.strategy.group.rank

    @property
    def local_rank(self) -> int:
        """This worker's number among those of its machine."""
        return self._context.local_rank

    @property
    def world_size(self) -> int:
        """How many workers train together."""
        return self._context.strategy.group.world_size

    @property
    def use_gpu(self) -> bool:
        """Whether this worker trains on a GPU."""
        return self.device.type == "cuda"

    @property
    def use_tqdm(self) -> bool:
        """Whether a progress bar is shown."""
        return self._context.use_tqdm

    @property
    def scheduler_step_freq(self) -> str | None:
        """When schedulers are stepped: "batch", "epoch" or "manual"."""
        return self._context.scheduler_step_freq

    # -- inside --------------------------------------------------------------------------------

    def _feed(self, registered: Feed | None) -> Feed:
        # An overriding loop may bring batches of its own: they all count in full.
        return registered if registered is not None else self._context.strategy.split_data((), training=False)

    def _turn(self) -> Turn:
        return WHOLE if self.train_feed is None else self.train_feed.turn

    def _after_step(self) -> None:
        stepped = self.stepper.end()
        self.global_step += 1
        if stepped and self.scheduler_step_freq == "batch":
            for scheduler in self.registered.schedulers:
                scheduler.step()

    def _single_model(self, step: str) -> tuple[nn.Module, Callable[..., torch.Tensor]]:
        held = self.registered
        if not held.models:
            raise ConfigError(
                f"the default {step} takes one model, and none was registered: call "
                f"register(models=..., optimizers=..., criterion=...) in setup, or override {step}"
            )
        if len(held.models) != 1 or len(held.optimizers) != 1:
            raise ConfigError(
                f"the default {step} takes one model with one optimizer; {len(held.models)} and "
                f"{len(held.optimizers)} were registered: override {step}"
            )
        if self.criterion is None:
            raise ConfigError(f"the default {step} needs a loss: register(criterion=...), or override {step}")
        return held.models[0], self.criterion

    def _features_and_target(self, batch: Any) -> tuple[Sequence[Any], torch.Tensor]:
        if not isinstance(batch, (list, tuple)) or len(batch) < 2:
            raise ConfigError(
                f"the default steps take batches (*features, target), but the loader gave a "
                f"{type(batch).__name__}: override train_batch and validate_batch"
            )
        batch = self._on_device(batch)
        return batch[:-1], batch[-1]

    def _on_device(self, batch: Any) -> Any:
        if self.device.type != "cpu":
            batch = to_device(batch, self.device)
        return channels_last(batch) if self._context.step.channels_last else batch

    def _brought_ahead(self, batches: Iterable[Any], step: Any, default: Any) -> Iterable[Any]:
        # A step of the user's own is promised batches as the loader gives them.
        if getattr(step, "__func__", None) is not default:
            return batches
        return prefetch.brought_ahead(batches, self.device, self._on_device)
