"""When an experiment ends before all its trials have: budget, stoppers, whoever asks; no effects."""

from __future__ import annotations

import math

from trainkit.tune.control.plan import TIME_BUDGET, Ending, Plan
from trainkit.tune.control.stopping import StopRules


class Endings:
    """What may end the experiment, and what has.

    Args:
        plan: the experiment's rules.
        stop: the rules in `plan.stop`, told already of the reports of before.
        spent_s: how long the experiment has run before, in seconds.

    Attributes:
        reached: what has ended the experiment; None as long as it goes on.
    """

    def __init__(self, plan: Plan, stop: StopRules, spent_s: float) -> None:
        self.reached: Ending | None = None
        self._plan = plan
        self._stop = stop
        self._spent_s = spent_s
        self._began = 0.0

    def begin(self, time: float) -> None:
        """The experiment runs from here on."""
        self._began = time

    @property
    def deadline(self) -> float:
        """When to ask again at the latest."""
        if self.reached is not None:
            return math.inf
        return min(self._budget_ends, self._began + self._stop.deadline_s - self._spent_s)

    @property
    def _budget_ends(self) -> float:
        budget_s = self._plan.time_budget_s
        return math.inf if budget_s is None else self._began + budget_s

    def due(self, time: float) -> Ending | None:
        """Return what ends the experiment by now; what a stopper of the user's raises goes through."""
        if time >= self._budget_ends:
            return TIME_BUDGET
        why = self._stop.end(self._spent_s + time - self._began)
        return Ending(why) if why else None
