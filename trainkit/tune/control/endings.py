"""When an experiment ends before all its trials have: budget, stoppers, errors, whoever asks; no effects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trainkit.tune.control import events as ev
from trainkit.tune.control.live import Live
from trainkit.tune.control.plan import BROKEN, TIME_BUDGET, Ending, Plan
from trainkit.tune.control.stopping import StopRules
from trainkit.tune.trial import TrialStatus

T = TypeVar("T")


class Endings:
    """What may end the experiment, and what has.

    Args:
        plan: the experiment's rules.
        stop: the rules in `plan.stop`, told already of the reports of before.
        spent_s: how long the experiment has run before, in seconds.
        step: where records gather.
        live: trials with a process, which an end must wait for.

    Attributes:
        reached: what has ended the experiment; None as long as it goes on.
        error: what searcher, scheduler or stopper raised first, if one did, or what broke the experiment off.
    """

    def __init__(
        self, plan: Plan, stop: StopRules, spent_s: float, step: ev.Step, live: Mapping[str, Live]
    ) -> None:
        self.reached: Ending | None = None
        self.error: Exception | None = None
        self._plan = plan
        self._stop = stop
        self._spent_s = spent_s
        self._step = step
        self._live = live
        self.begin(0.0)

    def begin(self, time: float) -> None:
        """The experiment runs from here on."""
        budget_s = self._plan.time_budget_s
        self._began = time
        self._budget_ends = math.inf if budget_s is None else time + budget_s

    @property
    def deadline(self) -> float:
        """When to ask again at the latest."""
        if self.reached is not None:
            return math.inf
        if self._stop.ends_none:
            return self._budget_ends
        return min(self._budget_ends, self._began + self._stop.deadline_s - self._spent_s)

    def ask(self, time: float) -> None:
        """End the experiment if it is time to."""
        if self.reached is not None or (self._stop.ends_none and time < self._budget_ends):
            return
        if (ending := self.guarded(time, self._due, time)) is not None:
            self.end(ending, time)

    def _due(self, time: float) -> Ending | None:
        if time >= self._budget_ends:
            return TIME_BUDGET
        why = self._stop.end(self._spent_s + time - self._began)
        return Ending(why) if why else None

    def guarded(self, time: float, ask: Callable[..., T], *args: Any) -> T | None:
        """Ask searcher, scheduler or stopper; where they raise, end the experiment, all of it recorded."""
        try:
            return ask(*args)
        except Exception as error:
            self.error = self.error or error
            self.end(BROKEN, time)
            return None

    def break_off(self, error: Exception, time: float) -> None:
        """End the experiment by an error, unless something else has ended it."""
        if self.reached is None:
            self.error = error
            self.end(BROKEN, time)

    def end(self, ending: Ending, time: float) -> None:
        """Stop every trial at its next report, and start no other."""
        if self.reached is not None:
            return
        self.reached = ending
        self._step.records.append(ev.Noted(time, "ending", ending.why))
        status = TrialStatus.PENDING if ending.resumable else TrialStatus.TERMINATED
        for live in self._live.values():
            live.must_end((status, ending.why), time + self._plan.grace_s)
