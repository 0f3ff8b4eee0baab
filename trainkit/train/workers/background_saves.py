"""Checkpoints that another process writes while training continues.

    save(path, wait=False) ──▶ each worker copies its part of the state into the object store ──▶ returns
                                                             │
                                                             └──▶ writer: maps the copies, writes, renames

The writer is a task without CPUs, in a process that ends with the write. If the writer's process is killed,
the runtime starts the task again, with the same copies.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainkit.clock import SYSTEM
from trainkit.errors import CheckpointError, TrainkitError, message_of
from trainkit.runtime import api as runtime
from trainkit.runtime import session
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.scheduling import PlacementGroupSchedulingStrategy
from trainkit.train.checkpoint.files import CheckpointMetadata, remove_all, write, write_sharded
from trainkit.train.checkpoint.state import WorkerState, joined_state
from trainkit.train.distributed.process_group import ProcessGroup

log = logging.getLogger(__name__)

_LOWEST_PRIORITY = 19
"""Niceness of the writer, so that it computes only while the workers leave a CPU idle."""


@dataclass(frozen=True)
class FinishedSave:
    """Durations and size of a checkpoint that was written while training continued.

    Attributes:
        path: folder of the checkpoint.
        copy_s: seconds for which `save` copied the state; close to 0 if it used an existing snapshot.
        write_s: seconds until the copy was on disk.
        size_bytes: size of all files.
    """

    path: Path
    copy_s: float
    write_s: float
    size_bytes: int


class BackgroundSaves:
    """Checkpoints of one trainer that other processes write, one after the other.

    Attributes:
        last: the last save that has finished; None before the first.
        failure: error of the last write, which `check` raises; None after a complete checkpoint.
    """

    def __init__(self) -> None:
        self.last: FinishedSave | None = None
        self._running: tuple[ObjectRef[tuple[float, int]], Path, float] | None = None
        self.failure: CheckpointError | None = None

    def begin(
        self,
        path: Path,
        states: Sequence[ObjectRef[WorkerState]],
        *,
        sharded: bool,
        copy_s: float,
        outdated: Sequence[Path] = (),
    ) -> None:
        """Start the writer of a checkpoint; the previous writer must have ended.

        Args:
            path: absolute path of the folder.
            states: copies of the states of all workers, by rank.
            sharded: True to write the tensors in the files of sharded checkpoints.
            copy_s: seconds that copying took.
            outdated: checkpoints that the writer deletes when the new checkpoint is complete.
        """
        session.before_end(_end_all)
        # The writer must not take resources from the placement group of a trial that saves.
        outside = PlacementGroupSchedulingStrategy(placement_group=None)
        more: dict[str, Any] = {"scheduling_strategy": outside, "name": "checkpoint-writer"}
        writer = runtime.remote(write_copy).options(num_cpus=0, max_calls=1, **more)
        self._running = writer.remote(path, list(states), sharded, list(outdated)), path, copy_s
        _unfinished.add(self)

    def check(self) -> None:
        """Raise CheckpointError if the last write has failed; do nothing while it runs."""
        if self._running is not None:
            if not runtime.wait([self._running[0]], timeout=0)[0]:
                return
            self.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Wait until the last write has ended.

        Raises:
            CheckpointError: the write has failed. Each failure is raised once.
        """
        if self._running is None:
            return
        written, path, copy_s = self._running
        self.failure = None  # Only the outcome of the last write counts.
        try:
            write_s, size_bytes = runtime.get(written)
        except TrainkitError as error:
            self._forget()
            raise CheckpointError(
                f"save({str(path)!r}, wait=False) failed after it had returned: {message_of(error)}. "
                "The workers are unaffected: repeat this call to continue"
            ) from error
        self._forget()
        self.last = FinishedSave(path, copy_s, write_s, size_bytes)
        log.info(
            "saved %s: copied in %.2f s, wrote %.1f MB in %.2f s while training continued",
            *(path, copy_s, size_bytes / 1e6, write_s),
        )

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Log a failure to write in the block; `check` raises it, unless a later write succeeds first."""
        try:
            yield
        except (CheckpointError, OSError) as error:
            if isinstance(error, OSError):
                error = CheckpointError(f"an automatic checkpoint could not be written: {error}")
            log.error("%s", error)
            self.failure = error

    def end(self) -> None:
        """Wait as `wait` does.

        If Ctrl-C ends this wait, the session does not wait for the writer again, but ends the writer.
        """
        try:
            self.wait()
            self.check()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._running = None
        _unfinished.discard(self)


_unfinished: set[BackgroundSaves] = set()
"""Saves whose writer may still run. These saves outlive their trainer, and the session waits for them."""


def _end_all() -> None:
    """Wait for all writers; log failures, because no further call of a trainer can raise them."""
    for saves in list(_unfinished):
        try:
            saves.end()
        except CheckpointError as error:
            log.error("%s", error)


def write_copy(
    path: Path, states: list[ObjectRef[WorkerState]], sharded: bool, outdated: list[Path]
) -> tuple[float, int]:
    """Write a checkpoint in a separate process, which uses only CPU time that no other process needs.

    Args:
        path: absolute path of the folder.
        states: copies of the states of all workers, by rank.
        sharded: True to write the tensors in the files of sharded checkpoints.
        outdated: checkpoints to delete when the new checkpoint is complete.

    Returns:
        Seconds that writing took, and the size of all files in bytes.
    """
    os.nice(_LOWEST_PRIORITY)
    torch.set_num_threads(1)
    start = SYSTEM.monotonic()
    write_states(path, runtime.get(states), sharded=sharded)
    remove_all(outdated)
    size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return SYSTEM.monotonic() - start, size_bytes


def write_states(path: Path, states: Sequence[WorkerState], *, sharded: bool) -> None:
    """Write a checkpoint of a snapshot.

    Args:
        path: absolute path of the folder.
        states: states of all workers, by rank.
        sharded: True to write the tensors in the files of sharded checkpoints.

    Raises:
        CheckpointError: the checkpoint could not be written; `path` is unchanged.
    """
    state = joined_state(states)
    metadata = CheckpointMetadata(state["epoch"], state["global_step"], len(states))
    if sharded:
        write_sharded(path, state, metadata, ProcessGroup())
    else:
        write(path, state, metadata)
