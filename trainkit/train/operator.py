"""`TrainingOperator`: a worker's models, optimizers, data and loops, defined by the user."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self, cast, get_args

import torch
from torch import nn

from trainkit.errors import ConfigError
from trainkit.registry import loaded
from trainkit.train.data.feed import Batch, Feed, Uneven
from trainkit.train.data.position import check_stateful
from trainkit.train.data.prefetch import DevicePrefetcher, pinned
from trainkit.train.data.randomness import seeded_samples
from trainkit.train.data.sharding import FULL_WEIGHT, BatchWeight
from trainkit.train.keys import NUM_SAMPLES
from trainkit.train.step.context import (
    Registered,
    WorkerContext,
    as_list,
    check_schedulers,
    check_wrapping,
    in_shape_of,
    taken,
)
from trainkit.train.step.epoch import EpochBatches, enter_training, evaluating, run_epoch
from trainkit.train.step.stepper import Stepper
from trainkit.train.step.timers import TimerCollection

Predicted = tuple[list[Any], float]
"""One worker's predictions for each batch, and the number of all workers' batches without repetitions."""


class _Default:
    """Descriptor of an attribute's default value, which a subclass or an instance may overwrite.

    Args:
        get: function that returns the attribute's value for an operator.
    """

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self._get = get

    def __get__(self, operator: Any, owner: Any = None) -> Any:
        return self if operator is None else self._get(operator)


def _only(name: str) -> Any:
    def get(operator: Any) -> Any:
        several = getattr(operator._registered, f"{name}s")
        if len(several) != 1:
            owner = type(operator).__name__
            raise AttributeError(f"{owner} has no single {name!r}: {len(several)} {name}s are registered")
        return several[0]

    return _Default(get)


def _registered(name: str) -> Any:
    return _Default(lambda operator: getattr(operator._registered, name))


class TrainingOperator:
    """Models, optimizers and data of one worker, with the loops that run them.

    Write a subclass whose `setup` calls `register` and `register_data`. Override `train_batch` or
    `validate_batch` to change a step, and `train_epoch` or `validate` to change a loop.

    Args:
        config: the user's configuration, passed to `setup`.
        context: context of the worker; ignored if `operator_of` has already set a context. Default: the
            context of a single process on the CPU, for tests and debugging.
        *arguments, **options: further arguments of RaySGD's constructor; ignored, because the context
            contains their values.
    """

    model: Any = _only("model")
    """The registered model, wrapped for training; raises an error unless exactly one model is registered."""
    models: list[Any] = _registered("models")
    optimizer: Any = _only("optimizer")
    """The registered optimizer; raises an error unless exactly one optimizer is registered."""
    optimizers: list[Any] = _registered("optimizers")
    criterion: Any = _Default(lambda operator: operator._criterion)
    scheduler: Any = _only("scheduler")
    """The registered scheduler; raises an error unless exactly one scheduler is registered."""
    schedulers: list[Any] = _registered("schedulers")
    devices: list[torch.device] = cast(Any, _Default(lambda operator: list(operator._strategy.devices)))
    """All devices of this worker."""
    world_size: int = cast(Any, _Default(lambda operator: operator._strategy.group.world_size))
    """The number of workers that train together."""
    validation_feed: Feed = cast(Any, _Default(lambda operator: operator._validation_feed))
    """Feed of the validation batches; `weight` is 0 while the current batch only repeats other samples."""
    _predicts: ClassVar[bool] = False
    """True if the operator has a method `predict`, which `TorchTrainer.predict` calls on each worker."""
    _criterion: Any = None
    _train_feed: Feed | None = None
    _validation_feed: Feed | None = None
    epoch: int = cast(Any, _Default(lambda operator: operator._trainkit_epochs))
    """The number of finished training epochs."""
    _trainkit_epochs = 0
    global_step: int = 0
    """Number of training steps that have run."""
    timers: TimerCollection
    """Durations by name, measured in calls with `profile=True`: `with self.timers.record("fwd"): ...`"""

    def __init__(
        self, config: Mapping[str, Any] | None = None, context: Any = None, *arguments: Any, **options: Any
    ) -> None:
        del arguments, options
        self._config = dict(config or {})
        if isinstance(context, WorkerContext) or "_context" not in vars(self):
            self._context = context if isinstance(context, WorkerContext) else WorkerContext()
        self._strategy = self._context.strategy
        device = self.device
        # A GPU runs its work asynchronously, so a profile must wait for the GPU before it reads the clock.
        waits = device.type == "cuda"
        self.timers = TimerCollection((lambda: torch.cuda.synchronize(device)) if waits else None)
        self._registered = Registered()
        self._prefetcher = DevicePrefetcher(device, channels_last=self._context.step.channels_last)
        self._stepper = Stepper(
            self._context.step,
            self._strategy,
            self._registered,
            weight=self._current_weight,
            global_step=lambda: self.global_step,
        )
        self.setup(self._config)

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
        apex_args: Mapping[str, Any] | None = None,
    ) -> tuple[Any, ...]:
        """Register models, optimizers, loss function and schedulers; call this method once, in `setup`.

        Args:
            models: one module or a list of modules; each is moved to the device and, with several workers,
                wrapped.
            optimizers: one optimizer or a list of optimizers, made from the models' parameters.
            criterion: loss function of (output, target), which returns the mean over the batch.
            schedulers: one learning rate scheduler or a list of schedulers; `scheduler_step_freq` sets when
                they step.
            ddp_args: keyword arguments for `DistributedDataParallel`.
            apex_args: must be empty, because torch's own mixed precision replaces Apex.

        Returns:
            (models, optimizers), followed by criterion and schedulers if they were given. Each returned value
            has the form of its argument: a single object, a list or a tuple.

        Raises:
            ConfigError: an argument is wrong, or `register` was already called.
        """
        held = self._registered
        if held.models:
            raise ConfigError(
                "register() was called twice: give all models and optimizers in one call, as lists"
            )
        check_wrapping(ddp_args, apex_args)
        held.optimizers[:] = as_list(optimizers, torch.optim.Optimizer, "optimizers")
        held.schedulers[:] = as_list(schedulers, object, "schedulers") if schedulers else []
        check_schedulers(held.schedulers, self.scheduler_step_freq)
        modules = as_list(models, nn.Module, "models")
        held.check_optimizers(modules, criterion)
        held.models[:] = self._strategy.place(modules, held.optimizers, ddp_args or {})
        self._stepper.placed()
        self._criterion = criterion.to(self.device) if isinstance(criterion, nn.Module) else criterion

        returned: list[Any] = [in_shape_of(models, held.models), in_shape_of(optimizers, held.optimizers)]
        if criterion is not None:
            returned.append(self._criterion)
        if schedulers is not None:
            returned.append(in_shape_of(schedulers, held.schedulers))
        return tuple(returned)

    def register_data(
        self,
        *,
        train_loader: Any = None,
        validation_loader: Any = None,
        uneven_inputs: Uneven = "drop",
        sharded: bool = False,
        sample_seed: int | None = None,
        use_stateful_dataset: bool = False,
    ) -> None:
        """Register the data. If there are several workers, each gets a share of the data.

        Args:
            train_loader: a `DataLoader` or another iterable of batches.
            validation_loader: a `DataLoader` or another iterable of batches; every sample counts once, for
                any number of workers.
            uneven_inputs: handling of a `train_loader` that the user has split (`sharded`), and that gives
                some workers more batches than others. "drop" ends the epoch when the first worker has no more
                batches, and warns. "raise" raises ConfigError. "join" trains on all batches: a worker without
                more batches repeats its last batch with weight 0, and the gradient is the mean over the other
                workers' batches.
            sharded: True if the loaders already divide their samples among workers and loader processes, such
                as a stream after `split_dataset_by_node`. Default: the samples are shared out.
            sample_seed: seed of the random numbers that each sample of a map-style data set draws. If a seed
                is given, the random numbers depend only on (`sample_seed`, epoch, index), not on the number
                of workers and loader processes. Default: samples draw from the generators of their process.
            use_stateful_dataset: True saves the `state_dict` of the `train_loader`'s iterable data set as the
                position within an epoch; see `prepare_data_loader`. Default: after a restart, samples before
                the position are read again.

        Raises:
            ConfigError: a loader can't be iterated over or shared among workers, `uneven_inputs` has an
                unknown value, or an argument does not fit the loaders: `sample_seed` needs a map-style data
                set, and `use_stateful_dataset` an iterable data set that has a state.
        """
        if uneven_inputs not in get_args(Uneven):
            raise ConfigError(
                f'register_data(): uneven_inputs must be "drop", "raise" or "join", not {uneven_inputs!r}'
            )
        if train_loader is not None:
            loader = pinned(seeded_samples(train_loader, sample_seed, "train_loader"), self.device)
            self._train_feed = self._strategy.split_data(
                loader, training=True, uneven=uneven_inputs, sharded=sharded
            )
            self._stepper.joins = self._train_feed.may_repeat
            if use_stateful_dataset:
                check_stateful(self._train_feed.loader, "train_loader")
                self._train_feed.stateful = True
        if validation_loader is not None:
            loader = pinned(seeded_samples(validation_loader, sample_seed, "validation_loader"), self.device)
            self._validation_feed = self._strategy.split_data(loader, training=False, sharded=sharded)

    def train_epoch(
        self, iterator: Iterable[Any], info: dict[str, Any], num_steps: int | None = None, epoch_idx: int = 0
    ) -> Mapping[str, Any]:
        """Train on the batches of one epoch. Frozen models keep their current mode.

        The last batch may have too few samples for all workers. A worker without a sample gets a copy of a
        different worker's sample. The method `backward` gives this copy weight 0, but a step that calls
        `loss.backward()` counts the sample twice.

        Args:
            iterator: iterator over this worker's batches; it ends after `num_steps` batches. The iterator's
                attribute `first` is the number of batches of this epoch that an interrupted call has trained.
            info: dictionary with the `info` that was passed to `TorchTrainer.train`, with `epoch_idx`, and
                with the values of `num_steps` and `use_fp16` under the keys `NUM_STEPS` and `USE_FP16`.
            num_steps: requested number of steps; None means one pass over the data.
            epoch_idx: number of epochs finished before this epoch.

        Returns:
            Metrics by name; numbers are averaged over workers, weighted by each worker's `num_samples`.
        """
        enter_training(self._registered.models)
        self._stepper.begin_epoch()
        return run_epoch(
            self.train_batch,
            self._weighted(iterator, self._train_feed, self.train_batch, TrainingOperator.train_batch),
            info=info,
            epoch=iterator if isinstance(iterator, EpochBatches) else None,
            first_step=self.global_step,
            before_step=self._stepper.begin,
            after_step=self._after_step,
        )

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Mapping[str, Any]:
        """Train on one batch. The default needs one model, one optimizer and batches (*features, target).

        Args:
            batch: a batch of the loader, still on the CPU.
            batch_info: dictionary with the entries of `info` of `train_epoch`, and with `batch_idx` and
                `global_step`.

        Returns:
            Metrics: numbers or one-element tensors (a loss may stay on its device), each a mean over the
            batch. The entry `num_samples` is the weight of these means.
        """
        self._single_model("train_batch")
        features, target = self._prefetcher.parts(batch)
        loss = TrainingOperator.forward_backward(self, features, target)
        with self.timers.record("apply"):
            self._stepper.step()
        counted = {NUM_SAMPLES: target.shape[0]}
        return counted if loss is None else {"train_loss": loss, **counted}

    def forward_backward(self, features: Sequence[Any], target: Any) -> torch.Tensor | None:
        """Compute loss and gradients of one batch, with the only registered model, under any strategy.

        Args:
            features: the model's inputs, on the device.
            target: the criterion's second argument, on the device.

        Returns:
            The detached loss, a mean over the batch; None if a different worker has the loss, as in a
            pipeline.
        """
        model, criterion = self._single_model("forward_backward", optimizers=None)
        self._stepper.delegated()
        if not self.timers.enabled:
            return self._strategy.forward_backward(model, criterion, features, target, self._stepper.scaled)
        with self.timers.halves("fwd", "grad", self._stepper.scaled) as scaled:
            return self._strategy.forward_backward(model, criterion, features, target, scaled)

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context manager in which your own step computes output and loss in `precision`."""
        return self._stepper.autocast()

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of `loss`, a mean over the batch.

        This method replaces `loss.backward()`. With several workers, `backward` also weights the loss if the
        last batch of an epoch is uneven, so that the averaged gradient equals the gradient of the whole
        batch. A sample that is only copied so that this worker takes part in the step gets weight 0. With
        `loss.backward()`, a copied sample would count twice.
        """
        self._stepper.backward(loss)

    def optimizer_step(self) -> bool:
        """Step all optimizers and clear the gradients, if all batches of the optimizer step are accumulated.

        Call this method in your own step instead of `optimizer.step()` and `zero_grad()`. `optimizer_step`
        applies the trainer's settings for scaling, clipping and accumulating gradients.

        Returns:
            True if the optimizers made a step.
        """
        return self._stepper.step()

    def validate(self, val_iterator: Iterable[Any], info: dict[str, Any]) -> Mapping[str, Any]:
        """Evaluate on the validation batches, without gradients; `train_epoch` describes the arguments."""
        with torch.no_grad(), evaluating(self._registered.models):
            return run_epoch(
                self.validate_batch,
                self._weighted(
                    val_iterator, self._validation_feed, self.validate_batch, TrainingOperator.validate_batch
                ),
                info=info,
                epoch=val_iterator if isinstance(val_iterator, EpochBatches) else None,
            )

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Mapping[str, Any]:
        """Return loss and, in classification, accuracy of a batch; `train_batch` describes the arguments."""
        features, target = self._prefetcher.parts(batch)
        metrics: dict[str, Any] = {NUM_SAMPLES: target.shape[0]}
        with self.timers.record("eval_fwd"):
            result = TrainingOperator.forward(self, features, target)
        if result is None:
            return metrics
        output, metrics["val_loss"] = result
        # torch's losses expect scores of classes in dimension 1. If the output has a different shape, no
        # accuracy is computed, because the output may not contain scores of classes.
        by_class = (*output.shape[:1], *output.shape[2:]) == tuple(target.shape)
        if not target.is_floating_point() and output.dim() > 1 and by_class:
            metrics["val_accuracy"] = (output.argmax(dim=1) == target.to(output.device)).double().mean()
        return metrics

    def forward(self, features: Sequence[Any], target: Any) -> tuple[Any, torch.Tensor] | None:
        """Compute output and loss of one batch, with the only registered model, under any strategy.

        Args:
            features: the model's inputs, on the device.
            target: the criterion's second argument, on the device.

        Returns:
            (output, loss), for your own `validate_batch`; None if a different worker has both, as in a
            pipeline.
        """
        model, criterion = self._single_model("validate_batch", optimizers=None)
        return self._strategy.forward(model, criterion, features, target)

    def state_dict(self) -> dict[str, Any]:
        """Return further state for the checkpoint, in plain values and tensors; the default is empty."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned, from a checkpoint."""

    def close(self) -> None:
        """Free the operator's resources; called on each worker when the trainer shuts down cleanly."""

    @classmethod
    def from_ptl(
        cls,
        lightning_module_cls: type[Any],
        train_dataloader: Any = None,
        val_dataloader: Any = None,
        *,
        datamodule: Any = None,
        callbacks: Sequence[Any] = (),
        trainer_args: Mapping[str, Any] | None = None,
    ) -> type[Self]:
        """Return an operator class that trains a `LightningModule` with Lightning's loops.

        Each call of `train` runs one epoch.

        Args:
            lightning_module_cls: the user's subclass of `LightningModule`. Each worker makes its own
                instance. A class with a parameter `config` receives the whole configuration. Any other class
                receives the keys that match the names of its parameters.
            train_dataloader: a `DataLoader`, or several loaders in a form that Lightning accepts. Default:
                the module's own loader.
            val_dataloader: one or several loaders for validation. Default: the module's own loader.
            datamodule: a `LightningDataModule` instead of loaders, or its class, which is instantiated like
                the module.
            callbacks: Lightning callbacks; each worker gets copies.
            trainer_args: arguments of Lightning's `Trainer`, such as `accumulate_grad_batches` or `logger`.

        Returns:
            A subclass, for `TorchTrainer(training_operator_cls=...)`.

        Raises:
            ConfigError: an argument has the wrong type, or `trainer_args` has a setting that trainkit
                controls.
            MissingDependencyError: Lightning is not installed.
        """
        operator_of_library = loaded("trainkit.operators", "lightning")
        made: type[Self] = operator_of_library(
            cls,
            lightning_module_cls,
            train_dataloader=train_dataloader,
            val_dataloader=val_dataloader,
            datamodule=datamodule,
            callbacks=tuple(callbacks),
            trainer_args=dict(trainer_args or {}),
        )
        return made

    @classmethod
    def from_creators(
        cls,
        model_creator: Callable[[dict[str, Any]], Any],
        optimizer_creator: Callable[[Any, dict[str, Any]], Any],
        data_creator: Callable[[dict[str, Any]], Any] | None = None,
        loss_creator: Callable[..., Any] | None = None,
        scheduler_creator: Callable[[Any, dict[str, Any]], Any] | None = None,
        serialize_data_creation: bool = True,
    ) -> type[Self]:
        """Return a subclass whose `setup` calls these functions, for scripts of RaySGD's first versions.

        Args:
            model_creator: function of the configuration that returns one model or several.
            optimizer_creator: function of (result of `model_creator`, configuration) that returns one
                optimizer or several.
            data_creator: function of the configuration that returns a train loader, or a train and a
                validation loader.
            loss_creator: one of torch's loss classes, or a function of the configuration that returns a loss.
            scheduler_creator: function of (optimizers, configuration) that returns one learning rate
                scheduler or several.
            serialize_data_creation: True lets the workers of a machine create their data one after another,
                so that only the first worker downloads the data.

        Raises:
            ConfigError: an argument is not a function.
        """
        operator_of_creators = loaded("trainkit.operators", "creators")
        made: type[Self] = operator_of_creators(
            cls,
            model_creator=model_creator,
            optimizer_creator=optimizer_creator,
            data_creator=data_creator,
            loss_creator=loss_creator,
            scheduler_creator=scheduler_creator,
            serialize_data_creation=serialize_data_creation,
        )
        return made

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that `setup` received."""
        return self._config

    @property
    def device(self) -> torch.device:
        """The device of this worker's batches and models."""
        return self._strategy.devices[0]

    @property
    def world_rank(self) -> int:
        """This worker's rank among all workers, from 0."""
        return self._strategy.group.rank

    @property
    def local_rank(self) -> int:
        """This worker's rank among the workers of its machine."""
        return self._context.local_rank

    @property
    def use_gpu(self) -> bool:
        """True if this worker trains on a GPU."""
        return self.device.type == "cuda"

    @property
    def device_ids(self) -> list[int] | None:
        """Indices of this worker's GPUs, as `DistributedDataParallel` expects them; None without GPUs."""
        indices = [device.index for device in self._strategy.devices if device.index is not None]
        return indices if self.use_gpu else None

    @property
    def use_fp16(self) -> bool:
        """True if `precision` is "fp16"."""
        return self._context.step.precision == "fp16"

    @property
    def use_tqdm(self) -> bool:
        """True if a progress bar is shown."""
        return self._context.use_tqdm

    @property
    def scheduler_step_freq(self) -> str | None:
        """Time when schedulers step: "batch" or "epoch" (after each batch or epoch), or "manual" (by the
        user); or None.
        """
        return self._context.scheduler_step_freq

    def _weighted(
        self, iterator: Iterable[Any], feed: Feed | None, step: Any, default: Any
    ) -> Iterable[Batch]:
        """Return the batches of `iterator` with their weights; prefetch them if `step` is `default`."""
        if isinstance(iterator, EpochBatches):
            batches = iterator.weighted()
        elif feed is not None:
            batches = feed.label(iterator)
        else:
            # A user's loop may use batches of a loader that was not registered. Such batches have full
            # weight.
            batches = (Batch(data, FULL_WEIGHT) for data in iterator)
        # A user's step receives batches exactly as the loader gives them.
        is_default = getattr(step, "__func__", None) is default
        return self._prefetcher.ahead(batches) if is_default else batches

    def _current_weight(self) -> BatchWeight:
        return FULL_WEIGHT if self._train_feed is None else self._train_feed.current

    def _after_step(self) -> None:
        stepped = self._stepper.end()
        self.global_step += 1
        if stepped and self.scheduler_step_freq == "batch":
            for scheduler in self._registered.schedulers:
                scheduler.step()

    def _single_model(
        self, step: str, optimizers: int | None = 1
    ) -> tuple[nn.Module, Callable[..., torch.Tensor]]:
        held = self._registered
        if not held.models:
            raise ConfigError(
                f"the default {step} needs one model, but no model is registered: call register(models=..., "
                f"optimizers=..., criterion=...) in setup, or override {step}"
            )
        if len(held.models) != 1 or optimizers not in (None, len(held.optimizers)):
            raise ConfigError(
                f"the default {step} needs one model and one optimizer, not {len(held.models)} and "
                f"{len(held.optimizers)}: override {step}"
            )
        if self.criterion is None:
            raise ConfigError(
                f"the default {step} needs a loss: call register(criterion=...), or override {step}"
            )
        return held.models[0], self.criterion


def operator_of(
    cls: type[TrainingOperator], config: Mapping[str, Any], context: WorkerContext, **options: Any
) -> TrainingOperator:
    """Make an operator whose constructor may have any signature that RaySGD allowed.

    Args:
        cls: the operator's class.
        config: the user's configuration.
        context: context of the worker.
        **options: keyword arguments that RaySGD passed to the constructor; arguments that the constructor
            does not accept are dropped.
    """
    operator = cls.__new__(cls)
    operator._context = context
    options = taken(cls.__init__, options)
    if "context" in inspect.signature(cls.__init__).parameters:
        options["context"] = context
    operator.__init__(config, **options)  # type: ignore[misc]
    return operator
