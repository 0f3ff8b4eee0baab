"""Transformers' own `Trainer` in a training function; public as `trainkit.train.huggingface.transformers`."""

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
"""Attributes of `TrainingArguments` about this process's devices; a trial determines its own values."""

BACKEND = "trainkit"
"""Name of the backend of a prepared trainer's `hyperparameter_search`."""


class TransformersReportCallback(_Callback):  # type: ignore[misc]
    """Callback that reports the Trainer's logged metrics with a checkpoint whenever the Trainer saves one.

    The report contains the latest value of each metric. The checkpoint's folder `checkpoint` contains
    Transformers' own checkpoint; resume from it with `trainer.train(resume_from_checkpoint=...)`. Metrics
    must be logged before the save: use equal `eval_strategy` and `save_strategy`.
    """

    CHECKPOINT_NAME = "checkpoint"

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report; called by Transformers on all workers."""
        metrics: dict[str, Any] = {}
        for entry in state.log_history:
            metrics.update(entry)
        if dist.is_initialized():
            dist.barrier()  # After this barrier, each worker has written its own files.
        _report_saved(metrics, args, state)


def _report_saved(metrics: Mapping[str, Any], args: Any, state: Any) -> None:
    """Report metrics, with Transformers' latest checkpoint if this worker's machine has it."""
    source = os.path.abspath(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))
    if get_context().get_local_rank() != 0 or not os.path.isdir(source):
        report(metrics)
        return
    with temporary_folder("trainkit_checkpoint_") as folder:
        name = TransformersReportCallback.CHECKPOINT_NAME
        os.symlink(source, os.path.join(folder, name))  # report() follows the link and copies.
        report(metrics, checkpoint=Checkpoint.from_directory(folder))


class _Ready(IterableDataset[Any]):
    """Data set of batches that already belong to this worker."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def prepare_trainer(trainer: Any) -> Any:
    """Make a Transformers `Trainer` accept batches of `get_dataset_shard(...).iter_torch_batches(...)`.

    The batches may be its `train_dataset`, its `eval_dataset`, or one of several `eval_dataset`s.
    Transformers shares other data sets among the workers as usual. The number of batches is unknown, so
    training on them needs `TrainingArguments(max_steps=...)`.
    In your own program, the prepared trainer's `hyperparameter_search` has the backend "trainkit", with the
    further arguments of `search`.

    Args:
        trainer: the trainer; it is changed in place and returned.

    Raises:
        ConfigError: a data set is itself a shard, or can be iterated over only once.
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
        """Subclass of the trainer's class, with loaders of ready batches and a search backend."""

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
    """Return a loader of ready batches; None if the batches are not ready."""
    if not isinstance(data, Iterable) or isinstance(data, Dataset) or hasattr(data, "__getitem__"):
        return None
    return DataLoader(_Ready(data), batch_size=1, collate_fn=lambda batches: batches[0])


class _SearchCallback(_Callback):  # type: ignore[misc]
    """Callback that reports each evaluation, with the checkpoint if one is saved after the evaluation."""

    def __init__(self, objective: Callable[[dict[str, float]], float]) -> None:
        self.reports = 0
        self._objective = objective
        self._due: dict[str, Any] | None = None

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **more: Any) -> None:
        """Report the evaluation, or leave the report to the save that follows."""
        told = {**metrics, "objective": self._objective(dict(metrics))}
        self.reports += 1
        # With "best", Transformers decides about a save only after this call.
        if control.should_save and args.save_strategy != "best":
            self._due = told
        else:
            report(told)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report with the saved checkpoint."""
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
    """Search the `TrainingArguments` of a Transformers trainer; each trial is a process with its own copy.

    Args:
        trainer: a trainer with a `model_init`.
        hp_space: function that receives None and returns a search space, such as {"learning_rate":
            tune.loguniform(1e-5, 1e-2)}.
        compute_objective: function from an evaluation's metrics to a number; None: Transformers' choice, the
            loss, or the sum of the trainer's metrics.
        n_trials: number of samples of the space.
        direction: "minimize" or "maximize" the objective.
        resources_per_trial: see `tune.with_resources`; None: 1 CPU, and 1 GPU if the trainer has found a GPU.
        tune_config: scheduler, searcher and more. The function's further arguments set metric, mode and
            number of samples; the metric is named "objective".
            samples; the metric is named "objective".
        run_config: settings of the run, such as its folder.

    Returns:
        Transformers' `BestRun`; its `run_summary` is the `ResultGrid`.

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
    # These objects belong to an earlier training; each trial makes its own.
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
    """Train with the configuration as the trainer's arguments; report each evaluation."""
    for name, value in config.items():
        before = getattr(trainer.args, name)
        # A fractional value must not be truncated because the argument's earlier value was a whole number.
        fraction = type(before) is int and isinstance(value, float) and not value.is_integer()
        setattr(trainer.args, name, value if before is None or fraction else type(before)(value))
    trainer.args.output_dir = os.path.join(get_context().get_trial_dir(), "transformers")
    # This line repeats what the trainer's constructor did with the earlier arguments.
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
