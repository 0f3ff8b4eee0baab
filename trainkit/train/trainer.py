"""Trainer of operators, on one or more workers."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from torch import nn

from trainkit.errors import CheckpointError, ConfigError
from trainkit.registry import loaded
from trainkit.resources import describe
from trainkit.runtime import holdings
from trainkit.runtime.failures import without_frames
from trainkit.train.checkpoint.state import whole_state
from trainkit.train.operator import TrainingOperator
from trainkit.train.options import TrainerOptions, is_count
from trainkit.train.step.epoch import require_tqdm
from trainkit.train.step.metrics import not_finite, reduce_metrics
from trainkit.train.tune import TrainerTrainable, TrialPlan, TuneStep, make_trainable
from trainkit.train.workers.automatic_checkpoints import AutomaticCheckpoints, Owed, noted_updates
from trainkit.train.workers.background_saves import BackgroundSaves, FinishedSave
from trainkit.train.workers.elastic_worker_group import ElasticWorkerGroup
from trainkit.train.workers.recovery import RETRIES, Call, Effect

T = TypeVar("T")

log = logging.getLogger(__name__)


class RangeTestResult(Protocol):
    """Result of `TorchTrainer.lr_find`.

    Attributes:
        mode: "exponential" or "linear".
        results: dictionary with the learning rates as "lr", and the smoothed loss after each rate as "loss".
            If the test was stopped early, the lists of rates and losses are shorter.
    """

    @property
    def mode(self) -> str: ...

    @property
    def results(self) -> Mapping[str, list[float]]: ...

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """Return the learning rate at which the loss falls most steeply."""

    def plot(self, suggest: bool = False, show: bool = False, ax: Any = None) -> Any:
        """Plot the loss over the learning rates; return the figure."""


class OperatorTrainer:
    """Form of `TorchTrainer` that trains an operator. The workers start when the trainer is made.

    Args:
        **arguments: arguments for an operator; `TorchTrainer` documents each of them.

    Raises:
        ConfigError: an argument is wrong; the message names all mistakes at once.
        InfeasibleError: the machine does not have enough resources for the workers, even when idle.
        GangError: workers died at every attempt to start them.
    """

    def __init__(self, **arguments: Any) -> None:
        if arguments.get("use_tqdm"):
            require_tqdm()
        self._options = TrainerOptions.of(**arguments).resolved()
        self._saves = BackgroundSaves()
        self._checkpoints = self._checkpoint_rules()
        self._owed: Owed | None = None
        self._workers = ElasticWorkerGroup(self._options, self._saves, self._checkpoints)
        workers = weakref.ref(self._workers)
        holdings.register(
            self,
            amounts=lambda: {} if (held := workers()) is None else held.reserved(),
            close=lambda: None if (held := workers()) is None else held.close(),
        )
        if self._checkpoints is not None:
            try:
                self._owed = self._checkpoints.resume(self.load, self._workers.progress)
            except BaseException:
                self._workers.close(force=True)
                raise

    def _checkpoint_rules(self) -> AutomaticCheckpoints | None:
        folder, config = self._options.checkpoint_dir, self._options.checkpoint_config
        if folder is None or config is None:
            return None
        path, manual = Path(folder).expanduser().absolute(), self._options.scheduler_step_freq == "manual"
        return AutomaticCheckpoints(path, config, self._saves, updates=manual)

    @property
    def epoch(self) -> int:
        """Number of finished epochs, which is part of a checkpoint.

        An epoch whose result the next call of `train` returns again is not counted; see `update_scheduler`.
        """
        return self._workers.progress()[0] - (self._owed is not None)

    @property
    def global_step(self) -> int:
        """Number of training steps, which are batches of each worker, over all epochs."""
        return self._workers.progress()[1]

    @without_frames
    def train(
        self,
        num_steps: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        max_retries: int = RETRIES,
        info: Mapping[str, Any] | None = None,
        dataset: Any = None,
    ) -> Any:
        """Train for one epoch.

        Args:
            num_steps: number of batches for each worker. If the data has fewer batches, it starts again from
                the beginning. None means one pass over the data.
            profile: True adds `profile` to the result: worker 0's mean seconds of "fwd", "grad" and "apply"
                per batch, of everything else that `self.timers` measured, and of the epoch.
            reduce_results: True merges the workers' results into one; False returns a list with one result
                per worker.
            max_retries: how often the epoch continues after workers died or hung, without progress in
                between. After each failure, new workers continue from the last snapshot of the state. 0 turns
                snapshots off.
            info: dictionary that is passed to `train_epoch` and, with more entries, to `train_batch`. The
                progress bar shows the entry `num_epochs`.
            dataset: a loader to train on in this call instead of the registered loader, or a function that
                receives the configuration and makes the loader in each worker.

        Returns:
            A dictionary: `epoch` (1 after the first epoch), `batch_count`, `num_samples`, and two entries for
            each metric: `<metric>`, its mean weighted by samples, and `last_<metric>`, its last value.

        If the trainer has loaded a state from the middle of an epoch, train the rest of this epoch. In this
        case, the result covers the whole epoch, and `num_steps` includes the earlier steps.

        Raises:
            GangError: workers died or hung, and no retry is left. The trainer has ended.
            KeyboardInterrupt, SystemExit: Ctrl-C was pressed, or SIGTERM arrived. The workers first finish
                their step, and then end. After the interruption, `save` writes the state after this step, and
                other calls start new workers with this state. Workers that can't pause, and all workers at a
                second signal, are ended in the middle of a step; the trainer then has the state of the last
                snapshot. With `max_retries=0` no snapshot exists, so make a new trainer and load a
                checkpoint.
            Exception: the operator's exception, with the worker's traceback.
        """
        arguments = (num_steps, dict(info or {}), profile, dataset)
        call = Call("train", arguments, Effect.UNKNOWN, in_step=True)
        return self._epoch(call, max_retries, reduce_results, None if dataset is not None else "train")

    @without_frames
    def validate(
        self,
        num_steps: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        info: Mapping[str, Any] | None = None,
        *,
        max_retries: int = RETRIES,
    ) -> Any:
        """Evaluate on the validation data. Each sample counts once, for any number of workers.

        `train` describes the arguments, result and errors, with two differences: `num_steps` limits
        validation to the first batches, and `profile` contains "eval_fwd" and "validation". Unless
        `max_retries` is 0, a snapshot is taken before the validation if the last snapshot is out of date.
        """
        call = Call("validate", (num_steps, dict(info or {}), profile), Effect.SMALL, in_step=True)
        return self._epoch(call, max_retries, reduce_results, "validation")

    @without_frames
    def predict(
        self, dataset: Any = None, num_steps: int | None = None, *, max_retries: int = RETRIES
    ) -> list[Any]:
        """Return the predictions of a Lightning module's `predict_step`, for an operator of `from_ptl`.

        The workers predict whole batches of the loader, so the result is the same as with a single worker.

        Args:
            dataset: a loader, several loaders in a form that Lightning accepts, or a function that receives
                the configuration and makes the loaders in each worker. Default: the module's own
                `predict_dataloader`.
            num_steps: number of batches of each loader, over all workers; None means all batches.
            max_retries: how often the prediction may be repeated if workers die or hang; without a snapshot
                of the state, the prediction is never repeated.

        Returns:
            The results of `predict_step`, one per batch, with tensors on the CPU; for several loaders a list
            of such lists.

        Raises:
            ConfigError: the operator was not made by `from_ptl`, or has no data to predict.
            GangError: workers died or hung, and no retry is left.
            Exception: the module's exception in a worker.
        """
        if not self._options.training_operator_cls._predicts:
            raise ConfigError("predict() needs an operator made by from_ptl(): call get_model()(batch)")
        self._check_counts("predict", num_steps, max_retries)
        call = Call("predict", (dataset, num_steps), Effect.SMALL, in_step=True)
        workers = self._workers.run(call, max_retries)
        loaders = []
        for parts in zip(*workers, strict=True):
            rounds = itertools.zip_longest(*(predictions for predictions, _ in parts))
            count = min(parts[0][1], sum(len(predictions) for predictions, _ in parts))
            loaders.append(list(itertools.islice(itertools.chain.from_iterable(rounds), int(count))))
        return loaders[0] if len(loaders) == 1 else loaders

    @without_frames
    def update_scheduler(self, metric: float) -> None:
        """Step all schedulers with `metric`, which `ReduceLROnPlateau` needs.

        With `checkpoint_dir` and `scheduler_step_freq="manual"`, no step of the schedulers is lost if the
        program is killed between `train` and this call. When the program is started again, `epoch` does not
        count the last epoch yet. The next call of `train` returns the result of this epoch again, without
        training, so that the same loop validates and calls this method. A call before this call of `train`
        belongs to an earlier epoch, and has no effect.
        """
        if self._owed is not None:
            log.warning("update_scheduler() before train() has no effect: the loaded state has this step")
            return
        self._update_scheduler(metric)
        if self._checkpoints is not None:
            self._checkpoints.note_update(self._workers.progress(), metric)

    def _update_scheduler(self, metric: float | None) -> None:
        self._workers.run(
            Call("step_schedulers", (metric,), Effect.REPEATABLE, alike=True, name="update_scheduler")
        )

    @without_frames
    def apply_all_workers(self, fn: Callable[[], T]) -> list[T]:
        """Call `fn()` in each worker and return the results by rank."""
        call = Call("apply", (fn,), Effect.UNKNOWN, name="apply_all_workers")
        return self._workers.run(call, max_retries=0)

    @without_frames
    def apply_all_operators(self, fn: Callable[[TrainingOperator], T]) -> list[T]:
        """Call `fn(operator)` in each worker and return the results by rank."""
        call = Call("apply_operator", (fn,), Effect.UNKNOWN, name="apply_all_operators")
        return self._workers.run(call, max_retries=0)

    @without_frames
    def get_model(self, to_cpu: bool = False, *, ema: bool = False) -> nn.Module | list[nn.Module]:
        """Return the registered model without wrappers, or a list if several models are registered.

        If worker 0 is a separate process, the result is a copy on the CPU. With `use_local` the result is the
        model that is trained, unless `to_cpu` requests a copy.

        Args:
            to_cpu: True always returns a copy on the CPU.
            ema: True returns a copy with the averaged weights of `ema_decay`.
        """
        models = self._workers.models(to_cpu=to_cpu, averaged=ema)
        return models[0] if len(models) == 1 else models

    def get_local_operator(self) -> TrainingOperator:
        """Return worker 0's operator, if it runs in this process.

        Raises:
            ConfigError: worker 0 runs in a separate process.
        """
        worker = self._workers.local_worker
        if worker is None:
            raise ConfigError("get_local_operator() needs use_local=True; else use apply_all_operators()")
        return worker.operator

    @without_frames
    def state_dict(self) -> dict[str, Any]:
        """Return the state of models, optimizers, schedulers, operator and random generators, and the epoch.

        Tensors are whole and on the CPU, even if the strategy shards them.
        """
        return whole_state(self._workers.snapshot())

    @without_frames
    def load_state_dict(self, state_dict: Mapping[str, Any], blocking: bool = False) -> None:
        """Load a state that `state_dict` returned, even if it comes from a trainer with a different number of
        workers.

        Args:
            state_dict: result of `state_dict`, which is copied.
            blocking: has no effect, because this call always returns after all workers have loaded the state.

        Raises:
            CheckpointError: the state does not fit the registered models, optimizers or schedulers.
        """
        self._load(Call("load_state_dict", (state_dict,), Effect.UNKNOWN, alike=True))

    @without_frames
    def save(self, path: str | Path, *, wait: bool = True) -> Path:
        """Write a checkpoint as a folder.

        An existing checkpoint is replaced after the new checkpoint is on disk.

        With `wait=False`, each worker copies its part of the state into the object store, and the call
        returns. A process with the lowest priority then writes the copy while training continues. At most one
        write runs at a time: `save` and `load` first wait until the previous write has ended. The end of the
        `with` block, `shutdown` and the end of the program also wait for the write. If the write fails, the
        trainer's next call raises CheckpointError before it does anything else.

        Args:
            path: the folder. If workers are on several machines, the folder must be on a shared file system.
            wait: False to return when the state is copied. Even with False, the call waits if the copy does
                not fit into the object store, or if the engine has no other processes (the inline engine).

        Returns:
            The folder's absolute path.

        Raises:
            CheckpointError: the checkpoint could not be written, or the write of an earlier call with
                `wait=False` failed. An existing checkpoint is unchanged.
        """
        folder = Path(path).expanduser().absolute()
        self._saves.wait()
        if wait:
            self._workers.save(folder)
        else:
            self._workers.save_copy(folder)
        return folder

    @property
    def last_save(self) -> FinishedSave | None:
        """Durations and size of the last finished write of `save(wait=False)`; None before the first write
        has finished.

        Raises:
            CheckpointError: the last write failed.
        """
        self._saves.check()
        return self._saves.last

    @without_frames
    def load(self, path: str | Path) -> None:
        """Load a checkpoint that was written on any number of workers.

        For a checkpoint in a `checkpoint_dir`, repeat the calls of `update_scheduler` that followed it.

        Raises:
            CheckpointError: `path` is not a checkpoint, or the checkpoint is damaged or does not fit the
                registered models, optimizers or schedulers.
        """
        folder = Path(path).expanduser().absolute()
        self._saves.wait()
        self._load(Call("load", (folder,), Effect.UNKNOWN, alike=True))
        for metric in noted_updates(folder):
            self._update_scheduler(metric)

    def _load(self, call: Call) -> None:
        self._owed = None
        self._workers.run(call)
        if self._checkpoints is not None:
            self._checkpoints.moved(self._workers.progress())

    def shutdown(self, force: bool = False) -> None:
        """End the workers; `force=True` ends them even in the middle of a call.

        Raises:
            CheckpointError: the write of a call of `save` with `wait=False` failed.
        """
        try:
            self._workers.close(force=force)
        finally:
            self._saves.end()

    @without_frames
    def lr_find(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training: int = 100,
        mode: Literal["exponential", "linear"] = "exponential",
        early_stop_threshold: float | None = 4.0,
        *,
        metric: str = "train_loss",
    ) -> RangeTestResult:
        """Train one step at each of many learning rates; return the losses, from which a good learning rate
        can be chosen.

        After the test, the trainer has new workers with the previous state, so weights and rates are
        unchanged.

        Args:
            min_lr: first learning rate, for all parameter groups of all optimizers.
            max_lr: last learning rate.
            num_training: number of learning rates, each for one step of the optimizers.
            mode: "exponential" multiplies the rate by a constant factor after each step; "linear" adds a
                constant.
            early_stop_threshold: factor by which the smoothed loss must exceed its best value to end the test
                early. None ends the test after the last rate.
            metric: name of the loss among the metrics that `train_batch` returns.

        Raises:
            ConfigError: an argument is wrong, or the operator registered no optimizer.
            GangError: workers died or hung.
            Exception: the operator's exception in a worker.
        """
        lr_find = loaded("trainkit.trainer_methods", "lr_find")
        found: RangeTestResult = lr_find(
            self, min_lr, max_lr, num_training, mode, early_stop_threshold, metric
        )
        return found

    @without_frames
    def scale_batch_size(
        self,
        mode: Literal["power", "binsearch"] = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> int:
        """Return the largest batch size at which training does not run out of memory.

        Each size is tried on new workers that have the size in their configuration. So a size that runs out
        of memory, or at which a worker is killed, has no lasting effect. After the search, the trainer has
        its previous state.

        Args:
            mode: "power" doubles the size while it fits into memory, or halves it until it fits. "binsearch"
                does the same, and then searches between the largest size that fits and the smallest size that
                does not fit.
            steps_per_trial: number of batches to train on with each size.
            init_val: the first size.
            max_trials: largest number of sizes to try.
            batch_arg_name: configuration key from which `setup` reads the size. If the key is `BATCH_SIZE`,
                the size is the batch size over all workers.
            margin: fraction by which the result of "binsearch" is reduced, as a safety margin.
            max_val: largest size to try.

        Raises:
            ConfigError: an argument is wrong, or the size in the configuration does not change the batches.
            TrainingError: no size fits.
            Exception: the operator's exception in a worker, except for lack of memory.
        """
        scale = loaded("trainkit.trainer_methods", "scale_batch_size")
        size: int = scale(self, mode, steps_per_trial, init_val, max_trials, batch_arg_name, margin, max_val)
        return size

    @property
    def has_validation(self) -> bool:
        """True if the operator registered validation data."""
        return self._workers.has_data("validation")

    @classmethod
    def as_trainable(
        cls,
        *,
        override_tune_step: TuneStep | None = None,
        **kwargs: Any,
    ) -> type[TrainerTrainable]:
        """Return a class of trials for `tune.Tuner`. Each trial has a trainer and reserves all its workers.

        A trial's configuration is merged into the argument `config`, and takes precedence. One step of a
        trial is an epoch of training and, if the operator registered validation data, a validation. The
        step's result contains the metrics of training and validation. If both have a metric of the same name,
        the result has the validation's value, but `num_samples`, `batch_count` and `epoch` come from
        training.

        Args:
            override_tune_step: function of (trainer, {"iteration": n}) that replaces the trial's step and
                returns the step's result.
            **kwargs: arguments of `TorchTrainer`.

        Raises:
            ConfigError: an argument is wrong.
        """
        options = TrainerOptions.of(**kwargs).resolved()
        return make_trainable(TrialPlan(cls, options, override_tune_step))

    def __trainable__(self) -> type[TrainerTrainable]:
        """Return the trainable for `tune.Tuner(trainer)`, and end the trainer's own workers."""
        made = make_trainable(TrialPlan(type(self), self._options, None))
        self.shutdown()
        return made

    def __repr__(self) -> str:
        facts = "".join(f"  {name}: {text}\n" for name, text in self._facts())
        return f"{type(self).__name__}(\n{facts})"

    def _repr_html_(self) -> str:
        rows = [("", type(self).__name__), *self._facts()]
        cells = ("".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) for row in rows)
        return f"<table><tr>{'</tr><tr>'.join(cells)}</tr></table>"

    def _facts(self) -> list[tuple[str, str]]:
        options, ended = self._options, self._workers.ended
        held = "" if ended is not None else f", which reserve {describe(self._workers.reserved())}"
        facts = [
            ("operator", options.training_operator_cls.__qualname__),
            ("workers", f"{options.num_workers}{held}"),
            ("strategy", str(options.strategy)),
            ("precision", str(options.step.precision)),
        ]
        return facts if ended is None else [*facts, ("ended", ended)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.shutdown(force=error is not None)
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def _epoch(self, call: Call, max_retries: int, reduce_results: bool, needs: str | None) -> Any:
        """Run an epoch of training or validation; data of the kind `needs` must be registered."""
        self._check_counts(call.method, call.args[0], max_retries)
        if needs is not None:
            self._require(needs)
        if call.method == "train" and (owed := self._owed) is not None:
            self._owed = None
            return owed[0] if reduce_results else owed[1]
        try:
            results = self._workers.epoch(call, max_retries)
            reported = {rank: results[rank] for rank in self._workers.reporters}
            listed = list(reported.values())
            if self._checkpoints is not None and call.method == "train":
                self._workers.end_epoch(listed)
            elif self._checkpoints is not None:
                self._checkpoints.note(self._workers.progress(), reduce_metrics(listed))
        except (KeyboardInterrupt, SystemExit):
            self._workers.save_last()
            raise
        if (warning := not_finite(reported)) is not None:
            log.warning("%s: %s; detect_nan=True stops training at the first such loss", call.method, warning)
        if not any(result.get("batch_count", 1) for result in listed):
            log.warning(
                "%s() has no metrics, because there was no batch: the data is empty, or too small for "
                "drop_last=True",
                call.method,
            )
        return reduce_metrics(listed) if reduce_results else [dict(result) for result in listed]

    def _check_counts(self, method: str, num_steps: Any, max_retries: Any) -> None:
        if num_steps is not None and not is_count(num_steps):
            raise ConfigError(f"{method}(): num_steps must be 1 or more, or None for all, not {num_steps!r}")
        if max_retries is False or (max_retries != 0 and not is_count(max_retries)):
            raise ConfigError(f"{method}(): max_retries must be a non-negative integer, not {max_retries!r}")

    def _require(self, data: str) -> None:
        """Raise ConfigError unless the operator has registered `data`, which is "train" or "validation"."""
        if self._workers.ended is None and not self._workers.has_data(data):
            raise ConfigError(f"there is no {data} data: call register_data({data}_loader=...) in setup")
