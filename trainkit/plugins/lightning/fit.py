"""Lightning's own `Trainer.fit`, suspended between epochs; access to its loaders and logged values.

    trainer.train() ─▶ operator ─▶ LightningFit ──switch──▶ greenlet: Trainer.fit(module)
                                        ▲                       setup, hooks, ...
                                        └──── before FitLoop.run, and after each epoch

`fit` runs in a greenlet, which is a separate stack on the same thread. So Lightning's hooks run on the main
thread, and `fit` ends by returning. Validation also runs in the greenlet, where Lightning catches the errors
of hooks.
"""

from __future__ import annotations

import contextvars
import copy
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from greenlet import greenlet  # type: ignore[import-untyped]
from torch.utils.data import DataLoader, IterableDataset

from trainkit.errors import ConfigError, TrainingError
from trainkit.plugins.lightning.trainer_parts import Interrupted, WorkerInfo, quiet_lightning, resize
from trainkit.train.checkpoint.state import (
    Hyperparameters,
    generator_states,
    hyperparameters_of,
    load_generator_states,
)
from trainkit.train.data.feed import Feed, set_epoch
from trainkit.train.data.sharding import (
    BatchWeight,
    ShardedBatchSampler,
    batch_weight,
    with_batches,
)
from trainkit.train.data.streams import SharedStreamLoader
from trainkit.train.distributed.process_group import ProcessGroup
from trainkit.train.distributed.tensors import tensors_in
from trainkit.train.keys import NUM_SAMPLES, SHOULD_STOP
from trainkit.train.operator import Predicted
from trainkit.train.step.metrics import EpochMetrics, Meters, Origin


class Logged:
    """Collector of the values logged with `self.log`, by their names in Lightning's `callback_metrics`."""

    def __init__(self) -> None:
        self._values: dict[str, torch.Tensor] = {}
        self._origins: dict[str, Origin] = {}

    def clear(self) -> None:
        """Forget all values, because a new epoch begins."""
        self._values, self._origins = {}, {}

    def take(self, results: Any, *, last: Origin) -> None:
        """Store all values that were logged since the loop began.

        Args:
            results: collection in which Lightning's loop stores logged values; read before Lightning resets
                it.
            last: origin (samples and step) of values that were logged only for a step, not for the epoch.
        """
        for _, metric in results.valid_items():
            meta = metric.meta
            if meta.on_epoch:
                name, forked = results._forked_name(metric, False)
                self._put((name, forked), results._get_cache(metric, False), _origin(metric))
            if meta.on_step and (results.training or not meta.on_epoch):
                name, forked = results._forked_name(metric, True)
                names = (forked,) if meta.on_epoch else (name, forked)
                self._put(names, results._get_cache(metric, True), last)

    def metrics(self) -> EpochMetrics:
        """Return all logged values as numbers."""
        return EpochMetrics({name: float(value) for name, value in self._values.items()}, self._origins)

    def _put(self, names: Sequence[str], value: torch.Tensor | None, origin: Origin) -> None:
        if value is not None:
            self._values.update(dict.fromkeys(names, value))
            self._origins.update(dict.fromkeys(names, origin))


def _origin(metric: Any) -> Origin:
    """Return how to combine a value over workers: its number of samples, or its reduction."""
    meta = metric.meta
    if not metric.is_tensor or (meta.sync.should and not meta.sync.rank_zero_only):
        # Values of torchmetrics, or logged with sync_dist=True, are already equal on all workers.
        return Origin(1.0)
    if meta.is_mean_reduction:
        return Origin(float(metric.cumulated_batch_size))
    how = "sum" if meta.is_sum_reduction else "max" if meta.is_max_reduction else "min"
    return Origin(1.0, how=how)


class StandIn:
    """Context of a batch that only repeats samples. At its end, logged values and metrics are restored.

    Args:
        results: collection in which Lightning's loop stores logged values.
        module: the module whose torchmetrics metrics must stay unchanged.
    """

    def __init__(self, results: Any, module: torch.nn.Module) -> None:
        metric_class = importlib.import_module("torchmetrics").Metric
        self._results = results
        self._logs = results.log
        self._metrics = [
            (metric, _kept(metric, (*metric._defaults, "_update_count", "_computed")))
            for metric in module.modules()
            if isinstance(metric, metric_class)
        ]
        results.log = self._log

    def end(self) -> None:
        """Restore the metrics, after all hooks of the batch have run."""
        vars(self._results).pop("log", None)
        for metric, kept in self._metrics:
            for name, value in kept.items():
                setattr(metric, name, value)

    def _log(self, *args: Any, **kwargs: Any) -> None:
        # Logging can't be skipped, because workers may communicate while they log. So the effect of logging
        # is undone afterwards.
        before = {key: _kept(metric, _SUMS) for key, metric in self._results.items() if metric.is_tensor}
        self._logs(*args, **kwargs)
        for key, metric in self._results.items():
            if metric.is_tensor:
                vars(metric).update(before.get(key) or copy.deepcopy(metric._defaults))


