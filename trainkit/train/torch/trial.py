"""A function trainer as a trial: its workers' reports made one, and handed to the tuner."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainkit.errors import CheckpointError, TrainingError
from trainkit.train.torch.options import LoopOptions, TrialLoop
from trainkit.train.torch.shards import split
from trainkit.train.torch.worker import PARTS, LoopWorker, part_dir
from trainkit.train.workers.placement import WorkerPlacement
from trainkit.train.workers.worker_group import WorkerGroup
from trainkit.tune.config import RunConfig
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.trial.context import TrialContext, TrialStopped, current_session
from trainkit.tune.trial.messages import Reply, TrialSpec

FUNCTION = "train_loop_per_worker"
"""Name of the workers' function in messages."""


class LoopTrial:
    """The trial of a function trainer, as a function of its configuration.

    Args:
        options: of the trainer.
        alone: no trial of a search, but the trainer's own run: its configuration is that of the trainer,
            and the one that the experiment holds is a record.
    """

    def __init__(self, options: LoopOptions, *, alone: bool = False) -> None:
        self._alone = alone
        # What is for the driver stays there: a callback may hold what can't be sent.
        self._options = replace(options, run_config=RunConfig())
        self.__name__ = options.name

    def request(self, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """Return the resources of a trial with this configuration."""
        return LoopOptions(**self._arguments(config)).request

    def __call__(self, config: dict[str, Any], datasets: Mapping[str, Any]) -> None:
        """Run the function on all workers, and report as they do.

        Args:
            config: as `LoopOptions.of_config` takes it.
            datasets: by name.

        Raises:
            TrainingError: some workers have ended their function, and others have reported.
            GangError: a worker died.
            Exception: raised by a worker, with its traceback.
        """
        session = current_session(FUNCTION)
        spec = session.context.spec
        arguments = self._arguments(config)
        workers = arguments["scaling_config"].num_workers
        shards = {
            name: split(data, workers, name, self._options.dataset_config) for name, data in datasets.items()
        }
        options = TrialLoop(**arguments, trial=spec, shards=shards)
        placement = WorkerPlacement(options.bundle)
        with contextlib.ExitStack() as left:
            left.callback(shutil.rmtree, os.path.join(spec.trial_dir, PARTS), ignore_errors=True)
            left.callback(placement.give_back)
            placement.take(workers)
            group = WorkerGroup(options, placement, f"{spec.trial_id} train-worker", LoopWorker)
            group.asked, group.can_stop = FUNCTION, True
            try:
                if options.scaling_config.use_gpu:
                    group.call("share_gpus", group.call("gpus", in_step=False), in_step=False)
                group.start(None)
                self._run(group, session, spec)
            except TrialStopped:
                group.close()
                raise
            except BaseException:
                group.close(force=True)
                raise
            group.close()

    def _arguments(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._options.of_config({} if self._alone else config)

    def _run(self, group: WorkerGroup[LoopWorker], session: TrialContext, spec: TrialSpec) -> None:
        kept: str | None = None
        while True:
            replies: list[Reply] = group.call("advance", kept)
            done = [reply[3] for reply in replies]
            if all(done):
                return
            if any(done):
                raise TrainingError(uneven_text([reply[0] for reply in replies], done))
            metrics = dict(replies[0][1] or {})
            metrics.pop("checkpoint_dir_name", None)
            parts = [
                os.path.join(part_dir(spec.trial_dir, rank), reply[2])
                for rank, reply in enumerate(replies)
                if reply[2] is not None
            ]
            if parts:
                with session.saving() as folder:
                    join_parts(parts, folder)
            session.report(metrics, None)
            kept = None if session.checkpoint is None or not parts else session.checkpoint.path


def join_parts(parts: Sequence[str], folder: str) -> None:
    """Move the files of several folders into one; of a name that several have, the first folder's file stays.

    Args:
        parts: paths, which are gone afterwards.
        folder: path of one that exists.

    Raises:
        CheckpointError: a part is not there, or can't be moved.
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
        more = (
            "; workers on several machines need a storage_path that all of them can write to"
            if isinstance(error, FileNotFoundError)
            else ""
        )
        raise CheckpointError(f"the workers' parts of a checkpoint can't be joined: {error}{more}") from error


def _raise(error: OSError) -> None:
    raise error


def uneven_text(counts: Sequence[int], done: Sequence[bool]) -> str:
    """Return the message for workers that have reported unequally often.

    Args:
        counts: number of reports, by rank.
        done: the function has ended, by rank.
    """
    over = [str(rank) for rank, ended in enumerate(done) if ended]
    waits = [rank for rank, ended in enumerate(done) if not ended]
    many = len(over) > 1
    return (
        f"worker{'s' if many else ''} {', '.join(over)} of {len(done)} ended {FUNCTION} after "
        f"{counts[int(over[0])]} reports, but worker {waits[0]} has made report {counts[waits[0]]}: all "
        "workers call report() equally often, as each waits there for the others; those that have nothing to "
        "tell report {}"
    )
