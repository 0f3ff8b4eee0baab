"""Trainer of operators, which trains on one or more workers and keeps the result."""

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

from trainkit.errors import ConfigError
from trainkit.registry import loaded
from trainkit.resources import describe
from trainkit.runtime import holdings
from trainkit.runtime.failures import without_frames
from trainkit.train.checkpoint.state import whole_state
from trainkit.train.lightning.operator import LightningMethods
from trainkit.train.operator import TrainingOperator
from trainkit.train.options import TrainerOptions, is_count
from trainkit.train.step.epoch import require_tqdm
from trainkit.train.step.metrics import not_finite, reduce_metrics
from trainkit.train.tune import TrainerTrainable, TrialPlan, TuneStep, make_trainable
from trainkit.train.workers.elastic_worker_group import ElasticWorkerGroup
from trainkit.train.workers.recovery import RETRIES, Call, Effect

T = TypeVar("T")

log = logging.getLogger(__name__)


class RangeTestResult(Protocol):
    """Result of `TorchTrainer.lr_find`.

    Attributes:
        mode: "exponential" or "linear".
        results: the rates as "lr", and the smoothed loss after each rate as "loss". Both lists are shorter if
            the test was stopped early.
    """

    @property
    def mode(self) -> str: ...

    @property
    def results(self) -> Mapping[str, list[float]]: ...

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """Return the rate at which the loss falls most steeply."""

    def plot(self, suggest: bool = False, show: bool = False, ax: Any = None) -> Any:
        """Draw the loss over the rates; return the figure."""