_SUMS = ("value", "cumulated_batch_size")
"""Attributes of Lightning's result metric in which logged values are accumulated."""


def _kept(metric: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: copy.deepcopy(getattr(metric, name)) for name in names if hasattr(metric, name)}


def samples_in(batch: Any) -> int:
    """Return the size of a batch: the length of its first tensor; 1 without a tensor."""
    first = next(iter(tensors_in(batch)), None)
    return 1 if first is None or not first.dim() else len(first)


def numbers_in(returned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a step's result that can be averaged: numbers and one-element tensors."""
    return {name: value for name, value in returned.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def after(method: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that calls `method` and then `then`."""

    def both(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        then()
        return result

    return both


_NOT_KEPT = ("hparams_name", "hparams_type", "hyper_parameters", "datamodule_hyper_parameters")
"""Keys of the configuration in Lightning's checkpoint.

The configuration is not saved, because it may contain secrets, and the trainer already has it.
"""


class StepTest(Protocol):
    """Test of learning rates, which a plugin implements.

    Attributes:
        optimizers: optimizers whose rates the test sets.
    """

    optimizers: Sequence[torch.optim.Optimizer]

    def begin(self) -> None:
        """Set the learning rate for the step of the next batch."""

    def end(self, metrics: Mapping[str, Any], weight: BatchWeight) -> None:
        """Read the metrics of a batch; may raise an error to end the test."""


class LightningFit:
    """Run of Lightning's `Trainer.fit`, one epoch at a time.

    Args:
        worker: the worker's device and ranks.
        split: function from a loader to a feed with this worker's share of the loader's samples.
        shared: function that is called with the training feed as soon as Lightning has made the loader.
        state: result of `checkpoint` to start from, or None; the module must already have its weights.

    Attributes:
        trainer: Lightning's trainer.
        set_up: hyperparameters that `configure_optimizers` has set; None if this method has not run yet.
        weight: factor for the current batch's loss, by which the averaged gradient becomes the gradient of
            the whole batch.
        range_test: test that sets the learning rate of each step and reads the loss; None if no test runs.
    """

    trainer: Any

    def __init__(
        self,
        *,
        worker: WorkerInfo,
        split: Callable[[Any], Feed],
        shared: Callable[[Feed], None],
        state: Mapping[str, Any] | None,
    ) -> None:
        self.state_to_load = state
        self.weight = 1.0
        self.set_up: Hyperparameters | None = None
        self._worker = worker
        self._split = split
        self._shared = shared
        self._training, self._validation = Meters(), Meters()
        self._logged = Logged()
        self._last = Origin(0.0)
        self._batches = 0
        self._stand_in: StandIn | None = None
        self._validated: tuple[int, bool] = 0, False
        self._dealt: list[int | None] | None = None
        self.range_test: StepTest | None = None

    def begin(self, trainer: Any, module: Any, **data: Any) -> None:
        """Start `Trainer.fit` and run it up to the first epoch; errors in Lightning are raised."""
        self.trainer = trainer
        self._limit = trainer.limit_train_batches
        loop, connector = trainer.fit_loop, trainer._logger_connector
        self._run_loop, loop.run = loop.run, self._when_told
        loop.on_advance_end = after(loop.on_advance_end, self._after_epoch)
        connector.on_epoch_end = after(connector.on_epoch_end, self._take_logged)
        connector.on_batch_end = after(connector.on_batch_end, self._end_batch)
        connector.update_eval_epoch_metrics = after(connector.update_eval_epoch_metrics, self._take_logged)
        path = None
        if self.state_to_load is not None:
            path, state = "the trainer's state", self.state_to_load
            self.state_to_load = {**state, "state_dict": {**module.state_dict(), **state["state_dict"]}}

        def fit() -> None:
            trainer.fit(module, **data, ckpt_path=path)

        self._greenlet = greenlet(fit)
        self._greenlet.gr_context = contextvars.copy_context()
        self._switch()
        self.state_to_load = None

    @property
    def alive(self) -> bool:
        """True if `Trainer.fit` has not ended: it waits for the next epoch."""
        return bool(self._greenlet)

    def train(self, num_steps: int | None, ticks: Iterator[Any]) -> EpochMetrics:
        """Run one epoch of `Trainer.fit`, with its validation and hooks; return metrics.

        Args:
            num_steps: number of batches, at most one pass over the data; None means Lightning's own number.
            ticks: iterator that is advanced by one for each batch, to count batches.
        """
        trainer = self.trainer
        self._check_alive()
        if 0 <= (trainer.max_epochs if trainer.max_epochs is not None else -1) <= trainer.current_epoch:
            raise ConfigError(
                f"Lightning has trained all {trainer.max_epochs} epochs of trainer_args['max_epochs']: raise "
                "max_epochs, or leave it out, because each call of train() trains one epoch"
            )
        # The stop of an earlier epoch was already reported, and the caller may continue.
        trainer.should_stop = False
        resize(trainer, self._limit if num_steps is None else num_steps)
        self._training, self._validation, self._batches = Meters(), Meters(), 0
        self._logged.clear()
        self._ticks = ticks
        # Lightning calls `set_epoch` only on samplers, so this code calls it on the loaders.
        for loader in getattr(trainer.fit_loop._combined_loader, "flattened", ()):
            set_epoch(loader, trainer.current_epoch)
        self._switch(lambda: True)
        if not self.alive:
            raise TrainingError("Lightning ended without an epoch: the training data has no batches")
        last_one = trainer.max_epochs not in (None, -1) and trainer.current_epoch >= trainer.max_epochs
        asks = {SHOULD_STOP: float(trainer.should_stop or last_one)}
        counts, logged = self._training.result(), self._logged.metrics()
        validated = self._validation.result()
        returned = {name: value for name, value in validated.items() if name in validated.origins}
        return EpochMetrics(
            {**returned, **counts, **asks, **logged},
            {**validated.origins, **counts.origins, **logged.origins},
        )

    def validate(self, num_steps: int | None, ticks: Iterator[Any]) -> EpochMetrics:
        """Run Lightning's own validation loop over `num_steps` batches of each loader; return metrics."""
        self._check_alive()
        self._validation = Meters()
        self._logged.clear()
        self._ticks = ticks
        self._switch(lambda: self._run_validation(num_steps))
        counts, logged = self._validation.result(), self._logged.metrics()
        return EpochMetrics({**counts, **logged}, {**counts.origins, **logged.origins})

    def predict(self, dataloaders: Any, num_steps: int | None) -> list[Predicted]:
        """Run Lightning's own prediction loop.

        Args:
            dataloaders: loaders to predict on; None means the module's own loaders.
            num_steps: number of batches of each loader, over all workers; None means all batches.

        Returns:
            For each loader, this worker's predictions, and the number of batches on all workers without
            repeated batches.
        """
        self._check_alive()
        found: list[Predicted] = []
        self._switch(lambda: found.extend(self._run_prediction(dataloaders, num_steps)))
        return found

    def checkpoint(self) -> dict[str, Any]:
        """Return Lightning's checkpoint without the module's weights."""
        trainer = self.trainer
        held = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        # The weights are left out, because the module is one of the operator's models, and the trainer's
        # state already contains its weights.
        known = trainer.lightning_module.state_dict()
        held["state_dict"] = {name: value for name, value in held["state_dict"].items() if name not in known}
        return {name: value for name, value in held.items() if name not in _NOT_KEPT}

    def end(self) -> None:
        """Let Lightning end cleanly, with its hooks for the end of training and fit, and for teardown."""
        if self.alive:
            self._switch(lambda: False)

    def note_set_up(self) -> None:
        """Record the hyperparameters after Lightning has made optimizers, and before it loads a state."""
        schedulers = [each.scheduler for each in self.trainer.lr_scheduler_configs]
        self.set_up = hyperparameters_of(self.trainer.optimizers, schedulers)

    def share(self, loader: Any) -> Any:
        """Return a loader of this worker's share of the samples, with equally many batches on all workers."""
        if self._dealt is not None:
            loader, batches = whole_batches(loader, self._worker.group)
            self._dealt.append(batches)
            return loader
        feed = self._split(loader)
        if self.trainer.training:
            set_epoch(feed.loader, self.trainer.current_epoch)
            self._shared(feed)
        return feed.loader

    def begin_training_batch(self, batch: Any, index: int) -> None:
        """Prepare for a training batch, before Lightning runs it."""
        next(self._ticks, None)
        if self.range_test is not None:
            self.range_test.begin()
        loaders = self.trainer.fit_loop._combined_loader.flattened
        self.weight = self._weight(loaders[0], index) if len(loaders) == 1 else 1.0
        self._samples = self._count(batch, self.weight)

    def end_training_batch(self, outputs: Any) -> None:
        """Count a finished training batch."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        metrics: dict[str, Any] = {NUM_SAMPLES: self._samples}
        if isinstance(outputs, Mapping):
            metrics |= numbers_in({name: value for name, value in outputs.items() if name != "loss"})
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            # The loss is multiplied by the number of accumulated batches, because Lightning has divided the
            # loss by this number.
            module = self.trainer.lightning_module
            times = self.trainer.accumulate_grad_batches if module.automatic_optimization else 1
            metrics["train_loss"] = loss if times == 1 else loss * times
        self._training.add(metrics, counted=self.weight > 0)
        self._last = Origin(float(self._samples), self._batches)
        self._batches += 1
        if self.range_test is not None:
            loop = self.trainer.fit_loop.epoch_loop
            weight = BatchWeight(averaged=self.weight, closes_step=not loop._should_accumulate())
            self.range_test.end(metrics, weight)

    def begin_validation_batch(self, batch: Any, index: int, loader_index: int = 0) -> None:
        """Prepare for a validation batch, before Lightning runs it."""
        fitting = self.trainer.state.fn == type(self.trainer.state.fn).FITTING
        if not fitting:
            next(self._ticks, None)
        loop = self.trainer.fit_loop.epoch_loop.val_loop if fitting else self.trainer.validate_loop
        loader = loop._combined_loader.flattened[loader_index]
        weight = self._weight(loader, index)
        self._validated = self._count(batch, weight), weight > 0

    def begin_validation(self) -> None:
        """Begin a pass over the validation data, and forget the results of an earlier pass in this epoch."""
        self._validation = Meters()

    def end_validation_batch(self, outputs: Any) -> None:
        """Count a finished validation batch; if its step returned only a loss, the loss is named
        `val_loss`.
        """
        returned = outputs if isinstance(outputs, Mapping) else {"val_loss": outputs}
        samples, counted = self._validated
        self._validation.add({**numbers_in(returned), NUM_SAMPLES: samples}, counted=counted)

    def _when_told(self) -> None:
        """Wait until an epoch is requested, then run the loop; this method replaces `FitLoop.run`."""
        if self._await_order():
            self._run_loop()

    def _after_epoch(self) -> None:
        """Wait for the request of the next epoch; called after all hooks of the previous epoch."""
        if not self._await_order():
            # Lightning ends the loop cleanly at this exception, as at the end of a loader.
            raise StopIteration

    def _await_order(self) -> bool:
        """Run requests from outside of the greenlet until one returns True (continue) or False (end)."""
        while True:
            outside = self._greenlet.parent
            order = outside.switch()
            answer = order()
            if answer is not None:
                return bool(answer)

    def _run_validation(self, num_steps: int | None) -> None:
        """Run the loop of `Trainer.validate` inside `Trainer.fit`, and restore the state of the fit."""
        trainer, connector = self.trainer, self.trainer._logger_connector
        before = trainer.limit_val_batches
        kept = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics", "_first_loop_iter")
        metrics = {
            name: dict(value) if isinstance(value := getattr(connector, name), dict) else value
            for name in kept
        }
        try:
            # To callbacks, this validation does not belong to `fit`, so early stopping ignores it.
            with self._aside("VALIDATING"):
                if num_steps is not None:
                    trainer.limit_val_batches = num_steps
                trainer.validate_loop.verbose = False
                trainer.validate_loop.run()
        finally:
            trainer.limit_val_batches = before
            vars(connector).update(metrics)

    def _run_prediction(self, dataloaders: Any, num_steps: int | None) -> list[Predicted]:
        """Run the loop of `Trainer.predict` inside `Trainer.fit`, with the hooks setup and teardown."""
        trainer, loop = self.trainer, self.trainer.predict_loop
        call = importlib.import_module(type(trainer).__module__.rpartition(".")[0] + ".call")
        before, source, self._dealt = trainer.limit_predict_batches, loop._data_source.instance, []
        if dataloaders is not None:
            loop._data_source.instance = dataloaders
        if num_steps is not None:
            trainer.limit_predict_batches = math.ceil(num_steps / self._worker.group.world_size)
        # Lightning's `_prepare_dataloader` would replace batch samplers to record indices, so it is bypassed.
        vars(trainer._data_connector)["_prepare_dataloader"] = lambda loader, **_: loader
        loop._combined_loader, loop.return_predictions = None, True
        try:
            with self._aside("PREDICTING"):
                call._call_setup_hook(trainer)
                loop.run()
                for hooks in (call._call_callback_hooks, call._call_lightning_module_hook):
                    hooks(trainer, "teardown", stage=trainer.state.fn)
                if trainer.datamodule is not None:
                    call._call_lightning_datamodule_hook(trainer, "teardown", stage=trainer.state.fn)
            most = math.inf if num_steps is None else num_steps
            counts = [min(most, math.inf if batches is None else batches) for batches in self._dealt]
            return list(zip(loop._predictions, counts, strict=True))
        finally:
            trainer.limit_predict_batches, loop._data_source.instance, self._dealt = before, source, None
            vars(trainer._data_connector).pop("_prepare_dataloader")

    @contextmanager
    def _aside(self, what: str) -> Iterator[None]:
        """Set Lightning's state to a different function, such as "VALIDATING", during the block."""
        state = self.trainer.state
        before = state.fn, state.stage
        # The generators are restored, because validation or prediction must not change the random numbers of
        # the training.
        generators = generator_states()
        state.fn, state.stage = (getattr(type(each), what) for each in before)
        try:
            yield
        finally:
            state.fn, state.stage = before
            load_generator_states(generators)

    def _take_logged(self) -> None:
        if not self.trainer.sanity_checking:
            self._logged.take(self.trainer._results, last=self._last)

    def _switch(self, *order: Callable[[], bool | None]) -> None:
        """Run the greenlet until it waits again or ends."""
        self._greenlet.parent = greenlet.getcurrent()
        with quiet_lightning():
            try:
                self._greenlet.switch(*order)
            except Interrupted as error:
                raise KeyboardInterrupt from error

    def _check_alive(self) -> None:
        if not self.alive:
            raise TrainingError(
                "Lightning's fit ended by error or shutdown: load() a checkpoint or make a new TorchTrainer"
            )

    def _weight(self, loader: Any, index: int) -> float:
        if isinstance(loader, SharedStreamLoader):
            return loader.weight(index)
        sampler = getattr(loader, "batch_sampler", None)
        if not isinstance(sampler, ShardedBatchSampler):
            return 1.0
        group = self._worker.group
        weight = batch_weight(
            index, index + 1, sampler.sizes(), every=1, rank=group.rank, world_size=group.world_size
        )
        return weight.averaged

    def _count(self, batch: Any, weight: float) -> int:
        """Return the number of samples in the batch; 0 if the batch only repeats samples (weight 0)."""
        if weight > 0:
            return samples_in(batch)
        trainer = self.trainer
        self._stand_in = StandIn(trainer._results, trainer.lightning_module)
        return 0

    def _end_batch(self) -> None:
        if self._stand_in is not None:
            self._stand_in.end()
            self._stand_in = None


def whole_batches(loader: Any, group: ProcessGroup) -> tuple[Any, int | None]:
    """Return a loader of this worker's batches, and the number of all batches (None with one worker).

    Whole batches are distributed one by one, starting with worker 0. All workers get equally many batches. If
    the number of batches can't be divided evenly, the first batch is repeated at the end.

    Args:
        loader: the user's loader.
        group: the workers.

    Raises:
        ConfigError: the loader's batches can't be shared among several workers.
    """
    if group.world_size == 1:
        return loader, None
    # The batch sampler of a stream's loader has no end.
    streams = isinstance(getattr(loader, "dataset", None), IterableDataset)
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None or streams:
        kind = "over a stream" if streams else "without a batch sampler"
        raise ConfigError(
            f"predict(): a {type(loader).__name__} {kind} can't be shared among "
            f"{group.world_size} workers: give a DataLoader over a map-style data set, with a batch_size"
        )
    # Worker 0 determines the batches for all workers, because their order may be random.
    batches = [list(batch) for batch in loader.batch_sampler] if group.rank == 0 else []
    sizes = group.broadcast_integers([len(batch) for batch in batches])
    order = iter(group.broadcast_integers([index for batch in batches for index in batch]))
    batches = [list(itertools.islice(order, size)) for size in sizes]
    lacking = -len(batches) % group.world_size
    own = (batches + batches[:1] * lacking)[group.rank :: group.world_size]
    return with_batches(loader, own), len(batches)
