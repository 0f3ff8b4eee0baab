"""ASHA, a scheduler in two forms: trials compete at rungs, and at each rung one trial in eta continues.

"stopping": each rung judges a trial once, when the trial arrives, against all earlier arrivals. The trial
then continues or ends. The stopping form needs no checkpoints. Ray Tune uses the stopping form.

"promotion": a trial pauses at each rung. A free worker looks for a promotable trial: a waiting trial among
the best 1/eta of all entries at its rung. The worker resumes the best promotable trial of the highest rung
that has one. If no rung has a promotable trial, a new trial starts. The paper describes the promotion form.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, arXiv:1810.05934,
Algorithm 2.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from trainkit.errors import ConfigError
from trainkit.registry import loaded
from trainkit.tune.core.checks import is_whole, require_number
from trainkit.tune.schedulers.base import CONTINUE, NO_CONFIG, Decision, TrialScheduler, Verdict
from trainkit.tune.schedulers.halving import bracket_count, bracket_sizes, rung_levels
from trainkit.tune.schedulers.rungs import PromotionRung, Rung

if TYPE_CHECKING:
    from numpy.random import Generator

FORMS = ("stopping", "promotion")
LEARNED = "learned"
"""The grace period that leaves all decisions to the scheduler with the name "auto"."""


@dataclass(slots=True)
class _Progress:
    """Progress of one trial.

    Attributes:
        bracket: number of the bracket that the trial was assigned to, from 0.
        passed: number of rungs of its bracket that the trial has reached.
        stopped: True once the scheduler has stopped the trial.
        waits_at: the rung at which the trial is paused until its promotion; None if the trial is not paused.
        reached: value of `time_attr` in the trial's last report with a score; minus infinity if the score was
            NaN.
    """

    bracket: int
    passed: int = 0
    stopped: bool = False
    waits_at: PromotionRung | None = None
    reached: float = -math.inf


class ASHAScheduler(TrialScheduler):
    """Asynchronous successive halving: the best 1/`reduction_factor` at a rung continue; all end at `max_t`.

    The rungs are the times grace_period * reduction_factor**k below `max_t`. With several brackets, bracket b
    has no rungs for k < b. Each trial is assigned to a random bracket, with probabilities in proportion to
    the bracket sizes of Hyperband.

    type="stopping": a rung with n scores, including the new trial's score, lets the trial continue if fewer
    than max(1, floor(n / eta)) scores are better, or equal and earlier. Otherwise the rung stops the trial.

    type="promotion": a trial pauses at a rung. The trial resumes from its checkpoint once it is the best
    waiting trial among the rung's floor(n / eta) best scores, and no higher rung has such a trial. Trials
    that still wait when no other trial is left to run end as "not promoted". A search of few trials may
    therefore end before any trial has reached `max_t`. With finish=True, the best trial of the highest rung
    continues at the end of such a search, until a trial has reached `max_t`. A trial that ended by itself or
    by a stop rule also counts as trained to `max_t`, if it got further than all waiting trials.

    In both forms, NaN never passes a rung. If a report jumps over several rungs, only the highest of these
    rungs judges it. No rung judges a trial twice. A report without the metric still ends the trial at
    `max_t`.

    Args:
        time_attr: name of the reported value that counts the resource spent; the value must not decrease.
        metric: name of the reported value to judge trials by; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
        max_t: a trial ends when `time_attr` reaches this value.
        grace_period: the first rung; no trial is judged before this value of `time_attr`. "learned":
            `LearnedStopping` judges the trials instead of rungs, and `reduction_factor` has no effect.
        reduction_factor: eta; one trial in eta continues at each rung.
        brackets: number of different first rungs.
        stop_last_trials: False lets trials run on past `max_t`.
        type: "stopping", or "promotion", for trainables that save checkpoints.
        finish: with promotion, train one trial to `max_t` at the end. The paper does not have this rule,
            because it assumes an endless supply of new trials.

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
        grace_period: float | str = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        *,
        type: str = "stopping",
        finish: bool = False,
    ) -> None:
        super().__init__(time_attr, metric, mode)
        if type not in FORMS:
            raise ConfigError(f"type must be 'stopping' or 'promotion', not {type!r}")
        if finish not in (True, False) or (finish and type != "promotion"):
            raise ConfigError(f"finish must be False, or True with type='promotion', not {finish!r}")
        require_number("max_t", max_t, "a number above 0", above=0)
        first: Any = grace_period
        self._learned: TrialScheduler | None = None
        if grace_period == LEARNED:
            if (type, brackets, stop_last_trials) != ("stopping", 1, True):
                raise ConfigError(
                    f"grace_period={LEARNED!r} supports neither promotion, brackets nor "
                    "stop_last_trials=False: leave these arguments out"
                )
            self._learned = loaded("trainkit.schedulers", "auto")(time_attr, metric, mode, max_t)
            first = max_t
        require_number("grace_period", first, f"a number above 0, or {LEARNED!r}", above=0)
        if first > max_t:
            raise ConfigError(f"grace_period={grace_period} is above max_t={max_t}: reduce grace_period")
        require_number("reduction_factor", reduction_factor, "a number above 1, such as 4", above=1)
        rungs = bracket_count(first, max_t, reduction_factor)
        if not is_whole(brackets) or not 1 <= brackets <= rungs:
            raise ConfigError(
                f"brackets must be from 1 to {rungs}, not {brackets!r}: grace_period={grace_period}, "
                f"max_t={max_t} and reduction_factor={reduction_factor} make {rungs} rung{'s' * (rungs != 1)}"
            )
        self.max_t = max_t
        self.grace_period = grace_period
        self.reduction_factor = reduction_factor
        self.brackets = brackets
        self.stop_last_trials = stop_last_trials
        self.type = type
        self.finish = finish
        # The last level, max_t, gets no rung, because trials end at max_t without a comparison.
        levels = [rung_levels(first, max_t, reduction_factor, b)[:-1] for b in range(brackets)]
        kind = Rung if type == "stopping" else PromotionRung
        self._rungs = [[kind(level, reduction_factor) for level in each] for each in levels]
        self._levels = levels
        # A free worker searches for a trial to promote from the highest rung down.
        self._from_the_top = sorted(
            (rung for each in self._rungs for rung in each if isinstance(rung, PromotionRung)),
            key=lambda rung: -rung.level,
        )
        sizes = bracket_sizes(first, max_t, reduction_factor)[:brackets]
        self._shares = [upto / sum(sizes) for upto in accumulate(sizes)]
        self._progress: dict[str, _Progress] = {}
        self._under_way: set[str] = set()
        self._through = -math.inf
        """Largest resource reached by a cleanly ended trial; infinity once a trial reached `max_t`."""
        self.late_reports = 0

    def set_search_properties(
        self, metric: str | None, mode: str | None, rng: Generator, total_samples: int | None = None
    ) -> None:
        super().set_search_properties(metric, mode, rng, total_samples)
        if self._learned is not None:
            self._learned.set_search_properties(metric, mode, rng, total_samples)

    @property
    def first_judgement(self) -> float | None:
        return None if self._learned is None else 0.0

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        if self._learned is not None:
            self._learned.on_trial_add(trial_id, config)
        bracket = 0
        if self.brackets > 1:
            if self.rng is None:
                raise ConfigError("brackets need a random generator: call set_search_properties first")
            bracket = min(bisect_right(self._shares, float(self.rng.random())), self.brackets - 1)
        self._progress[trial_id] = _Progress(bracket)
        self._under_way.add(trial_id)

    def bracket_of(self, trial_id: str) -> int:
        """Return the number of the bracket that a trial was assigned to, from 0."""
        return self._progress[trial_id].bracket

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        if self._learned is not None:
            return self._learned.decide(trial_id, time, score)
        progress = self._progress[trial_id]
        if progress.stopped:
            self.late_reports += 1
            return Decision(Verdict.STOP, {"rule": "late report"})
        if time is None:
            return CONTINUE
        if score is not None:
            progress.reached = time if score > -math.inf else -math.inf
        if time >= self.max_t and self.stop_last_trials:
            progress.stopped, self._through = True, math.inf
            budget = {} if score is None else {"budget": len(self._levels[0])}
            return Decision(Verdict.STOP, {"rule": "max_t", "max_t": self.max_t, **budget})
        reached = bisect_right(self._levels[progress.bracket], time)
        if progress.waits_at is not None and reached >= progress.passed:
            # A waiting trial may run and report again, for example if its process died before saving a
            # checkpoint. The trial must then pause again.
            self.late_reports += 1
            progress.waits_at.wait(trial_id)
            self._under_way.discard(trial_id)
            return Decision(Verdict.PAUSE, {"rule": "waits", "rung": progress.waits_at.level})
        if score is None or reached <= progress.passed:
            return CONTINUE
        skipped = reached - progress.passed - 1
        progress.passed = reached
        return self._judge(trial_id, progress, score, {"skipped": skipped} if skipped else {})

    def _judge(self, trial_id: str, progress: _Progress, score: float, more: Mapping[str, Any]) -> Decision:
        rung = self._rungs[progress.bracket][progress.passed - 1]
        if isinstance(rung, PromotionRung) and score > -math.inf:
            progress.waits_at = rung
            self._under_way.discard(trial_id)
            rank, verdict = rung.record_of(trial_id, score), Verdict.PAUSE
        else:
            rank = rung.record(score)
            passes = rank <= rung.places and score > -math.inf
            verdict = Verdict.CONTINUE if passes else Verdict.STOP
            progress.stopped = not passes
        return Decision(verdict, {**self._facts(progress, rung, rank), **more})

    def _facts(self, progress: _Progress, rung: Rung, rank: int) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "rule": "rung",
            "rung": rung.level,
            "rank": rank,
            "entries": rung.entries,
            "places": rung.places,
        }
        cutoff = rung.cutoff
        if cutoff is not None and cutoff > -math.inf:
            facts["cutoff"] = -cutoff if self.mode == "min" else cutoff
        if progress.bracket:
            facts["bracket"] = progress.bracket
        # Several brackets use the same levels, so the budget of a rung is its index among the levels of all
        # brackets.
        facts["budget"] = progress.bracket + progress.passed - 1
        return facts

    # --- promotion --------------------------------------------------------------------------------

    @property
    def pauses(self) -> bool:
        return self.type == "promotion"

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        if self.type == "stopping":
            return super().choose_trial_to_run(pending, paused, new=new)
        for rung in self._from_the_top:
            trial_id = rung.promotable(paused)
            if trial_id is not None:
                return trial_id
        if pending:
            return pending[0]
        return self._finisher(paused) if self.finish and not new else None

    def _finisher(self, paused: Sequence[str]) -> str | None:
        """Return the highest rung's best waiting trial; None if any trial can run or has reached `max_t`."""
        if self._under_way:
            return None
        bests = [
            (rung.level, *best) for rung in self._from_the_top if (best := rung.best_waiting) is not None
        ]
        if not bests:
            return None
        # Rungs of several brackets may share the highest level, so the best score among these rungs wins.
        level, _, trial_id = max(bests, key=lambda best: best[:2])
        # A trial that is not in `paused` may still be saving its checkpoint and can't be resumed yet.
        return trial_id if level >= self._through and trial_id in paused else None

    def on_trial_resume(self, trial_id: str) -> Mapping[str, Any]:
        progress = self._progress[trial_id]
        self._under_way.add(trial_id)
        rung, progress.waits_at = progress.waits_at, None
        if rung is None:
            return {}
        rank = rung.leave(trial_id)
        return {**self._facts(progress, rung, rank), **({} if rank <= rung.places else {"rule": "finish"})}

    def why_not_chosen(self, trial_id: str) -> Mapping[str, Any]:
        progress = self._progress[trial_id]
        rung = progress.waits_at
        if rung is None:
            return {}
        rank = rung.rank_of(trial_id)
        due = {"due": True} if rank <= rung.places else {}
        return {**self._facts(progress, rung, rank), "rule": "not chosen", **due}

    def on_trial_complete(self, trial_id: str) -> None:
        if self._learned is not None:
            self._learned.on_trial_complete(trial_id)
        progress = self._progress[trial_id]
        self._through = max(self._through, progress.reached)
        self._end(trial_id, progress)

    def on_trial_error(self, trial_id: str) -> None:
        self._end(trial_id, self._progress[trial_id])

    def _end(self, trial_id: str, progress: _Progress) -> None:
        self._under_way.discard(trial_id)
        if progress.waits_at is not None:
            # An ended trial can't be promoted any more, but its score still counts for other trials' ranks.
            progress.waits_at.leave(trial_id)


AsyncHyperBandScheduler = ASHAScheduler
