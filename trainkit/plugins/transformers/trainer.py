"""Support for Transformers' `Trainer`; public as `trainkit.train.huggingface.transformers`."""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainkit.errors import ConfigError, did_you_mean
from trainkit.train.torch.context import report
from trainkit.train.torch.shards import DatasetShard
from trainkit.tune.config import RunConfig, TuneConfig
from trainkit.tune.core.checkpoint import Checkpoint, temporary_folder
from trainkit.tune.core.checks import load
from trainkit.tune.core.resources import with_parameters, with_resources
from trainkit.tune.trial.context import get_checkpoint, get_context
from trainkit.tune.tuner import Tuner

_Callback: Any = load(
    "transformers.trainer_callback", "Transformers trainers", "transformers"
).TrainerCallback
_utils: Any = load("transformers.trainer_utils", "Transformers trainers", "transformers")

_DEVICES = ("_setup_devices", "_n_gpu", "distributed_state")
"""Attributes of `TrainingArguments` for this process's devices, removed because trials have other devices."""

BACKEND = "trainkit"
"""Name of trainkit's backend for the method `hyperparameter_search` of a prepared trainer."""


class TransformersReportCallback(_Callback):  # type: ignore[misc]
    """Callback that reports metrics and a checkpoint whenever Transformers' `Trainer` saves a checkpoint.

    The report contains the latest logged value of each metric. The reported checkpoint has a folder
    `checkpoint` with Transformers' own checkpoint, for `trainer.train(resume_from_checkpoint=...)`. Metrics
    must be logged before the save: use equal `eval_strategy` and `save_strategy`.
    """

    CHECKPOINT_NAME = "checkpoint"

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report metrics and the checkpoint; Transformers calls this method on all workers."""
        metrics: dict[str, Any] = {}
        for entry in state.log_history:
            metrics.update(entry)
        if dist.is_initialized():
            dist.barrier()  # After the barrier, all workers have written their files.
        _report_saved(metrics, args, state)


def _report_saved(metrics: Mapping[str, Any], args: Any, state: Any) -> None:
    """Report metrics; each machine's first worker adds Transformers' latest checkpoint, if it has one."""
    source = os.path.abspath(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))
    if get_context().get_local_rank() != 0 or not os.path.isdir(source):
        report(metrics)
        return
    with temporary_folder("trainkit_checkpoint_") as folder:
        name = TransformersReportCallback.CHECKPOINT_NAME
        os.symlink(source, os.path.join(folder, name))  # report() copies the files to which the link points.
        report(metrics, checkpoint=Checkpoint.from_directory(folder))


class _Ready(IterableDataset[Any]):
    """Data set of ready batches, which already belong to this worker."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def prepare_trainer(trainer: Any) -> Any:
    """Make a Transformers `Trainer` accept batches of `get_dataset_shard(...).iter_torch_batches(...)`.

    The batches may be the trainer's `train_dataset`, its `eval_dataset`, or one of several `eval_dataset`s.
    Transformers divides other data sets among the workers as usual. The number of batches is unknown, so
    training on batches needs `TrainingArguments(max_steps=...)`. Outside of a training function, the prepared
    trainer's method `hyperparameter_search` accepts the backend "trainkit" and the arguments of `search`.

    Args:
        trainer: the trainer; it is changed in place and returned.

    Raises:
        ConfigError: a data set is a shard instead of its batches, or can be iterated over only once.
    """
    evaluated = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
    for data in (trainer.train_dataset, *evaluated.values()):
        if isinstance(data, DatasetShard | Iterator):
            kind = "a shard" if isinstance(data, DatasetShard) else "an iterator"
            raise ConfigError(
                f"prepare_trainer() does not accept {kind} as a data set: pass "
                "get_dataset_shard(...).iter_torch_batches(batch_size=...)"
            )
    plain: Any = type(trainer)

    class Prepared(plain):  # type: ignore[misc]
        """Subclass of the trainer's class that accepts ready batches and has trainkit's search backend."""

        def hyperparameter_search(self, *arguments: Any, backend: Any = None, **options: Any) -> Any:
            if backend == BACKEND:
                return search(self, *arguments, **options)
            return super().hyperparameter_search(*arguments, backend=backend, **options)

        def get_train_dataloader(self) -> Any:
            ready = _loader(self.train_dataset)
            return super().get_train_dataloader() if ready is None else ready

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            data = self.eval_dataset if eval_dataset is None else eval_dataset
            chosen = self.eval_dataset[data] if isinstance(data, str) else data
            ready = _loader(chosen)
            return super().get_eval_dataloader(eval_dataset) if ready is None else ready

    trainer.__class__ = Prepared
    return trainer


def _loader(data: Any) -> DataLoader[Any] | None:
    """Return a loader for an iterable of batches; None if `data` is a data set of samples."""
    if not isinstance(data, Iterable) or isinstance(data, Dataset) or hasattr(data, "__getitem__"):
        return None
    return DataLoader(_Ready(data), batch_size=1, collate_fn=lambda batches: batches[0])


