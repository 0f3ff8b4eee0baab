"""A trial that has a process: since when, until when, and what it will be after that."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainkit.tune.control.autofill import Origin
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.trial import Failure, Trial, TrialStatus

Outcome = tuple[TrialStatus, str]
FINISHED: Outcome = (TrialStatus.TERMINATED, "finished")


@dataclass(slots=True)
class Live:
    """One attempt, as long as its process is wanted.

    Attributes:
        trial: whose attempt it is.
        times_out: when it has taken longer than it may.
        origin: where its results come from, once it has been set up.
        outcome: what the trial will be when the process ends; None: that is open.
        failure: why it will be in ERROR, if the outcome is that.
        deadline: by when the process must end, or report, now that its outcome is settled.
        excused: it was told to end, and need not have reported anything.
        pause: what the scheduler decided, if the outcome is a pause.
        saving: it saves a checkpoint where it waits, and goes on then.
    """

    trial: Trial
    times_out: float = math.inf
    origin: Origin | None = None
    outcome: Outcome | None = None
    failure: Failure | None = None
    deadline: float = math.inf
    excused: bool = False
    pause: Decision | None = None
    saving: bool = False

    @property
    def limit(self) -> float:
        """When it is killed, whatever it does."""
        return min(self.deadline, self.times_out)

    def must_end(self, outcome: Outcome, deadline: float) -> None:
        """Settle what the trial will be, unless that is settled; it may run to its next report."""
        if self.outcome is None:
            self.outcome, self.deadline, self.excused = outcome, deadline, True
        elif self.is_pausing and outcome[0] is TrialStatus.TERMINATED:
            self.outcome = outcome

    @property
    def is_pausing(self) -> bool:
        """True if the trial will be paused, and is not yet."""
        return self.outcome is not None and self.outcome[0] is TrialStatus.PAUSED

    @property
    def may_pause(self) -> bool:
        """True unless it is settled that the trial will have ended."""
        return self.outcome is None or not self.outcome[0].is_finished

    @property
    def is_ending(self) -> bool:
        """True if the trial ends, or waits to go on after a restore: nothing else will come of it."""
        return self.outcome is not None and not self.is_pausing

    @property
    def is_saving(self) -> bool:
        """True if a checkpoint may come of where the trial stands now."""
        return self.saving or self.is_pausing
