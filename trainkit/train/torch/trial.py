"""Trials that run a training function: the workers' reports are merged and passed to the tuner."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trainkit.errors import CheckpointError, TrainingError
from trainkit.train.distributed.failure_cause import original
from trainkit.train.torch.context import forget_returned, keep_own_names, own_names
from trainkit.train.torch.options import LoopOptions, TorchConfig, TrialLoop
from trainkit.train.torch.shards import DataConfig, split
from trainkit.train.torch.worker import PARTS, LoopWorker, part_dir
from trainkit.train.workers.placement import WorkerPlacement
from trainkit.train.workers.worker_group import WorkerGroup
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.config import RunConfig
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.core.resources import PlacementGroupFactory, ScalingConfig
from trainkit.tune.core.stoppers import AUTOMATIC
from trainkit.tune.trial.context import TrialContext, TrialStopped, current_session
from trainkit.tune.trial.messages import Reply, TrialSpec

log = logging.getLogger(__name__)

FUNCTION = "train_loop_per_worker"
"""Name of the training function in messages."""


@dataclass(frozen=True)
class RunContext:
    """Settings of a run, which its callbacks receive.

    Attributes:
        run_config: name and storage path of the run, and settings for failures and checkpoints.
        train_loop_config, scaling_config, backend_config, dataset_config: these settings of the trainer.
        run_id: id of the run's trial.
    """

    run_config: RunConfig
    train_loop_config: Mapping[str, Any]
    scaling_config: ScalingConfig
    backend_config: TorchConfig
    dataset_config: DataConfig
    run_id: str

    def get_run_config(self) -> RunConfig:
        """Return `run_config`."""
        return self.run_config


class UserCallback(Callback):
    """Base class of callbacks for a training function, passed as `RunConfig(callbacks=[...])`.

    Callbacks are copied to the process that waits for the workers, and run in this process. An exception in a
    callback ends the run.
    """

    def after_report(
        self, run_context: RunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """React to a report that all workers have made.

        Args:
            run_context: settings of the run.
            metrics: metrics of each worker, by rank.
            checkpoint: stored checkpoint of the report; None if no worker reported a checkpoint.
        """

    def after_exception(self, run_context: RunContext, worker_exceptions: dict[int, BaseException]) -> None:
        """React to the failure of workers.

        Args:
            run_context: settings of the run.
            worker_exceptions: exceptions of the workers that caused the failure, by rank of the worker.
        """


RANK = "worker_rank"
"""Attribute of an exception for the rank of the worker that raised it."""


class LoopTrial:
    """Function of a configuration that runs a training function as a trial.

    Args:
        options: arguments of the trainer.
        alone: True for a run by the trainer itself, outside of a search. The trainer's own run uses the
            trainer's configuration; the experiment's configuration is only a record.
    """

    def __init__(self, options: LoopOptions, *, alone: bool = False) -> None:
        self._alone = alone
        run = options.run_config
        self._callbacks = [each for each in run.callbacks if isinstance(each, UserCallback)]
        # Only settings that the trial needs are sent, because callbacks for the user's process may not be
        # picklable.
        settings = ("name", "storage_path", "failure_config", "checkpoint_config")
        sent = RunConfig(**{name: getattr(run, name) for name in settings})
        self._options = replace(options, run_config=sent)
        self.__name__ = options.name

    def request(self, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """Return the resources of a trial with this configuration."""
        return LoopOptions(**self._arguments(config)).request

    def __call__(self, config: dict[str, Any], datasets: Mapping[str, Any]) -> None:
        """Run the training function on all workers, and pass their reports to the tuner.

        Args:
            config: sample of a search space, as for `LoopOptions.of_config`.
            datasets: data sets by name.

        Raises:
            TrainingError: the training function has ended on some workers, while other workers have made a
                further report.
            GangError: a worker died.
            Exception: a worker's exception, with its traceback.
        """
        session = current_session(FUNCTION)
        spec = session.context.spec
        arguments = self._arguments(config)
        workers = arguments["scaling_config"].num_workers
        shards = {
            name: split(data, workers, name, self._options.dataset_config) for name, data in datasets.items()
        }
        options = TrialLoop(**arguments, trial=spec, shards=shards)
        tell = partial(self._tell, self._context(options))
        placement = WorkerPlacement(options.bundle)
        with contextlib.ExitStack() as left:
            left.callback(shutil.rmtree, os.path.join(spec.trial_dir, PARTS), ignore_errors=True)
            left.callback(placement.give_back)
            placement.take(workers)
            forget_returned(spec.trial_dir)
            group = WorkerGroup(options, placement, f"{spec.trial_id} train-worker", LoopWorker)
            group.asked, group.can_stop = FUNCTION, True
            try:
                if options.scaling_config.use_gpu:
                    group.call("share_gpus", group.call("gpus", in_step=False), in_step=False)
                group.start(None)
                self._run(group, session, spec, tell)
            except TrialStopped:
                group.close()
                raise
            except BaseException as error:
                group.close(force=True)
                if (rank := group.failed_rank) is not None:
                    cause = original(error)
                    vars(cause)[RANK] = rank
                    tell("after_exception", worker_exceptions={rank: cause})
                raise
            group.close()

    def _arguments(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._options.of_config({} if self._alone else config)

    def _context(self, options: TrialLoop) -> RunContext:
        return RunContext(
            replace(options.run_config, name=options.run_config.name or options.trial.experiment_name),
            options.train_loop_config,
            options.scaling_config,
            options.torch_config,
            options.dataset_config,
            options.trial.trial_id,
        )

    def _tell(self, context: RunContext, hook: str, **facts: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(run_context=context, **facts)

    def _run(
        self,
        group: WorkerGroup[LoopWorker],
        session: TrialContext,
        spec: TrialSpec,
        tell: Callable[..., None],
    ) -> None:
        kept: str | None = None
        own, has_told = own_names(spec.trial_dir), False
        while True:
            replies: list[Reply] = group.call("advance", kept)
            done = [reply[3] for reply in replies]
            if all(done):
                return
            if any(done):
                raise TrainingError(uneven_text([reply[0] for reply in replies], done))
            metrics = [dict(reply[1] or {}) for reply in replies]
            # In a search, a metric `done` ends the trial, but a run outside of a search ends when its workers
            # end.
            left_out = [each.pop("done") for each in metrics if self._alone and "done" in each]
            if left_out and not has_told:
                has_told = True
                log.warning(
                    'report({"done": %r}): "done" is left out, because this key marks the end of a run. The '
                    "run ends when %s returns; report your value under a different name",
                    left_out[0],
                    FUNCTION,
                )
            if not own >= (more := AUTOMATIC & metrics[0].keys()):
                own |= more
                keep_own_names(spec.trial_dir, own)
            names = [(rank, reply[2]) for rank, reply in enumerate(replies) if reply[2] is not None]
            parts = [os.path.join(part_dir(spec.trial_dir, rank), name) for rank, name in names]
            if parts:
                with session.saving() as folder:
                    join_parts(parts, folder)
            session.report(metrics[0], None)
            checkpoint = session.checkpoint if parts else None
            kept = None if checkpoint is None else checkpoint.path
            tell("after_report", metrics=metrics, checkpoint=checkpoint)


def join_parts(parts: Sequence[str], folder: str) -> None:
    """Move the files of several folders into one folder.

    Of files with equal names, the file of the first folder is kept.

    Args:
        parts: paths of the folders to move from, which are removed.
        folder: path of the existing folder to move to.

    Raises:
        CheckpointError: one of the folders is missing or can't be moved.
    """
    try:
        for part in reversed(parts):
            for inside, _, names in os.walk(part, onerror=_raise):
                target = os.path.join(folder, os.path.relpath(inside, part))
                os.makedirs(target, exist_ok=True)
                for name in names:
                    os.replace(os.path.join(inside, name), os.path.join(target, name))
            shutil.rmtree(part)
    except OSError as error:
        text = f"the workers' parts of a checkpoint can't be joined: {error}"
        if isinstance(error, FileNotFoundError):
            text += "; workers on several machines need a storage_path that all of them can write to"
        raise CheckpointError(text) from error


def _raise(error: OSError) -> None:
    raise error


def uneven_text(counts: Sequence[int], done: Sequence[bool]) -> str:
    """Return the error message for workers that have reported unequally often.

    Args:
        counts: number of reports of each worker, by rank.
        done: True for each worker whose training function has ended, by rank.
    """
    over = [str(rank) for rank, ended in enumerate(done) if ended]
    waits = [rank for rank, ended in enumerate(done) if not ended]
    many = len(over) > 1
    return (
        f"worker{'s' if many else ''} {', '.join(over)} of {len(done)} ended {FUNCTION} after "
        f"{counts[int(over[0])]} reports, but worker {waits[0]} has made report {counts[waits[0]]}: all "
        "workers must call report() equally often, as each call waits for all; without metrics report {}"
    )
