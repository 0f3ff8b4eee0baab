"""`trainkit.train.torch.TorchTrainer`: a training function of the user's own on all workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Never

from trainkit.errors import ConfigError, TrainingFailedError, did_you_mean
from trainkit.train.torch.options import LoopOptions, TorchConfig, takes_config
from trainkit.train.torch.shards import DataConfig
from trainkit.train.torch.trial import LoopTrial
from trainkit.tune.config import RunConfig
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.core.checks import SettingNames, named_as
from trainkit.tune.core.configs import ResumeConfig
from trainkit.tune.core.metrics import flatten, shortened_repr
from trainkit.tune.core.resources import Bound, ScalingConfig
from trainkit.tune.results.result import Result
from trainkit.tune.space.serialization import encode_config
from trainkit.tune.sync.storage import new_place
from trainkit.tune.tuner import Tuner

log = logging.getLogger(__name__)

_ARGUMENTS = "train_loop_per_worker, train_loop_config=..., scaling_config=..."
_RESUME = f"go on by TorchTrainer.restore({{path!r}}, {_ARGUMENTS}).fit()"


class DataParallelTrainer:
    """Runs a training function on several workers at once; `trainkit.train.torch.TorchTrainer`.

    The function reports by `trainkit.train.report`, and finds torch's process group of all workers.

    Args:
        train_loop_per_worker: a function of `train_loop_config`, or one without arguments.
        train_loop_config: what it is called with; {} by default.
        torch_config: how the workers talk to each other.
        scaling_config: how many workers, and the resources of each.
        run_config: where the run is kept, how often it is tried again, which checkpoints are kept.
        datasets: data sets by name, of which `trainkit.train.get_dataset_shard` gives each worker its share.
            Each is indexable with a length; or an iterable that gives the same samples in the same order on
            each pass and on each worker; or, on the Ray engine, a Ray Dataset.
        dataset_config: how they are shared.
        resume_from_checkpoint: what `get_checkpoint` returns before the first one is reported.
        metadata: what `get_context().get_metadata()` returns.
        **others: refused with what to do instead.

    Raises:
        ConfigError: an argument is wrong.
    """

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
        **others: Never,
    ) -> None:
        if others:
            raise ConfigError(
                f"trainkit.train.torch.TorchTrainer has no argument {', '.join(others)}. The number of "
                "workers and their resources are in scaling_config=ScalingConfig(...); an operator is "
                "trained by trainkit.train.TorchTrainer(training_operator_cls=...)"
            )
        self._options = LoopOptions(
            train_loop_per_worker=train_loop_per_worker,
            train_loop_config={} if train_loop_config is None else train_loop_config,
            torch_config=torch_config or TorchConfig(),
            scaling_config=scaling_config or ScalingConfig(),
            run_config=run_config or RunConfig(),
            dataset_config=dataset_config or DataConfig(),
            resume_from_checkpoint=resume_from_checkpoint,
            metadata=metadata or {},
        )
        if not isinstance(datasets or {}, Mapping):
            raise ConfigError(f"TorchTrainer: datasets={datasets!r}: give a dictionary of data sets by name")
        self._datasets = dict(datasets or {})
        shared = self._options.dataset_config.datasets_to_split
        for name in () if shared == "all" else shared:
            if name not in self._datasets:
                raise ConfigError(
                    f"DataConfig(datasets_to_split=...) has {name!r}, which is none of the trainer's "
                    f"datasets.{did_you_mean(name, self._datasets)}"
                )
        self._restored_from: str | None = None

    def fit(self) -> Result:
        """Run the function on all workers; return the last report's metrics and the checkpoints.

        Where RunConfig(name=...) names a run that is there, the function goes on from its last checkpoint.
        The run's record keeps the configuration that it began with; a warning says in what this one differs.

        Raises:
            TrainingFailedError: the function raised, or a worker died, more often than
                FailureConfig(max_failures=...) allows; its cause is the worker's error.
            InfeasibleError: the machine can never hold the workers.
            SerializationError: the function can't be sent to a worker; the part is named.
            KeyboardInterrupt: Ctrl-C; the run can be gone on with.
        """
        with named_as(SettingNames(resume=_RESUME, doing="Training")):
            grid = self._tuner().fit()
        result = grid[0]
        if not grid.num_terminated and not grid.num_errors:
            folder = os.path.dirname(str(result.path))
            raise KeyboardInterrupt(f"interrupted: {_RESUME.format(path=folder)}")
        if result.error is not None:
            raise TrainingFailedError(failed_text(result, self.run_config.name)) from result.error
        return replace(result, config={"train_loop_config": dict(self._options.train_loop_config)})

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        train_loop_per_worker: Callable[..., Any] | None = None,
        **arguments: Any,
    ) -> DataParallelTrainer:
        """Return a trainer whose `fit` goes on with the run in `path`, from its last checkpoint.

        Args:
            path: of the run's folder.
            train_loop_per_worker: as at the start.
            **arguments: of the constructor, as at the start.

        Raises:
            ConfigError: the function, `scaling_config` or the configuration that the function takes is not
                given.
            StoreError: `path` holds no run.
        """
        needed = {"scaling_config"}
        if train_loop_per_worker is not None and takes_config(train_loop_per_worker):
            needed.add("train_loop_config")
        if train_loop_per_worker is None or not needed <= arguments.keys():
            raise ConfigError(
                f"TorchTrainer.restore(path, {_ARGUMENTS}): give the function and the arguments of before "
                "again, as a run does not hold them"
            )
        trainer = cls(train_loop_per_worker, **arguments)
        trainer._restored_from = os.fspath(path)
        return trainer

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Return True if `path` holds a run that `restore` can go on with.

        Args:
            path: of the run.
            storage_filesystem: an fsspec file system that `path` is a path of.
        """
        return Tuner.can_restore(path, storage_filesystem)

    @property
    def run_config(self) -> RunConfig:
        """The settings of the run."""
        return self._options.run_config

    def __trainable__(self) -> Bound:
        """Return the trainable for `Tuner(trainer)`."""
        return self._bound(alone=False)

    def _bound(self, *, alone: bool) -> Bound:
        trial = LoopTrial(self._options, alone=alone)
        start = self._options.resume_from_checkpoint
        return Bound(
            trial,
            resources=trial.request,
            parameters={"datasets": self._datasets},
            start_from=None if start is None else start.path,
        )

    def _tuner(self) -> Tuner:
        """Return the tuner of this one run: a new one, or that which goes on with a run that is there."""
        run, path = self.run_config, self._restored_from
        bound, record = self._bound(alone=True), self._options.record
        filesystem = run.storage_filesystem
        if path is None and run.name is not None:
            folder, address = new_place(run.storage_path, filesystem, run.name)
            if Tuner.can_restore(folder):
                path, filesystem = str(folder), None
            elif address is not None and Tuner.can_restore(str(address), filesystem):
                path = str(address)
        if path is None:
            return Tuner(bound, param_space=record, run_config=run)
        again = partial(Tuner.restore, path, bound, storage_filesystem=filesystem, run_config=run)
        before = again().get_results()
        latest = before[0].checkpoint if len(before) > 0 else None
        if len(before) > 0 and (changed := changes(before[0].config, record)):
            log.warning("TorchTrainer: the run at %s goes on with another configuration: %s", path, changed)
        if self._restored_from is None:
            start = "its start" if latest is None else latest.path
            end = "has finished" if any(each.reason == "finished" for each in before) else "is there already"
            log.warning("TorchTrainer: the run at %s %s, fit() goes on with it from %s", path, end, start)
        finished = ResumeConfig.ResumeType.RESUME if latest else ResumeConfig.ResumeType.RESTART
        rule = ResumeConfig(finished, ResumeConfig.ResumeType.RESUME, ResumeConfig.ResumeType.RESUME)
        return again(resume_config=rule)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the values in which two records of a configuration differ as text; "" if they agree.

    Args:
        before: of the run; without "train_loop_config" it was made when runs kept no record.
        after: of the trainer.
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


def failed_text(result: Result, name: str | None) -> str:
    """Return the message for a run that has failed, of a given name or of one that was made for it."""
    again = "fit()" if name is not None else "with RunConfig(name=...) fit()"
    return (
        f"the run in {result.path} has failed; {again} goes on with it from its last checkpoint, and "
        f"FailureConfig(max_failures=...) tries it again by itself. The error: {result.error}"
    )
