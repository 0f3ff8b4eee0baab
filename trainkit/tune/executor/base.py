"""Common parts of the executors: trial specifications, replies, idle processes and the session."""

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
from trainkit.runtime.restart_policy import lost_text
from trainkit.runtime.session import SessionWatch
from trainkit.runtime.specs import ObjectRef
from trainkit.tune.config import RunConfig
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.failures import is_out_of_memory
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.resources import PlacementGroupFactory, TrialResources
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.trial.environment import TrialEnvironment, log_files
from trainkit.tune.trial.messages import TrialSpec

IDLE_S = 1.0
"""How long a process waits for a trial that wants it."""

P = TypeVar("P")


@dataclass(slots=True)
class _Idle(Generic[P]):
    process: P
    kind: Hashable
    since: float


class ProcessPool(Generic[P]):
    """Counts all processes of trials, and keeps those that wait.

    Args:
        existing: amounts by resource name that all processes share.
    """

    def __init__(self, existing: Mapping[str, float]) -> None:
        self._ledger = ResourceLedger(existing)
        self._idle: dict[str, _Idle[P]] = {}

    def __len__(self) -> int:
        """How many processes wait."""
        return len(self._idle)

    def take(self, request: PlacementGroupFactory) -> tuple[str, P] | None:
        """Return a waiting process that holds just this, by its name, the latest to come; None: none does."""
        kind = kind_of(request)
        name = next((name for name in reversed(self._idle) if self._idle[name].kind == kind), None)
        return None if name is None else (name, self._idle.pop(name).process)

    def admit(self, name: str, request: PlacementGroupFactory) -> list[P]:
        """Count a new process in; return those that must go for it, the longest waiting first."""
        going = []
        while not self._ledger.reserve(name, request) and self._idle:
            first = next(iter(self._idle))
            going.append(self._idle.pop(first).process)
            self._ledger.release(first)
        return going

    def keep(self, name: str, process: P, request: PlacementGroupFactory, now: float) -> None:
        """Let a process wait for another trial."""
        self._idle[name] = _Idle(process, kind_of(request), now)

    def forget(self, name: str) -> None:
        """A process is gone, or going."""
        self._idle.pop(name, None)
        self._ledger.release(name)

    def overdue(self, now: float) -> list[P]:
        """Forget and return the processes that have waited for long."""
        late = [name for name, idle in self._idle.items() if now >= idle.since + IDLE_S]
        return self._forget_all(late)

    def take_all(self) -> list[P]:
        """Forget and return all that wait."""
        return self._forget_all(list(self._idle))

    @property
    def deadline(self) -> float:
        """When the next of them has waited for long; infinity: none waits."""
        first = next(iter(self._idle.values()), None)  # they came one after the other
        return math.inf if first is None else first.since + IDLE_S

    def _forget_all(self, names: list[str]) -> list[P]:
        processes = [self._idle[name].process for name in names]
        for name in names:
            self.forget(name)
        return processes


def kind_of(request: PlacementGroupFactory) -> Hashable:
    """Equal for requests that the same process meets."""
    return request.strategy, tuple(tuple(sorted(bundle.items())) for bundle in request.bundles)


def event_of(trial_id: str, attempt: int, time: float, answer: Any) -> ev.Event:
    """Return the event that `answer`, to whichever call, is."""
    if type(answer) is tuple:
        iteration, metrics, checkpoint, done, problem = answer
        if metrics is None and not done:
            return ev.Saved(trial_id, attempt, time, iteration, checkpoint)
        if metrics is None:
            return ev.Finished(trial_id, attempt, time, iteration, checkpoint, problem)
        # Names are the same objects in all reports: each came with its own, and trials keep their last.
        metrics = {intern(name): value for name, value in metrics.items()}
        return ev.Reported(trial_id, attempt, time, iteration, metrics, checkpoint, done, problem)
    if type(answer) is dict:
        return ev.Started(trial_id, attempt, time, **answer)
    raise TypeError(f"a trial cannot answer {answer!r}")


def failure_of(error: BaseException) -> Failure:
    """Return an exception as a failure; a mistake in the arguments is not retried."""
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
    """Return `error` without the frames of this program, which it would keep alive for nothing."""
    return error.with_traceback(None)


