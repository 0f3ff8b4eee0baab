"""Code that the executors share: trial specifications, replies, idle processes and the session."""

from __future__ import annotations

import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Any, Generic, TypeVar

from trainkit import settings
from trainkit.errors import (
    ConfigError,
    MetricError,
    NodeDiedError,
    SerializationError,
    TaskError,
    WorkerDiedError,
    message_of,
)
from trainkit.runtime import api
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.restart_policy import lost_text
from trainkit.runtime.session import SessionWatch
from trainkit.tune.config import RunConfig
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.failures import is_out_of_memory
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.resources import PlacementGroupFactory, TrialResources
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.trial.environment import TrialEnvironment, log_files
from trainkit.tune.trial.messages import TrialSpec

IDLE_S = 1.0
"""Seconds that an idle process waits for another trial."""

P = TypeVar("P")


@dataclass(slots=True)
class _Idle(Generic[P]):
    process: P
    kind: Hashable
    since: float


class ProcessPool(Generic[P]):
    """Idle processes of trials, with a resource ledger of all processes.

    Args:
        existing: total amounts by resource name, shared by all processes.
    """

    def __init__(self, existing: Mapping[str, float]) -> None:
        self._ledger = ResourceLedger(existing)
        self._idle: dict[str, _Idle[P]] = {}

    def __len__(self) -> int:
        """Return the number of idle processes."""
        return len(self._idle)

    def take(self, request: PlacementGroupFactory) -> tuple[str, P] | None:
        """Remove and return the name and process of the latest idle process with these resources, or None."""
        kind = kind_of(request)
        name = next((name for name in reversed(self._idle) if self._idle[name].kind == kind), None)
        return None if name is None else (name, self._idle.pop(name).process)

    def admit(self, name: str, request: PlacementGroupFactory) -> list[P]:
        """Reserve resources for a new process; return the idle processes to end for this, oldest first."""
        going = []
        while not self._ledger.reserve(name, request) and self._idle:
            first = next(iter(self._idle))
            going.append(self._idle.pop(first).process)
            self._ledger.release(first)
        return going

    def keep(self, name: str, process: P, request: PlacementGroupFactory, now: float) -> None:
        """Keep a process idle for another trial."""
        self._idle[name] = _Idle(process, kind_of(request), now)

    def forget(self, name: str) -> None:
        """Release the resources of a process that has ended or will end."""
        self._idle.pop(name, None)
        self._ledger.release(name)

    def overdue(self, now: float) -> list[P]:
        """Forget and return the processes that have been idle for IDLE_S."""
        late = [name for name, idle in self._idle.items() if now >= idle.since + IDLE_S]
        return self._forget_all(late)

    def take_all(self) -> list[P]:
        """Forget and return all idle processes."""
        return self._forget_all(list(self._idle))

    @property
    def deadline(self) -> float:
        """Time at which the next process has been idle for IDLE_S; infinity without an idle process."""
        # The dictionary is ordered by time, so its first process became idle first.
        first = next(iter(self._idle.values()), None)
        return math.inf if first is None else first.since + IDLE_S

    def _forget_all(self, names: list[str]) -> list[P]:
        processes = [self._idle[name].process for name in names]
        for name in names:
            self.forget(name)
        return processes


def kind_of(request: PlacementGroupFactory) -> Hashable:
    """Return a key that is equal for requests that the same process can serve."""
    return request.strategy, tuple(tuple(sorted(bundle.items())) for bundle in request.bundles)


def event_of(trial_id: str, attempt: int, time: float, answer: Any) -> ev.Event:
    """Return the event for a reply of a trial's process."""
    if type(answer) is tuple:
        iteration, metrics, checkpoint, done, problem = answer
        if metrics is None and not done:
            return ev.Saved(trial_id, attempt, time, iteration, checkpoint)
        if metrics is None:
            return ev.Finished(trial_id, attempt, time, iteration, checkpoint, problem)
        # Interning shares the metric names between reports. Otherwise each trial's last report would keep its
        # own copies.
        metrics = {intern(name): value for name, value in metrics.items()}
        return ev.Reported(trial_id, attempt, time, iteration, metrics, checkpoint, done, problem)
    if type(answer) is dict:
        return ev.Started(trial_id, attempt, time, **answer)
    raise TypeError(f"a trial cannot answer {answer!r}")


def failure_of(error: BaseException) -> Failure:
    """Return an exception as a failure; errors about wrong arguments are not retried."""
    cause = error.cause if isinstance(error, TaskError) and error.cause is not None else error
    wrong = (MetricError, ConfigError, SerializationError)
    return Failure(
        kind=type(cause).__name__,
        message=message_of(cause),
        traceback=error.remote_traceback if isinstance(error, TaskError) else _last_words(error),
        retry=not isinstance(cause, wrong) and not isinstance(error, wrong),
        out_of_memory=is_out_of_memory(cause),
    )


def remembered(error: BaseException) -> BaseException:
    """Return `error` without its traceback, whose frames would keep objects of this program alive."""
    return error.with_traceback(None)


def _last_words(error: BaseException) -> str:
    return error.stderr_tail if isinstance(error, WorkerDiedError) else ""


