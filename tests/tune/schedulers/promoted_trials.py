"""Trials that run from rung to rung as free workers take them, under a scheduler that promotes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import ASHAScheduler, Decision, Verdict

LEVELS = (1, 2, 4, 8)
scores = st.integers(-4, 4) | st.sampled_from([math.nan, math.inf, -math.inf])
tables = st.lists(st.tuples(scores, scores, scores, scores), min_size=1, max_size=30)
"""What each trial reports at each of the levels."""
orders = st.lists(st.integers(0, 1000), max_size=150)
"""Which of the jobs that run ends next."""


def asha(mode: str = "max", seed: int = 0, **arguments) -> ASHAScheduler:
    scheduler = ASHAScheduler(metric="m", mode=mode, type="promotion", **arguments)
    scheduler.set_search_properties("m", mode, scheduler_generator(seed))
    return scheduler


@dataclass
class PromotedTrials:
    """Trials that run one job after another, from a rung to the next, as free workers take them.

    Attributes:
        value: of a trial at a time.
        most: how many trials there may be.
        jobs: (trial, time it is to reach), in the order they began.
    """

    scheduler: ASHAScheduler
    value: Callable[[int, float], float]
    levels: tuple[int, ...]
    most: int
    jobs: list[tuple[int, int]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    paused: dict[str, int] = field(default_factory=dict)  # at which of the levels
    begun: int = 0

    def take(self) -> bool:
        """A free worker looks for a job; False: there is none."""
        new = self.begun < self.most
        chosen = self.scheduler.choose_trial_to_run([], list(self.paused), new=new)
        if chosen is not None:
            at = self.paused.pop(chosen)
            self.decisions.append(Decision(Verdict.RESUME, self.scheduler.on_trial_resume(chosen)))
            self.jobs.append((int(chosen), self.levels[at + 1]))
        elif self.begun < self.most:
            self.scheduler.on_trial_add(str(self.begun))
            self.jobs.append((self.begun, self.levels[0]))
            self.begun += 1
        else:
            return False
        self.running.append(len(self.jobs) - 1)
        return True

    def finish(self, which: int, *, fails: bool = False) -> Decision | None:
        """One of the jobs that run ends."""
        number, time = self.jobs[self.running.pop(which)]
        if fails:
            self.scheduler.on_trial_error(str(number))
            return None
        result = {"training_iteration": time, "m": self.value(number, time)}
        decision = self.scheduler.on_result(str(number), result)
        self.decisions.append(decision)
        if decision.verdict is Verdict.PAUSE:
            self.paused[str(number)] = self.levels.index(time)
        else:
            self.scheduler.on_trial_complete(str(number))
        return decision

    def run(
        self, workers: int = 1, order: Iterable[int] = (), fails: Callable[[], bool] = lambda: False
    ) -> None:
        """Until no job is left; `order` says which of those that run ends next, `fails` whether it fails."""
        order = iter(order)
        while True:
            while len(self.running) < workers and self.take():
                pass
            if not self.running:
                return
            self.finish(next(order, 0) % len(self.running), fails=fails())


def shop_of(table, **arguments) -> PromotedTrials:
    scheduler = asha(max_t=8, reduction_factor=2, **arguments)
    return PromotedTrials(scheduler, lambda n, t: table[n][LEVELS.index(int(t))], LEVELS, len(table))
