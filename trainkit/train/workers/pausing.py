"""Pauses of a training epoch after an optimizer step, in which the trainer reads the workers' state.

    trainer ──train──▶ worker: the epoch, in a greenlet ──after a step──▶ Paused ──▶ trainer: takes a snapshot
                              ▲                                                              │
                              └──────────────────────── go_on ◀──────────────────────────────┘

All workers must pause after the same step. Pauses every n steps need no agreement, because all workers count
the same steps. All other pauses are decided by worker 0. Worker 0 announces the number of the next step
before it enters that step's collectives. So each other worker finds the announcement when it has finished the
step. No worker needs to ask the other workers.
"""

from __future__ import annotations

import contextvars
import fcntl
import functools
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from greenlet import greenlet  # type: ignore[import-untyped]

from trainkit.clock import SYSTEM
from trainkit.settings import PAUSES

R = TypeVar("R")

LEAST_S = 1.0
"""Smallest number of seconds between two snapshots in an epoch."""

SHARE = 0.02
"""Largest share of the training time that snapshots in an epoch may take."""


@dataclass(frozen=True)
class Paused:
    """Result of an epoch that has paused.

    Attributes:
        global_step: number of training steps that have run.
    """

    global_step: int


@dataclass(frozen=True)
class PausePlan:
    """Reasons to pause an epoch, in addition to a request of the trainer.

    Attributes:
        after_s: seconds until the next pause; None for no limit.
        every_steps: number of training steps; pause after the first possible step at or after each multiple.
    """

    after_s: float | None = None
    every_steps: int | None = None


def interval_s(cost_s: float) -> float:
    """Return the seconds until the next snapshot if the last snapshot took `cost_s` seconds."""
    return max(LEAST_S, cost_s / SHARE)


class _Cell:
    """Descriptor of one of the numbers of a `PausePage`."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, page: PausePage, owner: type[PausePage]) -> int:
        return page.cells[self._index]

    def __set__(self, page: PausePage, value: int) -> None:
        page.cells[self._index] = value


class PausePage:
    """Memory that the trainer and its workers on one machine share, with a request for a pause and the step
    of the pause.

    Args:
        path: file of the page; it is made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        finally:
            os.close(descriptor)
        self.cells = memoryview(memory).cast("q")

    asked = _Cell(0)
    """1 if the trainer has asked the workers to pause, else 0."""
    step = _Cell(1)
    """Number of the step after which all workers pause, counted since their start; 0 before the first
    pause.
    """
    ready = _Cell(2)
    """1 once the workers have begun a step after which they could pause, else 0.

    The value stays 1 after the end of an epoch, until the next epoch begins.
    """
    stop = _Cell(3)
    """Number of the first call of `StopVote.answer` whose answer is True; 0 before a signal."""
    calls = _Cell(4)
    """Largest number of calls of `StopVote.answer` that any worker has made."""


class StopVote:
    """Answers of one worker to the question whether a signal has arrived, equal on all workers.

    The first worker that knows of a signal chooses a number of a call of `answer` that no worker has reached
    yet. From this call on, all workers answer True. So workers need not call `answer` at the same time. On
    GPUs, the code of a worker may run ahead of the other workers by some steps.

    Args:
        path: file of the page of the worker's group.
        world_size: number of workers.
    """

    def __init__(self, path: Path, world_size: int) -> None:
        self._page = PausePage(path)
        self._lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._alone = world_size == 1
        self._calls = 0
        self._pid = os.getpid()

    def answer(self, preempted: bool) -> bool:
        """Return the answer, which is equal on all workers. All workers must call this method equally often.

        Args:
            preempted: True if this worker knows of a signal.
        """
        if os.getpid() != self._pid:  # a forked process of the worker, such as a loader's, has no vote
            return preempted
        page = self._page
        self._calls += 1
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            page.calls = max(page.calls, self._calls)
            if preempted and not page.stop:
                page.stop = page.calls + (not self._alone)
            return 0 < page.stop <= self._calls
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


@functools.cache
def own_vote() -> StopVote | None:
    """Return the vote of this process if it is a worker of a training function or of a script; else None."""
    # Programs that this process starts must not inherit its vote.
    if (path := os.environ.pop(PAUSES, None)) is None:
        return None
    return StopVote(Path(path), int(os.environ["WORLD_SIZE"]))


class PauseRule:
    """Decision of one worker whether it pauses after a step.

    Args:
        page: page of the worker's group; None if the workers can't agree on a step, so that they only pause
            every n steps.
        rank: rank of the worker.
        world_size: number of workers.

    Attributes:
        due_step: number of the training step after which the next pause every n steps is due; infinity
            without such pauses.
    """

    def __init__(self, page: PausePage | None, rank: int, world_size: int) -> None:
        self._page = page
        self._rank = rank
        self._alone = world_size == 1
        self._steps = 0
        self._due_at = self.due_step = float("inf")

    def can_pause(self, plan: PausePlan) -> bool:
        """Return True if an epoch with `plan` may pause."""
        return self._page is not None or plan.every_steps is not None

    def begin(self, plan: PausePlan, global_step: int) -> None:
        """Start or continue an epoch with `plan`, after `global_step` training steps."""
        every = plan.every_steps
        self._due_at = float("inf") if plan.after_s is None else SYSTEM.monotonic() + plan.after_s
        self.due_step = float("inf") if every is None else (global_step // every + 1) * every

    def allow(self, pauses: bool) -> None:
        """Let a signal wait for a pause, or not wait. Worker 0 decides, because no step ends without it.

        Args:
            pauses: True once a step has begun after which the epoch can pause; False before an epoch.
        """
        if self._page is not None and self._rank == 0:
            self._page.ready = pauses

    def after_step(self, global_step: int) -> bool:
        """Count a step, and return True if the worker pauses now.

        All workers must call this method equally often.

        Args:
            global_step: number of training steps that have run, equal on all workers.
        """
        self._steps += 1
        page, due = self._page, global_step >= self.due_step
        if page is None:
            return due
        self.allow(True)
        if due or page.step >= self._steps or self._rank > 0:
            return due or page.step == self._steps
        if page.asked or SYSTEM.monotonic() >= self._due_at:
            page.step = self._steps + (not self._alone)
        return page.step == self._steps


_PAUSED: Any = object()


class PausableCall(Generic[R]):
    """Call of a function on this thread that can be suspended, and continued later.

    Args:
        function: the function.
    """

    def __init__(self, function: Callable[[], R]) -> None:
        self._greenlet = greenlet(function)
        self._greenlet.gr_context = contextvars.copy_context()

    def advance(self) -> R | None:
        """Run the function to its next pause or to its end; return None at a pause.

        Raises:
            Exception: the function's exception.
        """
        self._greenlet.parent = greenlet.getcurrent()
        result = self._greenlet.switch()
        return None if result is _PAUSED else cast(R, result)

    def is_current(self) -> bool:
        """Return True if this code runs in the function. Other threads can't suspend the function."""
        return greenlet.getcurrent() is self._greenlet

    def pause(self) -> None:
        """Suspend the function, which calls this method, until `advance` is called."""
        outside = self._greenlet.parent
        outside.switch(_PAUSED)

    def abandon(self) -> None:
        """End a suspended function, so that its `finally` blocks run."""
        if self._greenlet:
            self._greenlet.parent = greenlet.getcurrent()
            self._greenlet.throw()