class SpecFactory:
    """Factory of attempt specifications.

    Args:
        folder: folder of the experiment.
        run: settings of the run.
        seed_of: function that receives a trial's index and returns the seed of its generators, or None.
        start_from: path of a checkpoint from which trials without their own checkpoint start, or None.
        durable: True: trial folders are created beforehand, and checkpoints are flushed to the disk.
    """

    def __init__(
        self,
        folder: Path,
        run: RunConfig,
        seed_of: Callable[[int], int | None],
        start_from: str | None = None,
        *,
        durable: bool = True,
    ) -> None:
        self.folder = folder
        self._run = run
        self._seed_of = seed_of
        self._start_from = start_from
        chdir = settings.chdir_asked() if run.chdir_to_trial_dir is None else run.chdir_to_trial_dir
        self._environment = TrialEnvironment(log_files(run.log_to_file), chdir)
        self.durable = durable
        self._makes_dirs = durable or self._environment != TrialEnvironment()

    def of(self, start: ev.Start) -> TrialSpec:
        """Return the specification of the attempt that `start` begins."""
        trial, checkpoint = start.trial, start.checkpoint
        trial_dir = f"{self.folder}/{trial.dirname}"
        return TrialSpec(
            trial_id=trial.trial_id,
            trial_name=trial.name,
            trial_dir=trial_dir,
            experiment_name=self.folder.name,
            config=trial.config,
            resources=TrialResources(trial.request),
            iteration=start.iteration,
            checkpoint=f"{trial_dir}/{checkpoint.dirname}" if checkpoint else self._start_from,
            next_checkpoint=trial.next_checkpoint,
            time_total_s=checkpoint.time_total_s if checkpoint else 0.0,
            timesteps_total=checkpoint.timesteps_total if checkpoint else None,
            checkpoint_frequency=self._run.checkpoint_config.checkpoint_frequency,
            checkpoint_at_end=bool(self._run.checkpoint_config.checkpoint_at_end),
            seed=self._seed_of(trial.index),
            driver_pid=os.getpid(),
            environment=self._environment,
            makes_dir=self._makes_dirs,
            durable=self.durable,
        )


def put_named(what: str, value: Any) -> ObjectRef[Any]:
    """Put a shared value into the object store, or return it if it is already an object reference.

    Raises:
        SerializationError: the value can't be sent to a worker; the message begins with `what`.
    """
    if isinstance(value, ObjectRef):
        return value
    api.ensure_serializable(value, what)
    ref: ObjectRef[Any] = api.put(value)
    return ref


logger = logging.getLogger("trainkit.tune")

_AFTER_A_LOSS = (ev.Renew, *ev.FILES_ONLY)


class Executor(ABC):
    """Base class of executors that run trials, with a method for each supported kind of action.

    Args:
        now: function that returns the time for events.
        session: session of the trials; None: trials run in this process only.

    Attributes:
        errors: exceptions of attempts, by trial and attempt.
    """

    def __init__(self, now: Callable[[], float], session: SessionWatch | None) -> None:
        self.errors: dict[tuple[str, int], BaseException] = {}
        self._now = now
        self._at_once: list[ev.Event] = []
        self._session = session
        self._lost = False
        """True between the loss of the node and the controller's request for another session."""
        self._problem = ""
        self._ran: list[Trial] = []
        """Trials that were running when the last session was lost."""

    def carry_out(self, actions: Sequence[ev.Action]) -> None:
        """Carry out the actions of the controller; return at once.

        Raises:
            NotInitializedError: the session is gone and can't be replaced.
        """
        for action in actions:
            if self._lost and not isinstance(action, _AFTER_A_LOSS):
                continue  # the process has ended, and the next events report the loss
            try:
                ev.carry_out(self, action)
            except NodeDiedError as error:
                self._lose(error)

    def interrupt(self, action: ev.Interrupt) -> None:
        """Do nothing if trials can't be interrupted; the later Kill ends the trial."""

    def renew(self, action: ev.Renew) -> None:
        self._lost = False  # the flag is cleared first, so that the loss of the next session is reported too
        if self._session is not None:
            self._session.renew()
        self._begin_again()
        logger.warning("%s", _lost_words(self._problem, self._ran))

    @abstractmethod
    def wait(self, timeout_s: float | None) -> None:
        """Return when a trial has an event, or after `timeout_s`."""

    @abstractmethod
    def collect(self) -> list[ev.Event]:
        """Return all events so far, without waiting."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """True if no trial runs and no event is waiting."""

    def waits(self) -> str:
        """Return a clause about what the first trial that has not begun is waiting for; "" if unknown."""
        return ""

    @abstractmethod
    def dismiss(self) -> None:
        """End the idle processes, because no further trial will start."""

    @property
    def gone(self) -> bool:
        """True once all released processes have ended; until then, wait with `wait_gone`."""
        return True

    def wait_gone(self) -> None:
        """Return when a released process has ended or is overdue."""

    @abstractmethod
    def close(self) -> None:
        """Kill all processes at once."""

    @abstractmethod
    def _forget_processes(self) -> list[Trial]:
        """Forget all processes after the loss of the session; return the trials that were running."""

    @abstractmethod
    def _begin_again(self) -> None:
        """Start using the new session after a loss."""

    def _is_lost(self) -> bool:
        """Check, after a failure in the session, if the session is lost; if so, report the loss."""
        loss = None if self._lost or self._session is None else self._session.loss()
        if loss is not None:
            self._lose(loss)
        return self._lost

    def _lose(self, loss: NodeDiedError) -> None:
        if self._lost:
            return
        self._lost = True
        self._ran = self._forget_processes()
        self._problem = lost_text(loss.how)
        self._at_once.append(ev.SessionLost(self._now(), self._problem, loss.ended_by))

    def _taken(self) -> list[ev.Event]:
        """Return the events that need no waiting, and clear their list."""
        taken, self._at_once = self._at_once, []
        return taken


def _lost_words(problem: str, ran: Sequence[Trial]) -> str:
    """Return a message about the trials that ran, once the controller has processed their reports."""
    waiting = [trial for trial in ran if trial.status is TrialStatus.PENDING]
    going_on = sum(trial.has_checkpoint() for trial in waiting)
    return (
        f"{problem}: in a new session {going_on} of the trials that ran go on from their checkpoints, and "
        f"{len(waiting) - going_on} begin again, as they have none"
    )