def _last_words(error: BaseException) -> str:
    return error.stderr_tail if isinstance(error, WorkerDiedError) else ""


class SpecFactory:
    """Makes the specification of each attempt.

    Args:
        folder: of the experiment.
        run: the settings.
        seed_of: by trial index, the seed for the trial's generators; None: none.
        start_from: path of the checkpoint that a trial without one of its own begins with; None: none.
        durable: trials find their folders made, and their checkpoints outlive the machine.
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
    """Put what all trials share into the object store, or return the reference that the user has put it by.

    Raises:
        SerializationError: it can't be sent to a worker; the message begins with `what`.
    """
    if isinstance(value, ObjectRef):
        return value
    api.ensure_serializable(value, what)
    ref: ObjectRef[Any] = api.put(value)
    return ref


logger = logging.getLogger("trainkit.tune")

_AFTER_A_LOSS = (ev.Renew, *ev.FILES_ONLY)


class Executor(ev.ActionHandler, ABC):
    """Base class of the executors that run trials in a session.

    Args:
        now: the time that goes into events.
        session: that trials run in; None: this process alone.

    Attributes:
        errors: exceptions that attempts raised, by trial and attempt.
    """

    def __init__(self, now: Callable[[], float], session: SessionWatch | None) -> None:
        self.errors: dict[tuple[str, int], BaseException] = {}
        self._now = now
        self._at_once: list[ev.Event] = []
        self._session = session
        self._lost = False
        """The node is gone, and the controller has not asked for another session yet."""
        self._problem = ""
        self._ran: list[Trial] = []
        """The trials that ran when the last session was lost."""

    def carry_out(self, actions: Sequence[ev.Action]) -> None:
        """Do what the controller wants done; returns at once.

        Raises:
            NotInitializedError: the session is gone, and there can be no other.
        """
        for action in actions:
            if self._lost and not isinstance(action, _AFTER_A_LOSS):
                continue  # there is no process to do it to, which the controller is about to hear
            try:
                super().carry_out((action,))
            except NodeDiedError as error:
                self._lose(error)

    def renew(self, action: ev.Renew) -> None:
        self._lost = False  # if the next one is lost before it is there, that is news
        if self._session is not None:
            self._session.renew()
        self._begin_again()
        logger.warning("%s", _lost_words(self._problem, self._ran))

    @abstractmethod
    def wait(self, timeout_s: float | None) -> None:
        """Return when some trial has news, or after `timeout_s`."""

    @abstractmethod
    def collect(self) -> list[ev.Event]:
        """Return all news that has arrived, without waiting."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """True if no trial runs, and there is no news."""

    def waits(self) -> str:
        """Return a clause on what the first trial that has not begun waits for; "" where it is not known."""
        return ""

    @abstractmethod
    def dismiss(self) -> None:
        """Let the processes leave that wait for a further trial: none comes."""

    @property
    def gone(self) -> bool:
        """True once every process that was let go has ended; else wait for that by `wait_gone`."""
        return True

    def wait_gone(self) -> None:
        """Return when a process that was let go has ended, or is overdue."""

    @abstractmethod
    def close(self) -> None:
        """End every process at once."""

    @abstractmethod
    def _forget_processes(self) -> list[Trial]:
        """Forget every process, as all are gone with the session; return the trials that ran."""

    @abstractmethod
    def _begin_again(self) -> None:
        """Take up the session that has taken the place of the one that was lost."""

    def _is_lost(self) -> bool:
        """Ask whether the session is gone, as something in it has failed; tell the controller if so."""
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
        """Return the events to tell at once, and forget them."""
        taken, self._at_once = self._at_once, []
        return taken


def _lost_words(problem: str, ran: Sequence[Trial]) -> str:
    """Say what becomes of the trials that ran, now that the controller knows all that they reported."""
    waiting = [trial for trial in ran if trial.status is TrialStatus.PENDING]
    going_on = sum(trial.has_checkpoint() for trial in waiting)
    return (
        f"{problem}: in a new session {going_on} of the trials that ran go on from their checkpoints, and "
        f"{len(waiting) - going_on} begin again, as they have none"
    )