class _SearchCallback(_Callback):  # type: ignore[misc]
    """Callback that reports each evaluation, with the checkpoint if Transformers saves one after it."""

    def __init__(self, objective: Callable[[dict[str, float]], float]) -> None:
        self.reports = 0
        self._objective = objective
        self._due: dict[str, Any] | None = None

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **more: Any) -> None:
        """Report the evaluation now, or in `on_save` if a checkpoint is saved next."""
        told = {**metrics, "objective": self._objective(dict(metrics))}
        self.reports += 1
        # With "best", Transformers decides only after this call whether it saves a checkpoint.
        if control.should_save and args.save_strategy != "best":
            self._due = told
        else:
            report(told)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report the latest evaluation with the saved checkpoint."""
        if self._due is not None:
            told, self._due = self._due, None
            _report_saved(told, args, state)


def search(
    trainer: Any,
    hp_space: Callable[[Any], Mapping[str, Any]] | None = None,
    compute_objective: Callable[[dict[str, float]], float] | None = None,
    n_trials: int = 20,
    direction: str = "minimize",
    *,
    resources_per_trial: Any = None,
    tune_config: TuneConfig | None = None,
    run_config: RunConfig | None = None,
) -> Any:
    """Search for the best `TrainingArguments`; each trial is a process with its own copy of the trainer.

    Args:
        trainer: Transformers trainer, made with a `model_init`.
        hp_space: function that receives None and returns a search space, such as {"learning_rate":
            tune.loguniform(1e-5, 1e-2)}.
        compute_objective: function that returns a number from an evaluation's metrics. None means
            Transformers' function: the sum of the metrics, or the loss if no other metrics exist.
        n_trials: number of samples of the search space, one for each trial.
        direction: "minimize" or "maximize", for the objective.
        resources_per_trial: resources of each trial, as in `tune.with_resources`; None means 1 CPU, and 1 GPU
            if the trainer has found a GPU.
        tune_config: further settings of the search, such as scheduler and searcher. The metric in these
            settings is replaced by "objective", the mode by `direction`, and the number of samples by
            `n_trials`.
        run_config: settings of the run, such as its folder.

    Returns:
        Transformers' `BestRun`, whose `run_summary` is trainkit's `ResultGrid`.

    Raises:
        ConfigError: an argument is missing or wrong.
    """
    if trainer.model_init is None:
        raise ConfigError("hyperparameter_search makes a model for each trial: pass Trainer(model_init=...)")
    if hp_space is None:
        raise ConfigError(
            "hyperparameter_search needs hp_space, such as lambda _: {'learning_rate': tune.loguniform(...)}"
        )
    if direction not in ("minimize", "maximize"):
        raise ConfigError(f"hyperparameter_search: direction={direction!r}: pass 'minimize' or 'maximize'")
    space = dict(hp_space(None))
    for name in space:
        if not hasattr(trainer.args, name):
            near = did_you_mean(name, vars(trainer.args))
            raise ConfigError(f"hyperparameter_search: TrainingArguments has no attribute {name!r}.{near}")
    sent, handler = copy.copy(trainer), copy.copy(trainer.callback_handler)
    sent.args = copy.copy(trainer.args)
    for name in _DEVICES:
        vars(sent.args).pop(name, None)
    # These objects belong to an earlier training and are not sent, because each trial makes its own objects.
    sent.model = sent.model_wrapped = sent.optimizer = sent.lr_scheduler = None
    sent.accelerator = sent.gather_function = None
    handler.model = handler.optimizer = handler.lr_scheduler = None
    handler.train_dataloader = handler.eval_dataloader = None
    sent.callback_handler = handler
    objective = compute_objective or _utils.default_compute_objective
    trial = with_resources(
        with_parameters(_search_trial, trainer=sent, objective=objective),
        resources_per_trial or {"cpu": 1, "gpu": min(trainer.args.n_gpu, 1)},
    )
    tune = replace(
        tune_config or TuneConfig(),
        metric="objective",
        mode="min" if direction == "minimize" else "max",
        num_samples=n_trials,
    )
    grid = Tuner(trial, param_space=space, tune_config=tune, run_config=run_config).fit()
    best = grid.get_best_result()
    return _utils.BestRun(best.trial_id, best.metrics["objective"], best.config, grid)


def _search_trial(config: dict[str, Any], trainer: Any, objective: Callable[..., float]) -> None:
    """Train with the values of `config` as the trainer's arguments, and report each evaluation."""
    for name, value in config.items():
        before = getattr(trainer.args, name)
        # A value is converted to the type of the earlier value, except that a fraction must not be truncated
        # to a whole number.
        fraction = type(before) is int and isinstance(value, float) and not value.is_integer()
        setattr(trainer.args, name, value if before is None or fraction else type(before)(value))
    trainer.args.output_dir = os.path.join(get_context().get_trial_dir(), "transformers")
    # The trainer's constructor has set this attribute from the earlier arguments, so the attribute is set
    # again.
    trainer._train_batch_size = trainer.args.train_batch_size
    trainer.create_accelerator_and_postprocess()
    if inspect.signature(trainer.model_init).parameters:
        trainer.model_init = functools.partial(trainer.model_init, config)
    callback = _SearchCallback(objective)
    trainer.add_callback(callback)
    start = get_checkpoint()
    name = TransformersReportCallback.CHECKPOINT_NAME
    trainer.train(resume_from_checkpoint=None if start is None else os.path.join(start.path, name))
    if not callback.reports:
        trainer.evaluate()
