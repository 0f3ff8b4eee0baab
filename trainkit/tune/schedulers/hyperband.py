"""Hyperband: brackets of successive halving, from many trials judged early to few that run to the end.

Sources: Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18(185),
2018, Algorithm 1; for BOHB: Falkner, Klein, Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization
at Scale", ICML 2018, arXiv:1807.01774.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trainkit.tune.core.checks import require_number
from trainkit.tune.schedulers.base import (
    CONTINUE,
    NO_CONFIG,
    Decision,
    Facts,
    TrialScheduler,
    Verdict,
    words_of,
)
from trainkit.tune.schedulers.halving import Bracket, Judgement, bracket_plans, place_words


@dataclass(slots=True)
class _Member:
    """Progress of one trial in its bracket.

    Attributes:
        bracket: the trial's bracket.
        time: value of `time_attr` in the report by which the trial was last compared.
        at_end: True if the trial has reached `max_t`.
        stopped: True if the scheduler has stopped the trial for good.
        ended: True if the trial has ended by itself or failed; a restore may run it again.
    """

    bracket: Bracket
    time: float = -math.inf
    at_end: bool = False
    stopped: bool = False
    ended: bool = False


class HyperBandScheduler(TrialScheduler):
    """Hyperband with pauses: the best 1/`reduction_factor` of each round of a bracket continue.

    Levels are max_t / reduction_factor**k, rounded half up. Brackets are numbered from s_max down to 0. The
    first level of bracket s is s levels below `max_t`, and the bracket has ceil((s_max + 1) / (s + 1) *
    reduction_factor**s) trials. The defaults give brackets of 81, 34, 15, 8 and 5 trials, with the first
    levels 1, 3, 9, 27 and 81. When a bracket is full, the next bracket opens. After the last bracket, the
    first bracket of a new cycle opens.

    A trial pauses at a level until its whole round has reached the level. A round does not wait for ended
    trials. A round waits for new trials only while the searcher suggests trials. The best max(1, floor(n /
    reduction_factor)) of the round's n trials continue. Equal trials rank in the order of arrival. A failed
    trial counts as worst; a trial that ended by itself counts by its score at the level. Failed and ended
    trials can't continue, so the next best trials continue instead. A trial whose score is NaN never
    continues. A report without the metric does not count as reaching the level, but it still ends the trial
    at `max_t`.

    Trials resume from checkpoints, so trials should save checkpoints: a class by `save_checkpoint`, a
    function with its reports.

    Args:
        time_attr: name of the reported value that counts the resource spent; the value must not decrease.
        metric: name of the reported value to judge trials by; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
        max_t: a trial ends when `time_attr` reaches this value.
        reduction_factor: eta, at least 2; one trial in eta continues.
        stop_last_trials: False lets the trials of a bracket's last round run on past `max_t`.
        narrow_first: True opens the bracket with the fewest trials first, as Ray does, and the widest last.

    Raises:
        ConfigError: a value is out of range.
    """

    label: ClassVar[str] = "HyperBand"
    hears_again: ClassVar[bool] = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
        *,
        narrow_first: bool = False,
    ) -> None:
        super().__init__(time_attr, metric, mode)
        require_number("max_t", max_t, "a number above 0", above=0)
        words = "a number of at least 2, such as 3, so that no two levels fall on the same iteration"
        require_number("reduction_factor", reduction_factor, words, least=2)
        self.max_t = max_t
        self.reduction_factor = reduction_factor
        self.stop_last_trials = stop_last_trials
        self.narrow_first = narrow_first
        plans = bracket_plans(max_t, reduction_factor)
        self._top = plans[-1].lowest
        self._plans = plans[::-1] if narrow_first else plans
        self._opened = 0
        self._open: Bracket | None = None
        self._more_come = True
        self._members: dict[str, _Member] = {}
        # Each bracket's number maps to the promoted trials that have not resumed yet, with their reasons.
        self._promoted: dict[int, dict[str, Mapping[str, Any]]] = {}
        self._verdicts: list[tuple[str, Decision]] = []
        self.late_reports = 0

    def bracket_of(self, trial_id: str) -> int:
        """Return the number of a trial's bracket, from 0 in the order in which brackets opened."""
        return self._members[trial_id].bracket.number

    # --- membership of brackets -------------------------------------------------------------------

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        self._more_come = True
        self._members[trial_id] = _Member(self._joined(trial_id))

    def _joined(self, trial_id: str) -> Bracket:
        """Add the trial to the open bracket, or to a new bracket if none is open; return this bracket."""
        bracket = self._open
        if bracket is None or not bracket.takes_more:
            plan = self._plans[self._opened % len(self._plans)]
            bracket = self._open = Bracket(self._opened, plan, self.reduction_factor)
            self._opened += 1
        bracket.join(trial_id)
        return bracket

    def on_no_more_trials(self) -> None:
        self._more_come = False
        if self._open is not None:
            self._open.close()
            self._settle(self._open)

    def on_trial_complete(self, trial_id: str) -> None:
        self._leave(trial_id, failed=False)

    def on_trial_error(self, trial_id: str) -> None:
        self._leave(trial_id, failed=True)

    def _leave(self, trial_id: str, *, failed: bool) -> None:
        member = self._members[trial_id]
        member.ended = True
        self._take_promotion(trial_id)
        member.bracket.leave(trial_id, failed=failed)
        self._settle(member.bracket)

    def _come_back(self, trial_id: str, member: _Member) -> None:
        """Add an ended trial that a restore runs again; the trial joins like a new trial, because it has lost
        its place.
        """
        member.ended, member.time = False, -math.inf
        member.bracket = self._joined(trial_id)
        if not self._more_come:
            member.bracket.close()

    # --- judging ----------------------------------------------------------------------------------

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        member = self._members[trial_id]
        if member.stopped:
            self.late_reports += 1
            return Decision(Verdict.STOP, {"rule": "late report"})
        if member.ended:
            self._come_back(trial_id, member)
        if time is None:
            return CONTINUE
        if time >= self.max_t and self.stop_last_trials:
            return self._end(trial_id, member, score)
        bracket = member.bracket
        if not bracket.is_awaited(trial_id):  # the trial should be paused, but runs again
            return self._late(time, bracket)
        if score is None or time < bracket.level or time <= member.time:
            return CONTINUE
        if bracket.is_last_round:
            return CONTINUE if member.at_end else self._let_run_on(member)
        member.time = time
        # The trial may run again without a call of `on_trial_resume`, for example after a failure while
        # pausing.
        self._take_promotion(trial_id)
        bracket.record(trial_id, score)
        place = {"bracket": bracket.number, "rung": bracket.level, "budget": bracket.budget}
        reason = {"rule": "milestone", **place, "awaits": bracket.awaits}
        judgement = self._settle(bracket, trial_id)
        if judgement is not None and trial_id not in judgement.went:
            return Decision(Verdict.STOP, self._reason(bracket, judgement, trial_id))
        return Decision(Verdict.PAUSE, reason)

    def _end(self, trial_id: str, member: _Member, score: float | None) -> Decision:
        """Stop a trial at `max_t`, even if the trial skipped levels.

        Its score counts if its round waits for the trial.
        """
        member.stopped = True
        bracket = member.bracket
        if score is not None and bracket.is_awaited(trial_id):
            bracket.record(trial_id, score)
        bracket.leave(trial_id)
        self._settle(bracket)
        reason = {"rule": "max_t", "max_t": self.max_t, "bracket": bracket.number}
        # A searcher can't learn from a report without a score. The reason of the decision on this report has
        # no "budget", so that the searcher ignores the report.
        return Decision(Verdict.STOP, reason if score is None else {**reason, "budget": self._top})

    def _let_run_on(self, member: _Member) -> Decision:
        member.at_end = True
        reason = {"rule": "max_t", "max_t": self.max_t, "bracket": member.bracket.number, "budget": self._top}
        return Decision(Verdict.CONTINUE, reason)

    def _late(self, time: float, bracket: Bracket) -> Decision:
        """Judge a report of a trial that should be paused, but runs again, for example after a failure."""
        if time < bracket.level:
            return CONTINUE
        self.late_reports += 1
        return Decision(Verdict.PAUSE, {"rule": "waits", "bracket": bracket.number, "rung": bracket.level})

    def _settle(self, bracket: Bracket, reporter: str | None = None) -> Judgement | None:
        """Judge a complete round. Queue a stop for each loser except `reporter`, which the caller stops."""
        judgement = bracket.judge()
        if judgement is None:
            return None
        # The reporting trial is promoted first, because its process is still running and can continue.
        for trial_id in sorted(judgement.went, key=lambda each: each != reporter):
            reason = self._reason(bracket, judgement, trial_id)
            self._promoted.setdefault(bracket.number, {})[trial_id] = reason
        for trial_id in judgement.fell:
            self._members[trial_id].stopped = True
            if trial_id != reporter:
                reason = self._reason(bracket, judgement, trial_id)
                self._verdicts.append((trial_id, Decision(Verdict.STOP, reason)))
        return judgement

    def _reason(self, bracket: Bracket, judgement: Judgement, trial_id: str) -> dict[str, Any]:
        return {
            "rule": "rung",
            "bracket": bracket.number,
            "rung": judgement.level,
            "budget": judgement.budget,
            "rank": judgement.ranks[trial_id],
            "entries": len(judgement.ranks),
            "places": judgement.places,
            "cutoff": -judgement.cutoff if self.mode == "min" else judgement.cutoff,
        }

    # --- pauses -----------------------------------------------------------------------------------

    def verdicts(self) -> Sequence[tuple[str, Decision]]:
        taken, self._verdicts = self._verdicts, []
        return taken

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        """Choose a trial of the earliest bracket that has one: a pending trial, or else the best promoted
        trial.
        """
        first = pending[0] if pending else None
        for number in sorted(self._promoted):
            if first is not None and self._members[first].bracket.number <= number:
                return first
            for trial_id in self._promoted[number]:
                if trial_id in paused:
                    return trial_id
        return first

    @property
    def pauses(self) -> bool:
        return True

    def why_not_chosen(self, trial_id: str) -> Mapping[str, Any]:
        bracket = self._members[trial_id].bracket
        promoted = self._promoted.get(bracket.number, {}).get(trial_id)
        if promoted is not None:
            return {**promoted, "rule": "not chosen", "due": True}
        standing = bracket.standing(trial_id)
        if standing is None:
            return {}
        rank, entries = standing
        place = {"bracket": bracket.number, "rung": bracket.level, "budget": bracket.budget}
        return {"rule": "not chosen", **place, "rank": rank, "entries": entries, "awaits": bracket.awaits}

    def on_trial_resume(self, trial_id: str) -> Mapping[str, Any]:
        return self._take_promotion(trial_id)

    def _take_promotion(self, trial_id: str) -> Mapping[str, Any]:
        number = self._members[trial_id].bracket.number
        waiting = self._promoted.get(number, {})
        reason = waiting.pop(trial_id, {})
        if not waiting:
            self._promoted.pop(number, None)
        return reason


class HyperBandForBOHB(HyperBandScheduler):
    """`HyperBandScheduler` under the name that Ray uses with the searcher `TuneBOHB`.

    The searcher suggests the trials of a bracket one by one, as workers become free, from all results known
    at that time. The searcher receives each trial's result at a level once, whether the trial continues or
    not. The decision's reason contains `budget`, the level's index among the levels of all brackets.

    In Ray, this class differs from `HyperBandScheduler` in two points: the widest bracket comes first, and
    trials pause before their bracket is full. In trainkit, both classes behave in this way.
    """

    label: ClassVar[str] = "BOHB's HyperBand"


# --- wording of decisions ----------------------------------------------------------------------------


@words_of("milestone")
def _milestone_words(reason: Facts) -> str:
    awaits = reason["awaits"]
    waits = f"waits for {awaits} more trial{'s' * (awaits != 1)}" if awaits else "the last to reach the rung"
    return f"{place_words(reason)}, {waits}"
