"""`TorchTrainer`, which trains an operator or runs a training function, and its base for functions."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import count
from typing import Any, Literal, Self, overload

from trainkit.errors import (
    ConfigError,
    ControllerError,
    MetricError,
    TaskError,
    TrainingFailedError,
    WorkerGroupError,
    did_you_mean,
)
from trainkit.runtime.failures import RemoteTraceback, last_user_frame, without_frames
from trainkit.train.distributed.failure_cause import original
from trainkit.train.operator import TrainingOperator
from trainkit.train.options import OF_CREATORS
from trainkit.train.strategies.base import Precision, StrategySpec
from trainkit.train.torch.context import own_metrics, returned_value
from trainkit.train.torch.options import LoopOptions, TorchConfig, takes_config
from trainkit.train.torch.shards import DataConfig
from trainkit.train.torch.trial import RANK, LoopTrial
from trainkit.train.trainer import OperatorTrainer
from trainkit.tune.config import RunConfig
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.core.configs import CheckpointConfig, ResumeConfig
from trainkit.tune.core.metrics import flatten, lookup, shortened_repr
from trainkit.tune.core.resources import Bound, ScalingConfig
from trainkit.tune.core.setting_names import SettingNames, named_as
from trainkit.tune.core.stoppers import missing_metric
from trainkit.tune.results.result import Result
from trainkit.tune.space.serialization import encode_config
from trainkit.tune.store.schema import FILENAME
from trainkit.tune.sync.storage import new_place
from trainkit.tune.tuner import Tuner

log = logging.getLogger(__name__)

_ARGUMENTS = "train_loop_per_worker, train_loop_config=..., scaling_config=..."
_RESTORE = f"resume with TorchTrainer.restore({{path!r}}, {_ARGUMENTS}).fit()"


class _FinishedError(Exception):
    """A run of the same name has finished with a different configuration, so the new run needs a new name."""


class _OtherFormError(ConfigError, AttributeError):
    """Use of an attribute that only the other form of `TorchTrainer` has; `hasattr` returns False for such an
    attribute.
    """


@dataclass(frozen=True, repr=False)
class _RunResult(Result):
    """Result of a training function's run.

    The result has only the metrics that the function itself has reported.
    """

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Return the checkpoint whose report has the best value of `metric`.

        Raises:
            MetricError: no checkpoint's report has this metric; the message names the metrics that the
                reports have.
        """
        reports = [report for _, report in self.best_checkpoints]
        if all(lookup(report, metric) is None for report in reports):
            raise MetricError(f"no checkpoint of the run came with {missing_metric(metric, reports)}")
        return super().get_best_checkpoint(metric, mode)

    def _shown(self, report: dict[str, Any]) -> dict[str, Any]:
        return own_metrics(report, self.path)