class OperatorTrainer:
    """The form of `TorchTrainer` that trains an operator. Its workers start with the trainer.

    Args:
        **arguments: arguments of the operator form; `TorchTrainer` documents each of them.

    Raises:
        ConfigError: an argument is wrong; the message names all mistakes at once.
        InfeasibleError: the machine can never hold the workers.
        GangError: workers died at every attempt to start them.
    """

    def __init__(self, **arguments: Any) -> None:
        if arguments.get("use_tqdm"):
            require_tqdm()
        self._options = TrainerOptions.of(**arguments).resolved()
        self._workers = ElasticWorkerGroup(self._options)
        workers = weakref.ref(self._workers)
        holdings.register(
            self,
            amounts=lambda: {} if (held := workers()) is None else held.reserved(),
            close=lambda: None if (held := workers()) is None else held.close(),
        )

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
                the beginning. None: one pass over the data.
            profile: True adds `profile` to the result: worker 0's mean seconds of "fwd", "grad" and "apply"
                per batch, of everything else that `self.timers` measured, and of the epoch.
            reduce_results: True merges the workers' results into one; False returns a list with one result
                per worker.
            max_retries: how often the epoch is repeated from its start if workers die or hang. New workers
                then continue from a snapshot of the state. 0 turns snapshots off.
            info: passed to `train_epoch` and, with more entries, to `train_batch`. The progress bar shows its
                `num_epochs`.
            dataset: a loader to train on in this call instead of the registered loader, or a function that
                receives the configuration and makes the loader in each worker.

        Returns:
            A dictionary: `epoch` (1 after the first epoch), `batch_count`, `num_samples`, and two entries for
            each metric: `<metric>`, its mean weighted by samples, and `last_<metric>`, its last value.

        Raises:
            GangError: workers died or hung, and no retry is left. The trainer has ended.
            KeyboardInterrupt: Ctrl-C. Workers in other processes are ended in the middle of the epoch. The
                next call, such as `save`, starts new workers with the state from before this epoch. With
                `max_retries=0` this state does not exist: make a new trainer and load a checkpoint.
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

        Arguments, result and errors are as in `train`, with two exceptions: `num_steps` uses only the first
        batches, and `profile` contains "eval_fwd" and "validation". Unless `max_retries` is 0, a snapshot is
        taken first if the snapshot of the last epoch is out of date.
        """
        call = Call("validate", (num_steps, dict(info or {}), profile), Effect.SMALL, in_step=True)
        return self._epoch(call, max_retries, reduce_results, "validation")

    @without_frames
    def predict(
        self, dataset: Any = None, num_steps: int | None = None, *, max_retries: int = RETRIES
    ) -> list[Any]:
        """Return the predictions of a Lightning module's `predict_step`, for an operator of `from_ptl`.

        Batches are distributed among the workers unchanged, so the list equals that of a single worker.

        Args:
            dataset: a loader, several loaders in a form that Lightning accepts, or a function that receives
                the configuration and makes them in each worker. Default: the module's own
                `predict_dataloader`.
            num_steps: number of batches of each loader, over all workers; None: all batches.
            max_retries: see `validate`.

        Returns:
            The results of `predict_step`, one per batch, with tensors on the CPU; for several loaders a list
            of such lists.

        Raises:
            ConfigError: the operator does not come from a Lightning module, or has no data.
            GangError: workers died or hung, and no retry is left.
            Exception: the module's exception in a worker.
        """
        if not issubclass(self._options.training_operator_cls, LightningMethods):
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
        """Step all schedulers with `metric`, which `ReduceLROnPlateau` needs."""
        self._workers.run(
            Call("step_schedulers", (metric,), Effect.REPEATABLE, alike=True, name="update_scheduler")
        )

    @without_frames
    def apply_all_workers(self, fn: Callable[[], T]) -> list[T]:
        """Call `fn()` in each worker and return the results by rank."""
        return self._workers.run(
            Call("apply", (fn,), Effect.UNKNOWN, name="apply_all_workers"), max_retries=0
        )

    @without_frames
    def apply_all_operators(self, fn: Callable[[TrainingOperator], T]) -> list[T]:
        """Call `fn(operator)` in each worker and return the results by rank."""
        return self._workers.run(
            Call("apply_operator", (fn,), Effect.UNKNOWN, name="apply_all_operators"), max_retries=0
        )

    @without_frames
    def get_model(self, to_cpu: bool = False, *, ema: bool = False) -> nn.Module | list[nn.Module]:
        """Return the registered model, or the list of models, unwrapped.

        If the workers are separate processes, the result is a copy on the CPU. With `use_local` it is the
        live model, unless `to_cpu` requests a copy.

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
        """Return models, optimizers, schedulers, operator state, epoch and all workers' random generators.

        Tensors are whole and on the CPU, even if the strategy shards them.
        """
        return whole_state(self._workers.snapshot())

    @without_frames
    def load_state_dict(self, state_dict: Mapping[str, Any], blocking: bool = False) -> None:
        """Load a result of `state_dict` from this trainer, or from a trainer with different workers.

        Args:
            state_dict: the whole dictionary; it is copied.
            blocking: has no effect, because this call always returns after all workers have loaded the state.

        Raises:
            CheckpointError: the state does not fit the registered models, optimizers or schedulers.
        """
        self._workers.run(Call("load_state_dict", (state_dict,), Effect.UNKNOWN, alike=True))

    @without_frames
    def save(self, path: str | Path) -> Path:
        """Write a checkpoint as a folder. An existing folder is replaced once the new one is on disk.

        Returns:
            The folder's absolute path.

        Raises:
            CheckpointError: the checkpoint could not be written; an existing checkpoint is unchanged.
        """
        folder = Path(path).expanduser().absolute()
        self._workers.save(folder)
        return folder

    @without_frames
    def load(self, path: str | Path) -> None:
        """Load a checkpoint that was written on any number of workers.

        Raises:
            CheckpointError: `path` is not a checkpoint, or the checkpoint is damaged or does not fit the
                registered models, optimizers or schedulers.
        """
        folder = Path(path).expanduser().absolute()
        self._workers.run(Call("load", (folder,), Effect.UNKNOWN, alike=True))

    def shutdown(self, force: bool = False) -> None:
        """End the workers; `force` ends them in the middle of their work."""
        self._workers.close(force=force)

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
        """Train one step at each of many learning rates; return the losses with a suggested rate.

        Afterwards the trainer has new workers with its previous state; weights and rates are unchanged.

        Args:
            min_lr: the first rate, for all groups of all optimizers.
            max_lr: the last rate.
            num_training: number of rates, each for one step of the optimizers.
            mode: "exponential": neighboring rates differ by a constant factor; "linear": by a constant
                difference.
            early_stop_threshold: end the test when the smoothed loss exceeds its best value by this factor.
                None: end after the last rate.
            metric: name of the loss in the result of `train_batch`.

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

        New workers try each size, which is set in their configuration. So a size that runs out of memory, or
        for which a worker is killed, has no lasting effect. Afterwards the trainer has its previous state.

        Args:
            mode: "power" doubles the size while it fits, or halves it until it fits. "binsearch" then
                searches between the largest size that fits and the smallest that does not.
            steps_per_trial: number of batches to train on with each size.
            init_val: the first size.
            max_trials: largest number of sizes to try.
            batch_arg_name: the configuration key from which `setup` reads the size. With `BATCH_SIZE` the key
                gives the size over all workers.
            margin: share by which the result of "binsearch" is reduced.
            max_val: largest size to try.

        Raises:
            ConfigError: an argument is wrong, or the batches do not change with the size.
            TrainingError: no size fits.
            Exception: the operator's exception in a worker, for any reason other than memory.
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
        """Return a class for `tune.Tuner`. Each trial is a trainer with resources for all its workers.

        A trial's configuration is merged over `config`. One step of a trial is an epoch of training and, if
        the operator registered validation data, a validation. The result contains the metrics of both. If
        both have the same metric, validation's value counts, except that `num_samples`, `batch_count` and
        `epoch` come from training.

        Args:
            override_tune_step: a function (trainer, {"iteration": n}) -> result that replaces this step.
            **kwargs: arguments of `TorchTrainer`.

        Raises:
            ConfigError: an argument is wrong.
        """
        options = TrainerOptions.of(**kwargs).resolved()
        return make_trainable(TrialPlan(cls, options, override_tune_step))

    def __trainable__(self) -> type[TrainerTrainable]:
        """Return the trainable for `tune.Tuner(trainer)`. This trainer's workers end to free resources."""
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
        self.shutdown(force=error is not None)

    def _epoch(self, call: Call, max_retries: int, reduce_results: bool, needs: str | None) -> Any:
        """Run an epoch; `needs` names the data that must be registered."""
        self._check_counts(call.method, call.args[0], max_retries)
        if needs is not None:
            self._require(needs)
        results = self._workers.epoch(call, max_retries)
        reported = {rank: results[rank] for rank in self._workers.reporters}
        if (warning := not_finite(reported)) is not None:
            log.warning("%s: %s; detect_nan=True stops training at the first such loss", call.method, warning)
        results = list(reported.values())
        if not any(result.get("batch_count", 1) for result in results):
            log.warning(
                "%s() has no metrics, because there was no batch: the data is empty, or too small for "
                "drop_last=True",
                call.method,
            )
        return reduce_metrics(results) if reduce_results else [dict(result) for result in results]

    def _check_counts(self, method: str, num_steps: Any, max_retries: Any) -> None:
        if num_steps is not None and not is_count(num_steps):
            raise ConfigError(f"{method}(): num_steps must be 1 or more, or None for all, not {num_steps!r}")
        if max_retries is False or (max_retries != 0 and not is_count(max_retries)):
            raise ConfigError(f"{method}(): max_retries must be a non-negative integer, not {max_retries!r}")

    def _require(self, data: str) -> None:
        """Raise ConfigError if the operator registered no data of this kind, "train" or "validation"."""
        if self._workers.ended is None and not self._workers.has_data(data):
            raise ConfigError(f"there is no {data} data: call register_data({data}_loader=...) in setup")
