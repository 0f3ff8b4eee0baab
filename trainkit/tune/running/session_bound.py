"""Common part of executors: their processes go with the session, and others start in the next one.

carry_out or collect finds the node dead -> SessionLost, behind all that was reported -> Renew -> Start, ...
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from trainkit.errors import NodeDiedError
from trainkit.runtime.renewal import SessionWatch
from trainkit.runtime.supervise import lost_text
from trainkit.tune.control import events as ev
from trainkit.tune.trial import Trial, TrialStatus

logger = logging.getLogger("trainkit.tune")

_AFTER_A_LOSS = (ev.Renew, *ev.FILES_ONLY)


class SessionBound(ABC):
    """Base of what carries the controller's actions out in a session.

    Args:
        now: the time that goes into events.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at_once: list[ev.Event] = []
        self._session = SessionWatch()
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
                if isinstance(action, ev.Renew):
                    self._lost = False  # if the next one is lost before it is there, that is news
                    self._session.renew()
                    self._begin_again()
                    logger.warning("%s", _lost_words(self._problem, self._ran))
                else:
                    self._carry_out(action)
            except NodeDiedError as error:
                self._lose(error)

    @abstractmethod
    def _carry_out(self, action: ev.Action) -> None:
        """Do one thing that the controller wants done."""

    @abstractmethod
    def _forget_processes(self) -> list[Trial]:
        """Every process is gone with the session; return the trials that ran."""

    @abstractmethod
    def _begin_again(self) -> None:
        """Another session has taken the place of the one that was lost."""

    def _is_lost(self) -> bool:
        """Ask whether the session is gone, as something in it has failed; tell the controller if so."""
        if not self._lost and (loss := self._session.loss()) is not None:
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
