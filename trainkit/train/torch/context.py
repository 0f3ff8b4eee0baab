"""Functions to call in a training function: for reports, ranks, the trial, and shards of the data."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from trainkit.errors import CheckpointError, ConfigError, TuneError
from trainkit.runtime import api as runtime
from trainkit.runtime import signals
from trainkit.train.distributed.observers import RankObserver
from trainkit.train.distributed.rendezvous import LocalRank
from trainkit.train.workers.pausing import own_vote
from trainkit.tune.core.checkpoint import FILENAME, Checkpoint, read_dictionary, write_dictionary
from trainkit.tune.core.stoppers import AUTOMATIC
from trainkit.tune.results.result import Result
from trainkit.tune.trial import context as trial
from trainkit.tune.trial.context import TuneContext, current_session
from trainkit.tune.trial.messages import TrialSpec

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Storage:
    """Folders of a trial and its experiment.

    Attributes:
        storage_path: folder of all experiments.
        experiment_path: folder of the trial's experiment.
        trial_path: folder of the trial.
    """

    storage_path: str
    experiment_path: str
    trial_path: str


class TrainContext(TuneContext):
    """Information for a training function about its worker and its trial.

    Args:
        spec: specification of the trial that all workers run together.
        rank: rank of this worker.
        world_size: number of workers.
        locality: position of this worker among the workers of its machine.
        shards: this worker's shard of each data set, by name.
        metadata: `metadata` of `TorchTrainer`.
        devices: devices of this worker.
        meter: observer that counts this worker's batches.
    """

    def __init__(
        self,
        spec: TrialSpec,
        rank: int,
        world_size: int,
        locality: LocalRank,
        shards: Mapping[str, Any],
        metadata: Mapping[str, Any],
        devices: Sequence[Any],
        meter: RankObserver,
    ) -> None:
        super().__init__(spec)
        self.devices = devices
        self.meter = meter
        self._rank = rank
        self._world_size = world_size
        self._locality = locality
        self._metadata = dict(metadata)
        self.shards = shards

    def get_world_size(self) -> int:
        """Return the number of workers."""
        return self._world_size

    def get_world_rank(self) -> int:
        """Return this worker's rank, from 0."""
        return self._rank

    def get_local_rank(self) -> int:
        """Return this worker's rank among the workers of its machine."""
        return self._locality.rank

    def get_local_world_size(self) -> int:
        """Return the number of workers on this machine."""
        return self._locality.size

    def get_node_rank(self) -> int:
        """Return the index of this machine, from 0, among the machines of the workers."""
        return self._locality.node_rank

    def get_metadata(self) -> dict[str, Any]:
        """Return the trainer's `metadata`."""
        return dict(self._metadata)

    def get_storage(self) -> Storage:
        """Return the folders of the experiment and the trial."""
        folder = Path(self.get_trial_dir())
        return Storage(str(folder.parent.parent), str(folder.parent), str(folder))


def train_context() -> TrainContext | None:
    """Return the context of the training function that runs this code; None outside of such a function."""
    context = current_session("train_context").context if trial.is_session_enabled() else None
    return context if isinstance(context, TrainContext) else None


def metered(batches: Iterator[T]) -> Iterator[T]:
    """Return an iterator over `batches` that, inside a training function, counts them for this worker."""
    context = train_context()
    return batches if context is None else context.meter.metered(batches)


def report(
    metrics: Any = None,
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: Any = None,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Any = None,
    validation: Any = False,
    **more: Any,
) -> None:
    """Report metrics of a training function or a trial; return after the report is committed.

    All workers of a trainer must report equally often, because each call waits for the other workers. Only
    worker 0's metrics are used. The workers' checkpoint folders are merged into one folder. If several
    folders contain a file of the same name, the file of the lowest rank is kept.

    Args:
        metrics: dictionary of names and values.
        checkpoint: a folder to keep with this report; it is copied before this call returns.
        checkpoint_dir_name: Ray's argument; has no effect, because checkpoints are numbered.
        checkpoint_upload_mode: Ray's argument; has no effect, because the checkpoint is stored before this
            call returns.
        delete_local_checkpoint_after_upload: True removes the checkpoint's folder after it is copied.
        checkpoint_upload_fn: not supported.
        validation: not supported.
        **more: further metrics.

    Raises:
        ConfigError: `checkpoint_upload_fn` or `validation` is given.
        MetricError: a value can't be stored; the message names its key.
        CheckpointError: the checkpoint can't be copied.
        TuneError: the call is neither in a training function nor in a trial, or in a different thread.
    """
    if checkpoint_upload_fn is not None or validation:
        raise ConfigError(
            "report() does not support checkpoint_upload_fn= and validation=: a checkpoint is copied before "
            "report() returns. Validate it in the training function or afterwards"
        )
    session = trial.current_session("report")
    if checkpoint_dir_name is not None and session.context.get_world_rank() == 0:
        log.warning(
            "report(checkpoint_dir_name=%r) is ignored, because checkpoints are numbered in the order of "
            "the reports; Result.checkpoint.path is the path of a checkpoint",
            checkpoint_dir_name,
        )
    trial.report(metrics, checkpoint=checkpoint, **more)
    # A checkpoint from `get_checkpoint` belongs to the run, so its folder must not be removed.
    own = checkpoint is None or Path(checkpoint.path).is_relative_to(session.context.get_trial_dir())
    if delete_local_checkpoint_after_upload and checkpoint is not None and not own:
        shutil.rmtree(checkpoint.path, ignore_errors=True)


