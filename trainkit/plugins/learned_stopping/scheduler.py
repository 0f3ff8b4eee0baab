"""The scheduler `LearnedStopping`: complete trials teach which trials can be stopped, and from when on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_high
from typing import Any, ClassVar

from trainkit.plugins.learned_stopping.rule import Curve, Rung, chance_of_new, rung_times
from trainkit.tune.core.checks import require_number, require_whole
from trainkit.tune.schedulers.base import CONTINUE, NO_CONFIG, Decision, TrialScheduler, Verdict, words_of

ALIKE = 2 / 3
"""Share of the complete trials that must have about the usual length: at least this share of it, and at most
the inverse.
"""
FITTED = 200
"""Maximum number of complete trials from which the rule learns; if there are more, the latest are used."""


class LearnedStopping(TrialScheduler):
    """Stop trials that are unlikely to become the best, as learned from complete trials.

    Some trials run to their end, and none is stopped until `complete_trials` of them have. Each later trial
    is judged at a few times, the last at two thirds of a complete trial's length. A regression over the
    complete trials predicts the final score from the trial's score and its improvement. If the chance that
    the trial becomes better than all complete trials is less than `chance` times the chance of a new trial,
    the trial is stopped. If early reports don't tell the final order, hardly any trial is stopped.

    While the lengths of complete trials differ much, no trial is stopped: the same time is then a different
    share of each trial's training.

    A trial that is better than all complete trials is never stopped. A trial that reports once is never
    stopped, and trials need no checkpoints. NaN is the worst score. A report is ignored if its time is not
    above all earlier times of its trial.

    Args:
        time_attr: name of the reported value that counts the resource spent; the value must not decrease.
        metric: name of the reported value to judge trials by; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
        max_t: a trial ends when `time_attr` reaches this value; None: each trial ends by itself.
        complete_trials: number of trials that must have ended by themselves before a trial is stopped.
        chance: a trial is stopped if its chance of becoming the best is below this share of a new trial's.

    Raises:
        ConfigError: a value is out of range.
    """

    label: ClassVar[str] = "learned stopping"
    hears_again: ClassVar[bool] = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float | None = None,
        complete_trials: int = 3,
        chance: float = 0.3,
    ) -> None:
        super().__init__(time_attr, metric, mode)
        require_number("max_t", max_t, "a number above 0, or None", above=0, optional=True)
        require_whole("complete_trials", complete_trials, 1)
        require_number("chance", chance, "a number above 0, such as 0.3", above=0)
        self.max_t = max_t
        self.complete_trials = complete_trials
        self.chance = chance
        self._curves: dict[str, Curve] = {}
        self._complete: dict[str, float] = {}
        """Final score of each trial that ended by itself, in the order of their ends."""
        self._length = math.nan
        """Time at which most trials end by themselves."""
        self._are_alike = True
        """True if most complete trials have about the same length."""
        self._rungs: list[Rung] = []

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        self._curves[trial_id] = Curve()
        self._set_due(self._curves[trial_id])

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        curve = self._curves[trial_id]
        if curve.stopped:
            return Decision(Verdict.STOP, {"rule": "late report"})
        if time is None:
            return CONTINUE
        if score is not None and (not curve.times or time > curve.times[-1]):
            curve.times.append(time)
            curve.scores.append(score)
        if self.max_t is not None and time >= self.max_t:
            curve.stopped = True
            self._end(trial_id, curve)
            return Decision(Verdict.STOP, {"rule": "max_t", "max_t": self.max_t})
        if score is None or not curve.due <= time < self._length:
            return CONTINUE
        new = [rung for rung in self._rungs if curve.due <= rung.time <= time]
        for rung in new:
            rung.add(trial_id, curve)
        if curve.times[-1] != time:
            return CONTINUE
        curve.judged = time
        self._set_due(curve)
        if len(self._complete) < self.complete_trials or not self._are_alike:
            return CONTINUE
        return self._judge(trial_id, curve, new[-1])

    def _set_due(self, curve: Curve) -> None:
        curve.due = next((rung.time for rung in self._rungs if rung.time > curve.judged), math.inf)

    def _judge(self, trial_id: str, curve: Curve, rung: Rung) -> Decision:
        known = [each for each in self._complete if each in rung.places][-FITTED:]
        score, best = curve.scores[-1], max(self._complete.values())
        if len(known) < self.complete_trials or (score >= best and score > -math.inf):
            return CONTINUE
        chance = rung.chance(trial_id, {each: self._complete[each] for each in known})
        new = chance_of_new(len(known))
        least = self.chance * new * (1 - curve.times[-1] / self._length)
        facts = {
            "rule": "learned",
            "time": curve.times[-1],
            "rank": rung.rank(trial_id),
            "entries": len(rung.scores),
            "chance": chance,
            "least": least,
            "complete": len(known),
        }
        if chance >= least:
            return Decision(Verdict.CONTINUE, facts)
        curve.stopped = True
        return Decision(Verdict.STOP, facts)

    # --- the ends of trials -----------------------------------------------------------------------

    def on_trial_complete(self, trial_id: str) -> None:
        curve = self._curves[trial_id]
        if not curve.stopped:
            self._end(trial_id, curve)

    def _end(self, trial_id: str, curve: Curve) -> None:
        """Learn from a trial that was not stopped."""
        if not curve.times:
            return
        self._complete[trial_id] = curve.scores[-1]
        lengths = [self._curves[each].times[-1] for each in self._complete]
        length = median_high(lengths)
        alike = sum(ALIKE * length <= each <= length / ALIKE for each in lengths)
        self._are_alike = alike >= ALIKE * len(lengths)
        if length == self._length:
            return
        self._length = length
        times = rung_times(length)
        self._rungs = [Rung(*each) for each in zip(times, [None, *times], strict=False)]
        for each, other in self._curves.items():
            self._set_due(other)
            for rung in self._rungs:
                rung.add(each, other)


# --- wording of decisions ----------------------------------------------------------------------------


words_of("learned")(
    "rank {rank} of {entries} at {time:g}, chance of becoming the best {chance:.2g}, needed {least:.2g}, "
    "learned from {complete} complete trials".format_map
)
