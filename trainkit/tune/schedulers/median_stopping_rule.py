"""The median stopping rule: a trial ends once its best is worse than how half of the others have done.

Source: Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, automated early
stopping. By default the others are all trials that got so far, as in Ray Tune, not only completed ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_finite, is_whole
from trainkit.tune.schedulers.base import CONTINUE, NO_CONFIG, Decision, TrialScheduler, Verdict
from trainkit.tune.schedulers.median.standings import Standings, median

POOLS = ("all", "completed")
COMPARED = ("average", "value")


class MedianStoppingRule(TrialScheduler):
    """Stop a trial whose best is strictly worse than the median of the others' running averages.

    Judged at each report from `grace_period` on, against the other trials that have reported at this time
    or later: each counts with the average of its reports from `grace_period` up to this time. NaN is the
    worst there is, also in an average. A report whose time is not above all earlier ones of its trial
    changes nothing, such as one that is made again after a restore.

    Args:
        time_attr: reported value that counts the resource; must not fall.
        metric: reported value to judge by; None: the TuneConfig's.
        mode: "min" or "max"; None: the TuneConfig's.
        grace_period: nobody is judged before this, and averages begin here; in units of `time_attr`.
        min_samples_required: how many other trials a judgement needs at least.
        min_time_slice: above 0: while there are too few others to judge by, a trial that has run so long
            makes way for trials that wait, in units of `time_attr`; it needs checkpoints. 0: it runs on.
        hard_stop: False pauses instead of stopping: the losers go on when nobody else wants their place, and
            are not judged again; they need checkpoints.
        pool: "all" trials, or only those "completed", as in the paper: ended, but not by this rule.
        compare: with the others' running "average", or with their "value" at the same time, or the last
            before it; the latter is Optuna's rule if the pool is "completed".

    Raises:
        ConfigError: a value is out of range.
    """

    label: ClassVar[str] = "the median rule"

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
        *,
        pool: str = "all",
        compare: str = "average",
    ) -> None:
        super().__init__(time_attr, metric, mode)
        for name, value in (("grace_period", grace_period), ("min_time_slice", min_time_slice)):
            if not is_finite(value) or value < 0:
                raise ConfigError(f"{name}={value!r}: give a number of at least 0, in units of {time_attr}")
        if not is_whole(min_samples_required) or min_samples_required < 1:
            raise ConfigError(
                f"min_samples_required={min_samples_required!r}: give a whole number from 1 on, such as 3"
            )
        for name, given, known in (("pool", pool, POOLS), ("compare", compare, COMPARED)):
            if given not in known:
                raise ConfigError(f"{name}={given!r} is none of {', '.join(map(repr, known))}")
        self.grace_period = grace_period
        self.min_samples_required = min_samples_required
        self.min_time_slice = min_time_slice
        self.hard_stop = hard_stop
        self.pool = pool
        self.compare = compare
        self._standings = Standings(grace_period, averaged=compare == "average")
        self._ended: set[str] = set()
        self._losers: set[str] = set()
        self._slices: dict[str, float] = {}  # when each trial last made way
        # Those that were paused, in this order.
        self._made_way: dict[str, None] = {}
        self._set_aside: dict[str, None] = {}

    @property
    def arguments(self) -> dict[str, Any]:
        names = (
            "time_attr metric mode grace_period min_samples_required min_time_slice hard_stop pool compare"
        )
        return {name: getattr(self, name) for name in names.split()}

    @property
    def first_judgement(self) -> float:
        return self.grace_period

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        del config
        self._standings.add(trial_id, member=self.pool == "all")

    # --- judging ----------------------------------------------------------------------------------

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        if self.hard_stop and trial_id in self._losers:
            return Decision(Verdict.STOP, {"rule": "late report"})
        if time is None or score is None or trial_id in self._ended:
            return CONTINUE
        if not time > self._standings.latest(trial_id) or not math.isfinite(time):
            return CONTINUE
        # The trial itself is not among the others: it has not been recorded at this time yet.
        judged = time >= self.grace_period and trial_id not in self._losers
        others = self._standings.at(time) if judged else ()
        samples = len(others)
        middle = median(others) if samples >= self.min_samples_required else None
        self._standings.record(trial_id, time, score)
        if not judged:
            return CONTINUE
        if middle is None:
            return self._make_way(trial_id, time, samples)
        return self._judge(trial_id, time, middle, samples)

    def _judge(self, trial_id: str, time: float, middle: float, samples: int) -> Decision:
        best = self._standings.best(trial_id)
        reason = {
            "rule": "median",
            "time": time,
            "best": self._signed(best),
            "median": self._signed(middle),
            "others": samples,
        }
        if best >= middle:
            return Decision(Verdict.CONTINUE, reason)
        self._losers.add(trial_id)
        if self.hard_stop:
            return Decision(Verdict.STOP, reason)
        self._set_aside[trial_id] = None
        return Decision(Verdict.PAUSE, reason)

    def _make_way(self, trial_id: str, time: float, samples: int) -> Decision:
        """Too few others to judge by: the trial goes on, or makes way for others if its slice is over."""
        if not self.min_time_slice or time - self._slices.get(trial_id, 0.0) < self.min_time_slice:
            return CONTINUE
        self._slices[trial_id] = time
        self._made_way[trial_id] = None
        return Decision(
            Verdict.PAUSE,
            {"rule": "time slice", "time": time, "others": samples, "needed": self.min_samples_required},
        )

    def _signed(self, score: float) -> float:
        return -score if self.mode == "min" else score

    # --- pauses and ends --------------------------------------------------------------------------

    @property
    def pauses(self) -> bool:
        return not self.hard_stop or bool(self.min_time_slice)

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        if pending:
            return pending[0]
        if new:
            return None
        return next((one for one in chain(self._made_way, self._set_aside) if one in paused), None)

    def on_trial_resume(self, trial_id: str) -> Mapping[str, Any]:
        self._made_way.pop(trial_id, None)
        self._set_aside.pop(trial_id, None)
        return {"rule": "losers last" if trial_id in self._losers else "time slice"}

    def on_trial_complete(self, trial_id: str) -> None:
        self._leave(trial_id)
        if not (self.hard_stop and trial_id in self._losers):  # a loser that went on has ended by itself
            self._standings.join(trial_id)

    def on_trial_error(self, trial_id: str) -> None:
        self._leave(trial_id)

    def _leave(self, trial_id: str) -> None:
        self._ended.add(trial_id)
        self._made_way.pop(trial_id, None)
        self._set_aside.pop(trial_id, None)