class DataParallelTrainer:
    """Form of `TorchTrainer` that runs a training function on several workers at once.

    Args:
        train_loop_per_worker: the training function.
        datasets: data sets by name, of the kinds that `TorchTrainer` describes.
        **arguments: further arguments for a training function; `TorchTrainer` documents each of them.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        datasets: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        known = {each.name for each in fields(LoopOptions)}
        if others := sorted(arguments.keys() - known):
            raise ConfigError(
                f"TorchTrainer(train_fn): no argument {', '.join(others)}.{did_you_mean(others[0], known)} "
                "Set the number of workers and their resources with scaling_config=ScalingConfig(...); an "
                "operator is trained with TorchTrainer(training_operator_cls=...)"
            )
        given = {name: value for name, value in arguments.items() if value is not None}
        self._loop = LoopOptions(train_loop_per_worker=train_loop_per_worker, **given)
        if not isinstance(datasets or {}, Mapping):
            raise ConfigError(f"TorchTrainer: datasets must be a dictionary of data sets, not {datasets!r}")
        self._datasets = dict(datasets or {})
        shared = self._loop.dataset_config.datasets_to_split
        for name in () if shared == "all" else shared:
            if name not in self._datasets:
                raise ConfigError(
                    f"DataConfig(datasets_to_split=...) has {name!r}, which is not one of the trainer's "
                    f"datasets.{did_you_mean(name, self._datasets)}"
                )
        self._restored_from: str | None = None

    def fit(self) -> Result:
        """Run the training function on all workers; return the last report's metrics and the checkpoints.

        If a run with the name `RunConfig(name=...)` exists, the function resumes from its last checkpoint.
        The stored run keeps its original configuration; a warning lists the differences from the current
        configuration. If a finished run has a different configuration, the new run is stored beside it as
        "name_2".

        Raises:
            WorkerGroupError: the function raised an error, or a worker died, more often than
                FailureConfig(max_failures=...) allows; the attribute `worker_failures` has the worker's
                error.
            ControllerError: an error occurred in the process that waits for the workers, for example in a
                callback.
            InfeasibleError: the machine does not have enough resources for the workers, even when idle.
            SerializationError: the function can't be pickled to send it to a worker; the message names the
                object that can't be pickled.
            KeyboardInterrupt: Ctrl-C ended the run, which can be resumed.
        """
        resumes = self._restored_from is not None or self.run_config.name is not None
        resume = "run the same command again: it resumes the run in {path!r}" if resumes else _RESTORE
        with named_as(SettingNames(resume=resume, doing="Training", raises=True, trains=True)):
            grid = self._tuner().fit()
        result = grid[0]
        if not grid.num_terminated and not grid.num_errors:
            raise KeyboardInterrupt(f"interrupted: {resume.format(path=os.path.dirname(result.path))}")
        if result.error is not None:
            raise failure(result, result.error, self.run_config.name)
        made = {each.name: getattr(result, each.name) for each in fields(Result)}
        made["config"] = {"train_loop_config": dict(self._loop.train_loop_config)}
        made["metrics"] = own_metrics(result.metrics, result.path)
        made["return_value"] = returned_value(result.path)
        return _RunResult(**made)

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        train_loop_per_worker: Callable[..., Any] | None = None,
        **arguments: Any,
    ) -> Self:
        """Return a trainer whose `fit` resumes the run in `path` from its last checkpoint.

        Args:
            path: the run's folder.
            train_loop_per_worker: the run's training function.
            **arguments: the arguments with which the run's trainer was constructed.

        Raises:
            ConfigError: the function or `scaling_config` is missing, or `train_loop_config` although the
                function needs it.
            StoreError: `path` contains no run.
        """
        needed = {"scaling_config"}
        if train_loop_per_worker is not None and takes_config(train_loop_per_worker):
            needed.add("train_loop_config")
        if train_loop_per_worker is None or not needed <= arguments.keys():
            raise ConfigError(
                f"TorchTrainer.restore(path, {_ARGUMENTS}): pass the function and the same arguments again, "
                "because a run does not store them; pass scaling_config=ScalingConfig() if the run had none"
            )
        trainer = cls(train_loop_per_worker, **arguments)
        trainer._restored_from = os.fspath(path)
        return trainer

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Return True if `path` contains a run that `restore` can resume.

        Args:
            path: the run's folder.
            storage_filesystem: fsspec file system that contains `path`.
        """
        return Tuner.can_restore(path, storage_filesystem)

    @property
    def run_config(self) -> RunConfig:
        """The settings of the run."""
        return self._loop.run_config

    def __trainable__(self) -> Bound:
        """Return the trainable for `Tuner(trainer)`."""
        return self._bound(alone=False)

    def _bound(self, *, alone: bool) -> Bound:
        trial = LoopTrial(self._loop, alone=alone)
        start = self._loop.resume_from_checkpoint
        return Bound(
            trial,
            resources=trial.request,
            parameters={"datasets": self._datasets},
            start_from=None if start is None else start.path,
        )

    def _tuner(self) -> Tuner:
        """Return a tuner for this run, which begins a new run or resumes an existing run."""
        run = self.run_config
        if self._restored_from is not None:
            return self._going_on(self._restored_from, run.storage_filesystem)
        names = () if run.name is None else (f"{run.name}_{n}" if n > 1 else run.name for n in count(1))
        for name in names:
            folder, address = new_place(run.storage_path, run.storage_filesystem, name)
            if Tuner.can_restore(folder):
                path, filesystem = str(folder), None
            elif address is not None and Tuner.can_restore(str(address), run.storage_filesystem):
                path, filesystem = str(address), run.storage_filesystem
            elif (folder / FILENAME).exists():
                # The run is damaged, and an attempt to resume it raises an error that says why.
                path, filesystem = str(folder), None
            else:
                break
            with contextlib.suppress(_FinishedError):
                return self._going_on(path, filesystem)
        return Tuner(self._bound(alone=True), param_space=self._loop.record, run_config=run)

    def _going_on(self, path: str, filesystem: Any) -> Tuner:
        run, bound = self.run_config, self._bound(alone=True)
        again = partial(Tuner.restore, path, bound, storage_filesystem=filesystem, run_config=run)
        before = again().get_results()
        latest = before[0].checkpoint if len(before) > 0 else None
        changed = changes(before[0].config, self._loop.record) if len(before) > 0 else ""
        has_finished = any(each.reason == "finished" for each in before)
        if changed and has_finished and self._restored_from is None:
            log.warning(
                "TorchTrainer: the run at %s has finished with a different configuration, so fit() does "
                "not resume it: %s",
                path,
                changed,
            )
            raise _FinishedError
        if changed:
            log.warning(
                "TorchTrainer: the run at %s resumes with a different configuration: %s", path, changed
            )
        if self._restored_from is None:
            start = "its start" if latest is None else latest.path
            end = "has finished" if has_finished else "already exists"
            log.warning("TorchTrainer: the run at %s %s; fit() resumes it from %s", path, end, start)
        finished = ResumeConfig.ResumeType.RESUME if latest else ResumeConfig.ResumeType.RESTART
        rule = ResumeConfig(finished, ResumeConfig.ResumeType.RESUME, ResumeConfig.ResumeType.RESUME)
        return again(resume_config=rule)


