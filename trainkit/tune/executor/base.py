"""Code that the executors share: events from replies, failures, and the loss of the session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from sys import intern
from typing import Any

from trainkit.errors import (
    ConfigError,
    MetricError,
    NodeDiedError,
    SerializationError,
    TaskError,
    message_of,
)
from trainkit.runtime import api
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.restart_policy import lost_text
from trainkit.runtime.session import SessionWatch
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.failures import is_out_of_memory
from trainkit.tune.core.log import logger
from trainkit.tune.core.resources import Bound
from trainkit.tune.core.trial import Failure, Trial, TrialStatus


def event_of(trial_id: str, attempt: int, time: float, answer: Any) -> ev.Event:
    """Return the event for a reply of a trial's process."""
    if type(answer) is tuple:
        iteration, metrics, checkpoint, done, problem = answer
        if metrics is None and not done:
            return ev.Saved(trial_id, attempt, time, iteration, checkpoint)
        if metrics is None:
            return ev.Finished(trial_id, attempt, time, iteration, checkpoint, problem)
        # Because of interning, reports share the metric names. Without it, each trial's last report would
        # keep its own copies of the names.
        metrics = {intern(name): value for name, value in metrics.items()}
        return ev.Reported(trial_id, attempt, time, iteration, metrics, checkpoint, done, problem)
    if type(answer) is dict:
        return ev.Started(trial_id, attempt, time, **answer)
    raise TypeError(f"a trial cannot answer {answer!r}")


def failure_of(error: BaseException) -> Failure:
    """Return the failure for an exception; a trial with an error about wrong arguments is not retried."""
    cause = error.cause if isinstance(error, TaskError) and error.cause is not None else error
    wrong = (MetricError, ConfigError, SerializationError)
    return Failure(
        kind=type(cause).__name__,
        message=message_of(cause),
        traceback=getattr(error, "remote_traceback", getattr(error, "stderr_tail", "")),
        retry=not isinstance(cause, wrong) and not isinstance(error, wrong),
        out_of_memory=is_out_of_memory(cause),
    )


def put_shared(bound: Bound) -> tuple[ObjectRef[Any], dict[str, ObjectRef[Any]]]:
    """Put the trainable and its parameters into the object store, where all processes of trials share them.

    Raises:
        SerializationError: the trainable or a parameter can't be sent to a worker.
    """
    trainable = _put_named(f"the trainable {bound.name}", bound.trainable)
    parameters = bound.parameters.items()
    return trainable, {name: _put_named(f"with_parameters({name}=...)", value) for name, value in parameters}


def _put_named(what: str, value: Any) -> ObjectRef[Any]:
    """Return a reference to the value; an error about the value begins with `what`."""
    if isinstance(value, ObjectRef):
        return value
    api.ensure_serializable(value, what)
    ref: ObjectRef[Any] = api.put(value)
    return ref


_AFTER_A_LOSS = (ev.Renew, *ev.FILES_ONLY)


class Executor(ABC):
    """Base class of executors that run trials, with a method for each supported kind of action.

    Args:
        now: function that returns the time for events.
        session: watch over the runtime session of the trials; None: trials run in this process only.

    Attributes:
        errors: exceptions of attempts, by trial and attempt.
    """

    def __init__(self, now: Callable[[], float], session: SessionWatch | None) -> None:
        self.errors: dict[tuple[str, int], BaseException] = {}
        self._now = now
        self._at_once: list[ev.Event] = []
        self._session = session
        self._lost = False
        """True between the loss of the node and the controller's request for a new session."""
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
        """Return text that says what the first trial that has not begun waits for; "" if unknown."""
        return ""

    @abstractmethod
    def dismiss(self) -> None:
        """End the idle processes, because no further trial will start."""

    @property
    def gone(self) -> bool:
        """True once all released processes have ended; until then, wait with `wait_gone`."""
        return True

    def wait_gone(self) -> None:
        """Wait until a released process has ended or is overdue."""

    @abstractmethod
    def close(self) -> None:
        """Kill all processes at once."""

    @abstractmethod
    def _forget_processes(self) -> list[Trial]:
        """Remove all processes, which have ended with the session; return the trials that were running."""

    @abstractmethod
    def _begin_again(self) -> None:
        """Start using the new session after a loss."""

    def _is_lost(self) -> bool:
        """Return True if the session is lost, and report a new loss; called after an error in the session."""
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

    def _failed(self, trial_id: str, attempt: int, error: BaseException) -> ev.Failed:
        """Keep the exception of an attempt, and return the event about its failure."""
        # The traceback is removed, because its frames would keep objects of this program alive.
        self.errors[trial_id, attempt] = error.with_traceback(None)
        preempted = getattr(error, "preempted", isinstance(error, NodeDiedError))
        return ev.Failed(trial_id, attempt, self._now(), failure_of(error), preempted)

    def _taken(self) -> list[ev.Event]:
        """Return the events that are already available, and clear their list."""
        taken, self._at_once = self._at_once, []
        return taken


def _lost_words(problem: str, ran: Sequence[Trial]) -> str:
    """Return the message about a lost session and its trials, after the controller has handled the loss."""
    waiting = [trial for trial in ran if trial.status is TrialStatus.PENDING]
    going_on = sum(trial.has_checkpoint() for trial in waiting)
    return (
        f"{problem}: in a new session, {going_on} of the running trials resume from their checkpoints, and "
        f"{len(waiting) - going_on} start over, because they have no checkpoint"
    )
