"""ASHA in its stopping form: at each rung a trial goes on only while among the best 1/eta seen there.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, arXiv:1810.05934.
The paper pauses and promotes; this form, known from Ray Tune, judges a trial once when it reaches a
rung, against all that reached it before, and needs no checkpoints.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_finite, is_whole
from trainkit.tune.schedulers.base import CONTINUE, NO_CONFIG, Decision, TrialScheduler, Verdict
from trainkit.tune.schedulers.rungs import Rung, bracket_count, bracket_sizes, rung_levels


@dataclass(slots=True)
class _Progress:
    """What is known of one trial: its bracket, the rungs it has passed, whether it was stopped."""

    bracket: int
    passed: int = 0
    stopped: bool = False


class AsyncHyperBandScheduler(TrialScheduler):
    """Stop trials that are not among the best 1/`reduction_factor` at a rung; end all at `max_t`.

    Rungs lie at grace_period * reduction_factor**k below `max_t`. With several brackets, bracket b
    begins b rungs later; trials are spread over brackets in proportion to Hyperband's sizes.

    At a rung with n entries, this trial's included, it goes on if fewer than max(1, floor(n / eta))
    are better, or equal and earlier. NaN never passes a rung. A report that jumps over rungs is
    judged once, at the highest it has reached. A report without the metric still ends at `max_t`.

    Args:
        time_attr: reported value that counts the resource; must not fall.
        metric: reported value to judge by; None: the TuneConfig's.
        mode: "min" or "max"; None: the TuneConfig's.
        max_t: a trial ends when `time_attr` reaches this.
        grace_period: no trial is stopped before this; the first rung.
        reduction_factor: eta; one in so many goes on.
        brackets: how many different first rungs.
        stop_last_trials: False lets trials run on past `max_t`.
        type: "stopping".

    Raises:
        ConfigError: a value is out of range, or there are more brackets than rungs.
    """

    label: ClassVar[str] = "ASHA"

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        *,
        type: str = "stopping",
    ) -> None:
        super().__init__(time_attr, metric, mode)
        if type != "stopping":
            raise ConfigError(f"type={type!r}: ASHA is available as type='stopping'")
        for name, value, least in (("max_t", max_t, 0), ("grace_period", grace_period, 0)):
            if not is_finite(value) or value <= least:
                raise ConfigError(f"{name}={value!r}: give a number above {least}")
        if grace_period > max_t:
            raise ConfigError(f"grace_period={grace_period} is above max_t={max_t}: no trial could be judged")
        if not is_finite(reduction_factor) or reduction_factor <= 1:
            raise ConfigError(f"reduction_factor={reduction_factor!r}: give a number above 1, such as 4")
        rungs = bracket_count(grace_period, max_t, reduction_factor)
        if not is_whole(brackets) or not 1 <= brackets <= rungs:
            raise ConfigError(
                f"brackets={brackets!r}: give 1 to {rungs}, as grace_period={grace_period}, max_t={max_t} "
                f"and reduction_factor={reduction_factor} make {rungs} rung{'s' * (rungs != 1)}"
            )
        self.max_t = max_t
        self.grace_period = grace_period
        self.reduction_factor = reduction_factor
        self.brackets = brackets
        self.stop_last_trials = stop_last_trials
        # The last level is max_t itself: there trials end, and nothing is left to judge.
        self._rungs = [
            [Rung(level) for level in rung_levels(grace_period, max_t, reduction_factor, bracket)[:-1]]
            for bracket in range(brackets)
        ]
        self._levels = [[rung.level for rung in rungs] for rungs in self._rungs]
        sizes = bracket_sizes(grace_period, max_t, reduction_factor)[:brackets]
        self._shares = [upto / sum(sizes) for upto in accumulate(sizes)]
        self._progress: dict[str, _Progress] = {}
        self.late_reports = 0

    @property
    def arguments(self) -> dict[str, Any]:
        names = "time_attr metric mode max_t grace_period reduction_factor brackets stop_last_trials".split()
        return {name: getattr(self, name) for name in names}

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        del config
        bracket = 0
        if self.brackets > 1:
            if self.rng is None:
                raise ConfigError("several brackets are drawn at random: call set_search_properties first")
            bracket = min(bisect_right(self._shares, float(self.rng.random())), self.brackets - 1)
        self._progress[trial_id] = _Progress(bracket)

    def bracket_of(self, trial_id: str) -> int:
        """The bracket a trial was drawn into, from 0."""
        return self._progress[trial_id].bracket

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        progress = self._progress[trial_id]
        if progress.stopped:
            self.late_reports += 1
            return Decision(Verdict.STOP, {"rule": "late report"})
        if time is None:
            return CONTINUE
        if time >= self.max_t and self.stop_last_trials:
            progress.stopped = True
            return Decision(Verdict.STOP, {"rule": "max_t", "max_t": self.max_t})
        reached = bisect_right(self._levels[progress.bracket], time)
        if score is None or reached <= progress.passed:
            return CONTINUE
        skipped = reached - progress.passed - 1
        progress.passed = reached
        decision = self._judge(self._rungs[progress.bracket][reached - 1], score, progress.bracket, skipped)
        progress.stopped = decision.verdict is Verdict.STOP
        return decision

    def _judge(self, rung: Rung, score: float, bracket: int, skipped: int) -> Decision:
        rank = rung.record(score)
        places = rung.places(self.reduction_factor)
        passes = rank <= places and score > -math.inf
        cutoff = rung.cutoff(self.reduction_factor)
        reason = {
            "rule": "rung",
            "rung": rung.level,
            "rank": rank,
            "entries": len(rung),
            "places": places,
            "cutoff": -cutoff if self.mode == "min" else cutoff,
        }
        if bracket:
            reason["bracket"] = bracket
        if skipped:
            reason["skipped"] = skipped
        return Decision(Verdict.CONTINUE if passes else Verdict.STOP, reason)


ASHAScheduler = AsyncHyperBandScheduler