def preempted() -> bool:
    """Return True after a signal has announced that the program will be ended.

    Such signals are SIGTERM and the signals that `trainkit.init(preempt_signals=...)` names. In a training
    function and in a script of `trainkit run`, all ranks get the same answer if each rank calls this function
    once in each step. In a program without workers, the first signal no longer ends the program once this
    function has been called.

    Raises:
        ConfigError: the workers run on the Ray engine, where workers are not notified of the signal.
    """
    context = train_context()
    if context is not None and "near" not in runtime.promises():
        raise ConfigError(
            "preempted() is not supported on the Ray engine: call report() in each step, which ends the "
            "function after a signal"
        )
    vote = own_vote()
    return signals.is_preempted() if vote is None else vote.answer(signals.is_preempted())


def get_dataset_shard(dataset_name: str | None = None) -> Any:
    """Return this worker's shard of one of the trainer's data sets.

    Args:
        dataset_name: key of the data set in `datasets`; None means "train".

    Returns:
        A `DatasetShard`; for a Ray Dataset, Ray's iterator.

    Raises:
        TuneError: called outside a training function of a trainer.
        ConfigError: the trainer has no such data set.
    """
    context = _in_worker("get_dataset_shard")
    name = "train" if dataset_name is None else dataset_name
    if name not in context.shards:
        raise ConfigError(
            f"get_dataset_shard({name!r}): TorchTrainer has no data set of this name; it has "
            f"{sorted(context.shards) or 'no data sets'}"
        )
    return context.shards[name]


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A checkpoint that a training function has reported.

    Attributes:
        checkpoint: folder of the checkpoint.
        metrics: metrics that worker 0 reported with the checkpoint.
    """

    checkpoint: Checkpoint
    metrics: dict[str, Any]


def get_all_reported_checkpoints(
    consistency_mode: Any = None, timeout_s: float | None = None
) -> list[ReportedCheckpoint]:
    """Return the run's kept checkpoints, oldest first, including checkpoints from earlier starts of the run.

    Args:
        consistency_mode: Ray's argument; has no effect, because checkpoints are stored when `report` returns.
        timeout_s: Ray's argument; has no effect, because this call does not wait.

    Raises:
        TuneError: called outside a training function of a trainer.
        StoreError: the run can't be read from this machine.
    """
    folder = _in_worker("get_all_reported_checkpoints").get_trial_dir()
    kept = Result.from_path(folder).best_checkpoints
    return [ReportedCheckpoint(checkpoint, own_metrics(report, folder)) for checkpoint, report in kept]


def barrier() -> None:
    """Wait until all workers have called this function; public as `trainkit.train.collective.barrier`.

    Raises:
        TuneError: called outside a training function of a trainer.
    """
    _in_worker("barrier")
    dist.barrier()


def broadcast_from_rank_zero(data: T) -> T:
    """Return worker 0's value on all workers; public as `trainkit.train.collective.broadcast_from_rank_zero`.

    Args:
        data: a value that can be pickled; only worker 0's value is used.

    Raises:
        TuneError: called outside a training function of a trainer.
    """
    _in_worker("broadcast_from_rank_zero")
    given = [data]
    dist.broadcast_object_list(given, src=0)
    return given[0]


def _in_worker(verb: str) -> TrainContext:
    context = current_session(verb).context
    if not isinstance(context, TrainContext):
        raise TuneError(f"{verb}() works only in the training function of a TorchTrainer")
    return context


_OWN_NAMES = "own_names.json"
"""File with the names of automatic metrics that the training function has also reported itself."""

_RETURNED = "return_value"
"""Folder with the training function's return value."""


def own_metrics(report: Mapping[str, Any], trial_dir: str) -> dict[str, Any]:
    """Return the metrics that the training function reported itself, without automatic metrics."""
    names = AUTOMATIC - own_names(trial_dir)
    return {name: value for name, value in report.items() if name not in names}


def own_names(trial_dir: str) -> frozenset[str]:
    """Return the names of automatic metrics that the training function has also reported itself."""
    path = Path(trial_dir, _OWN_NAMES)
    return frozenset(json.loads(path.read_text())) if path.exists() else frozenset()


def keep_own_names(trial_dir: str, names: frozenset[str]) -> None:
    """Write the names that `own_names` returns."""
    path = Path(trial_dir, _OWN_NAMES)
    path.with_suffix(".partial").write_text(json.dumps(sorted(names)))
    path.with_suffix(".partial").replace(path)


def keep_returned(trial_dir: str, value: Any) -> None:
    """Write the training function's return value; log a warning if it can't be pickled."""
    folder = Path(trial_dir, _RETURNED)
    folder.mkdir(exist_ok=True)
    try:
        write_dictionary(str(folder), {_RETURNED: value})
    except CheckpointError as error:
        log.warning("Result.return_value will be None: the function's result can't be stored: %s", error)


def returned_value(trial_dir: str) -> Any:
    """Return the value that `keep_returned` wrote, or None if no value was written."""
    folder = Path(trial_dir, _RETURNED)
    return read_dictionary(str(folder))[_RETURNED] if (folder / FILENAME).exists() else None


def forget_returned(trial_dir: str) -> None:
    """Remove the return value of an earlier attempt."""
    shutil.rmtree(Path(trial_dir, _RETURNED), ignore_errors=True)