class TorchTrainer(OperatorTrainer, DataParallelTrainer):
    """Trainer that runs a training function, or trains a `TrainingOperator`, on several processes.

    `TorchTrainer(train_fn, scaling_config=ScalingConfig(num_workers=2)).fit()` runs a function, like Ray
    Train. The function calls `trainkit.train.report`, and torch's process group of all workers is already set
    up. `TorchTrainer(training_operator_cls=Operator, num_workers=2)` trains an operator, like RaySGD. The
    workers start with the trainer, and each `train()` is one epoch.

    Args, of a function:
        train_loop_per_worker: training function, with the argument `train_loop_config` or without arguments.
        train_loop_config: configuration that the function receives; default {}.
        torch_config: settings for the communication between workers.
        scaling_config: number of workers, and the resources of each worker.
        run_config: settings of the run, such as its folder, the number of retries, and the checkpoints to
            keep.
        datasets: data sets by name. `trainkit.train.get_dataset_shard` returns each worker's share. A data
            set is one of: an indexable object with a length; an iterable that gives the same samples in the
            same order on each pass and on each worker; on the Ray engine, a Ray Dataset.
        dataset_config: settings for dividing the data sets among the workers.
        resume_from_checkpoint: checkpoint that `get_checkpoint` returns until the function reports its first
            checkpoint.
        metadata: dictionary that `get_context().get_metadata()` returns in the function.

    Args, of an operator: training_operator_cls: subclass of `TrainingOperator` to train (the class, not an
    instance). initialization_hook: function without arguments, called in each worker before anything else.
    config: configuration that is passed to the operator's `setup`. Its key "batch_size" is the batch size of
    each worker. Its key `BATCH_SIZE` is the batch size over all workers, and is divided among them.
    num_workers: number of processes that train together; either all of them start or none.
    num_cpus_per_worker: number of CPUs for each worker, which is also its number of threads. use_gpu: True
    gives each worker a GPU; "auto" does so if this process sees a GPU. backend: communication backend:
    "gloo", "nccl", or "auto", which means NCCL for GPUs, otherwise gloo. wrap_ddp: True wraps models in
    `DistributedDataParallel`; False leaves this to the operator. timeout_s: time limit of each collective
    operation, in seconds. use_fp16: True means `precision="fp16"`. use_tqdm: True shows a progress bar of
    worker 0. add_dist_sampler: True shares each loader's samples among workers; False leaves this to the
    operator. scheduler_step_freq: time when learning rate schedulers step: after each "batch", after each
    "epoch", or "manual". A value is required if schedulers are registered.
        use_local: True runs worker 0 in this process.
        strategy: distribution of the model: "auto" ("single" with one worker, "ddp" with several), a name
            such as "ddp" or "fsdp", or an object such as `trainkit.train.strategies.fsdp.FSDP(...)`.
        precision: precision of computations by `torch.autocast`: "32", "bf16" or "fp16" (with loss scaling).
        gpus_per_worker: number of GPUs for each worker; default: one if GPUs are used.
        grad_accumulation_steps: number of batches whose gradients form one optimizer step.
        max_grad_norm: largest norm of all gradients together; larger gradients are clipped. None: no
            clipping.
        compile: True compiles models with `torch.compile`.
        channels_last: True stores images and convolutions in the memory format that suits tensor cores.
        detect_nan: True raises `NonFiniteLossError` at the first loss that is not finite. This check waits
            for the device at each step. With False such a loss is reported at the end of the epoch.
        ema_decay: factor of the old average at each step, for an exponential moving average of all weights.
            `validate` evaluates the averages, and `get_model(ema=True)` returns them. None: no averages.
        min_workers: smallest number of workers with which training continues after workers were lost;
            default: `num_workers`.
        checkpoint_dir: folder in which the trainer saves its state by itself: at the end of each epoch, and
            at Ctrl-C and SIGTERM. A new trainer loads the newest checkpoint of this folder. Workers on
            several machines need a shared file system. None: no such checkpoints.
        checkpoint_config: further checkpoints within an epoch (`every_steps`, `every_s`), and which
            checkpoints are kept (`num_to_keep`, `checkpoint_score_attribute`). Default: all are kept.

    Raises:
        CheckpointError: the newest checkpoint in `checkpoint_dir` can't be loaded.
        ConfigError: an argument is wrong, or arguments of both lists are mixed.
        InfeasibleError: the machine does not have enough resources for the workers of an operator, even when
            idle.
        GangError: a worker of an operator died at its start.
    """

    @overload
    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        training_operator_cls: type[TrainingOperator],
        initialization_hook: Callable[[], Any] | None = None,
        config: Mapping[str, Any] | None = None,
        num_workers: int = 1,
        num_cpus_per_worker: float = 1,
        use_gpu: bool | Literal["auto"] = "auto",
        backend: str = "auto",
        wrap_ddp: bool = True,
        timeout_s: float = 1800,
        use_fp16: bool = False,
        use_tqdm: bool = False,
        add_dist_sampler: bool = True,
        scheduler_step_freq: str | None = None,
        use_local: bool = False,
        strategy: str | StrategySpec = "auto",
        precision: Precision = "32",
        gpus_per_worker: int | None = None,
        grad_accumulation_steps: int = 1,
        max_grad_norm: float | None = None,
        compile: bool = False,
        channels_last: bool = False,
        detect_nan: bool = False,
        ema_decay: float | None = None,
        min_workers: int | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_config: CheckpointConfig | None = None,
    ) -> None: ...

    @without_frames
    def __init__(self, *loop: Any, **arguments: Any) -> None:
        self._runs_function = runs_function(loop, arguments)
        if self._runs_function:
            DataParallelTrainer.__init__(self, *loop, **arguments)
        else:
            if arguments.get("checkpoint_dir") is not None and arguments.get("checkpoint_config") is None:
                arguments["checkpoint_config"] = CheckpointConfig()
            OperatorTrainer.__init__(self, **arguments)

    def __trainable__(self) -> Any:
        """Return the trainable for `tune.Tuner(trainer)`."""
        form: Any = DataParallelTrainer if self._runs_function else OperatorTrainer
        return form.__trainable__(self)

    def __getattr__(self, name: str) -> Any:
        if name in ("_workers", "_options", "_saves", "has_validation", "epoch", "global_step"):
            raise _OtherFormError(
                "this TorchTrainer runs a training function: call fit(). train(), validate(), save() and "
                "similar methods need an operator, TorchTrainer(training_operator_cls=...)"
            )
        if name in ("_loop", "_restored_from", "run_config"):
            raise _OtherFormError(
                "this TorchTrainer trains an operator: call train() for each epoch. fit() needs a training "
                "function, TorchTrainer(train_fn, ...)"
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def shutdown(self, force: bool = False) -> None:
        """End the workers of an operator; the workers of a training function have already ended in `fit`."""
        if not self._runs_function:
            super().shutdown(force)

    def _facts(self) -> list[tuple[str, str]]:
        if not self._runs_function:
            return super()._facts()
        return [("function", self._loop.name), ("workers", str(self._loop.num_workers))]


def runs_function(loop: Sequence[Any], arguments: Mapping[str, Any]) -> bool:
    """Return True if the arguments belong to a training function, False if they belong to an operator.

    Args:
        loop: positional arguments of `TorchTrainer`.
        arguments: named arguments of `TorchTrainer`.

    Raises:
        ConfigError: the arguments belong to both, or the positional argument is not a training function.
    """
    operator = any(isinstance(each, type) and issubclass(each, TrainingOperator) for each in loop)
    if operator or len(loop) > 1 or (loop and any(name.endswith("_creator") for name in arguments)):
        raise ConfigError(
            "the positional argument of TorchTrainer must be a training function: pass an operator as "
            f"training_operator_cls=; {OF_CREATORS}"
        )
    by_name = "train_loop_per_worker" in arguments
    has_loop = loop or arguments.get("train_loop_per_worker") is not None
    if has_loop and arguments.get("training_operator_cls") is not None:
        raise ConfigError(
            "TorchTrainer has both a training function and training_operator_cls=: pass only one of them, "
            "because each has its own arguments and methods"
        )
    return bool(loop) or by_name


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the differences between two configurations as text; "" if they are equal.

    Args:
        before: configuration in the stored run. A configuration that an older version wrote has no
            `train_loop_config`.
        after: configuration of the trainer.
    """
    if "train_loop_config" not in before:
        return ""
    old, new = (flatten(each["train_loop_config"]) for each in (before, after))
    shown = [
        f"{name}: {shortened_repr(old[name], 40) if name in old else 'none'} -> "
        f"{shortened_repr(new[name], 40) if name in new else 'none'}"
        for name in {**old, **new}
        if name not in old or name not in new or encode_config(old[name]) != encode_config(new[name])
    ]
    return "; ".join(shown)


def failure(result: Result, error: BaseException, name: str | None) -> TrainingFailedError:
    """Return the error for a failed run, with the worker's traceback; `name` is the run's name or None."""
    cause = original(error)
    rank = vars(cause).get(RANK)
    again = "fit()" if name is not None else "fit() with RunConfig(name=...)"
    who = "the run" if rank is None else f"worker {rank} of the run"
    shown = error.__cause__.text if isinstance(error.__cause__, RemoteTraceback) else str(error)
    if isinstance(error, TaskError):
        shown = error.remote_traceback
    elif not last_user_frame(shown):
        shown = f"{type(error).__name__}: {error}"
    text = (
        f"{who} in {result.path} has failed; {again} resumes the run from its last checkpoint, and "
        f"FailureConfig(max_failures=...) retries it automatically.\n\n{shown}"
    )
    if rank is None:
        of_controller = ControllerError(text)
        of_controller.controller_failure = cause
        return of_controller
    of_workers = WorkerGroupError(text)
    of_workers.worker_failures = {rank: cause}
    return of_workers
