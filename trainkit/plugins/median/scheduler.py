"""The median stopping rule: a trial ends once its best score is worse than the median of the other trials.

Source: Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, automated early
stopping. By default, as in Ray Tune, a trial is compared with all other trials that have reached the same
time, not only with completed trials.

Larger scores are better; minus infinity replaces a score that is not a number. All trials share one array of
times and one array of scores. In both arrays, each trial has a row with spare capacity. So a time is searched
in ten thousand rows by a few operations on whole arrays.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainkit.tune.core.checks import require_number, require_one_of, require_whole
from trainkit.tune.schedulers.base import (
    CONTINUE,
    NO_CONFIG,
    Decision,
    Facts,
    TrialScheduler,
    Verdict,
    words_of,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FIRST_ROOM = 4


class Timelines:
    """Rows of values with ascending times; rows are numbered from 0 in the order of their creation."""

    def __init__(self) -> None:
        self._times: Floats = np.empty(64)
        self._values: Floats = np.empty(64)
        self._used = 0
        self._rows = 0
        # These arrays store the start, length and capacity of each row.
        self._start: Integers = np.zeros(16, np.int64)
        self._count: Integers = np.zeros(16, np.int64)
        self._room: Integers = np.zeros(16, np.int64)

    def begin(self) -> int:
        """Begin an empty row; return its number."""
        if self._rows == len(self._start):
            self._start, self._count, self._room = map(_longer, (self._start, self._count, self._room))
        self._rows += 1
        return self._rows - 1

    def append(self, row: int, time: float, value: float) -> None:
        """Append a value to a row; `time` must be above all times of the row."""
        count = int(self._count[row])
        if count == self._room[row]:
            self._move(row, max(FIRST_ROOM, 2 * count))
        place = int(self._start[row]) + count
        self._times[place] = time
        self._values[place] = value
        self._count[row] = count + 1

    def _move(self, row: int, room: int) -> None:
        while self._used + room > len(self._times):
            self._times, self._values = _longer(self._times), _longer(self._values)
        old, new, count = int(self._start[row]), self._used, int(self._count[row])
        self._times[new : new + count] = self._times[old : old + count]
        self._values[new : new + count] = self._values[old : old + count]
        self._start[row], self._room[row] = new, room
        self._used += room

    def at(self, row: int, time: float) -> float | None:
        """Return the last value of a row at or before `time`; None: all values of the row are later."""
        start, count = int(self._start[row]), int(self._count[row])
        place = int(np.searchsorted(self._times[start : start + count], time, side="right"))
        return float(self._values[start + place - 1]) if place else None

    def all_at(self, time: float, rows: Integers) -> Floats:
        """Return the last value at or before `time` of each row in `rows` that has such a value, in order."""
        start = self._start[rows]
        below, above = np.zeros(len(rows), np.int64), self._count[rows]
        # A binary search runs in all rows at once. The number of halvings is enough for the longest row; the
        # search in a shorter row ends earlier and then changes nothing.
        for _ in range(int(above.max(initial=0)).bit_length()):
            middle = (below + above) >> 1
            open_ = below < above
            early = open_ & (self._times[np.where(open_, start + middle, 0)] <= time)
            below = np.where(early, middle + 1, below)
            above = np.where(open_ & ~early, middle, above)
        some = below > 0
        found: Floats = self._values[start[some] + below[some] - 1]
        return found


def _longer(column: NDArray[Any], fill: float = 0) -> NDArray[Any]:
    """Return the column at twice its length, filled up with `fill`."""
    return np.concatenate((column, np.full_like(column, fill)))


class Standings:
    """Reports of all trials, and the scores of all trials at any time.

    A time that is queried twice gets its own sorted list; whole numbers are usually queried several times.
    Each list is kept up to date, so later queries need one lookup, for any number of trials. A time that is
    queried only once needs a search in all trials' reports; times in seconds are usually queried once.

    Args:
        since: time from which on reports count in averages.
        averaged: True scores a trial by the average of its reports, False by its latest report.
    """

    def __init__(self, since: float, *, averaged: bool) -> None:
        self._since = since
        self._averaged = averaged
        self._rows: dict[str, int] = {}
        self._timelines = Timelines()
        self._best: list[float] = []
        # Each row has a pair: the trial's current score and its number of counted reports.
        self._last: list[tuple[float, int]] = []
        self._latest = np.full(16, -math.inf)
        self._members = np.zeros(16, bool)
        self._asked: set[float] = set()
        self._listed_times: list[float] = []
        self._listed: dict[float, array[float]] = {}

    def add(self, trial_id: str, *, member: bool) -> None:
        """Add a trial without reports. Other trials are compared with this trial only once it is a member."""
        row = self._rows[trial_id] = self._timelines.begin()
        if row == len(self._latest):
            self._latest, self._members = _longer(self._latest, -math.inf), _longer(self._members)
        self._members[row] = member
        self._best.append(-math.inf)
        self._last.append((-math.inf, 0))

    def best(self, trial_id: str) -> float:
        """Return the best score among all reports of a trial."""
        return self._best[self._rows[trial_id]]

    def latest(self, trial_id: str) -> float:
        """Return the time of a trial's last report; minus infinity: no report yet."""
        return float(self._latest[self._rows[trial_id]])

    def record(self, trial_id: str, time: float, score: float) -> None:
        """Add a report, which must be later than all earlier reports of this trial."""
        row = self._rows[trial_id]
        before = float(self._latest[row])
        self._latest[row] = time
        self._best[row] = max(self._best[row], score)
        if time < self._since:
            return
        last, count = self._last[row]
        value = _average(last, score, count + 1) if self._averaged and count else score
        self._last[row] = value, count + 1
        self._timelines.append(row, time, value)
        if self._members[row]:
            self._list(row, before)

    def join(self, trial_id: str) -> None:
        """Make a trial a member, so that other trials are compared with all of its reports."""
        row = self._rows[trial_id]
        if not self._members[row]:
            self._members[row] = True
            self._list(row, -math.inf)

    def _list(self, row: int, before: float) -> None:
        """Insert a member's score into the list of each time after `before` that the member has reached."""
        times, latest = self._listed_times, float(self._latest[row])
        for time in times[bisect_right(times, before) : bisect_right(times, latest)]:
            if (value := self._timelines.at(row, time)) is not None:
                insort(self._listed[time], value)

    def at(self, time: float) -> Sequence[float]:
        """Return the scores at `time` of the members that have reported at `time` or later, worst first."""
        if (listed := self._listed.get(time)) is not None:
            return listed
        rows = len(self._rows)
        among = np.flatnonzero(self._members[:rows] & (self._latest[:rows] >= time))
        found = array("d", np.sort(self._timelines.all_at(time, among)).tobytes())
        if time in self._asked:
            self._asked.remove(time)
            self._listed_times.insert(bisect_left(self._listed_times, time), time)
            self._listed[time] = found
        else:
            self._asked.add(time)
        return found


def _average(before: float, score: float, count: int) -> float:
    """Return the average of `count` numbers: `score` is the last, and `before` the average of the others.

    The average of equal numbers is exactly that number, so that ties remain ties.
    """
    if before == -math.inf or score == -math.inf:
        return -math.inf
    change = score - before
    if math.isfinite(change):
        return before + change / count
    return before + (score / count - before / count)


def median(ascending: Sequence[float]) -> float:
    """Return the middle of sorted numbers, or the average of the two middle numbers."""
    middle = len(ascending) // 2
    if len(ascending) % 2:
        return ascending[middle]
    below, above = ascending[middle - 1], ascending[middle]
    return below if below == above else below / 2 + above / 2


POOLS = ("all", "completed")
COMPARED = ("average", "value")


class MedianStoppingRule(TrialScheduler):
    """Stop a trial whose best score is strictly worse than the median running average of the other trials.

    A trial is judged at each report from `grace_period` on, against the other trials that have reported at
    this time or later. Each other trial is represented by the average of its reports from `grace_period` up
    to this time. NaN, or an average with NaN, is the worst score. A report is ignored if its time is not
    above all earlier times of its trial, for example if the report is repeated after a restore.

    Args:
        time_attr: name of the reported value that counts the resource spent; the value must not decrease.
        metric: name of the reported value to judge trials by; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
        grace_period: first time, in units of `time_attr`, at which trials are judged and averages begin.
        min_samples_required: a trial is judged only if it can be compared with at least this number of other
            trials.
        min_time_slice: running time, in units of `time_attr`, after which a trial pauses in favour of waiting
            trials, if too few other trials exist for a judgement. Trials that pause need checkpoints. With 0,
            trials do not pause.
        hard_stop: False pauses losing trials instead of stopping them. Paused losers resume when no other
            trial needs their resources, and are not judged again. Losers need checkpoints.
        pool: "all" compares a trial with all other trials. "completed", as in the paper, compares it only
            with trials that have ended for a reason other than this rule.
        compare: "average" compares with the running averages of other trials, "value" with their values at
            the same time or the last time before it. "value" with the pool "completed" is Optuna's rule.

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
        words = f"a number of at least 0, in units of {time_attr}"
        require_number("grace_period", grace_period, words, least=0)
        require_number("min_time_slice", min_time_slice, words, least=0)
        require_whole("min_samples_required", min_samples_required, 1)
        require_one_of("pool", pool, POOLS)
        require_one_of("compare", compare, COMPARED)
        self.grace_period = grace_period
        self.min_samples_required = min_samples_required
        self.min_time_slice = min_time_slice
        self.hard_stop = hard_stop
        self.pool = pool
        self.compare = compare
        self._standings = Standings(grace_period, averaged=compare == "average")
        self._ended: set[str] = set()
        self._losers: set[str] = set()
        # Each trial id maps to the time of the trial's last pause in favour of waiting trials.
        self._slices: dict[str, float] = {}
        # The keys of these dictionaries are the paused trials, in the order of their pauses.
        self._made_way: dict[str, None] = {}
        self._set_aside: dict[str, None] = {}

    @property
    def first_judgement(self) -> float:
        return self.grace_period

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        self._standings.add(trial_id, member=self.pool == "all")

    # --- judging ----------------------------------------------------------------------------------

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        if self.hard_stop and trial_id in self._losers:
            return Decision(Verdict.STOP, {"rule": "late report"})
        if time is None or score is None or trial_id in self._ended:
            return CONTINUE
        if not time > self._standings.latest(trial_id) or not math.isfinite(time):
            return CONTINUE
        # The report is recorded only after the comparison, so that the trial is not compared with itself.
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
        """Decide on a trial that can't be judged yet: pause it if its time slice is over, or continue."""
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
        # A loser that was paused, resumed and then ended by itself counts as completed; a loser that was
        # stopped does not count.
        if not (self.hard_stop and trial_id in self._losers):
            self._standings.join(trial_id)

    def on_trial_error(self, trial_id: str) -> None:
        self._leave(trial_id)

    def _leave(self, trial_id: str) -> None:
        self._ended.add(trial_id)
        self._made_way.pop(trial_id, None)
        self._set_aside.pop(trial_id, None)


# --- wording of decisions ----------------------------------------------------------------------------


words_of("median")("best {best:.6g} at {time:g}, median {median:.6g} of {others} other trials".format_map)


@words_of("time slice")
def _time_slice_words(reason: Facts) -> str:
    if "needed" not in reason:
        return "next time slice"
    return (
        f"slice ends at {reason['time']:g}, reached by {reason['others']} of {reason['needed']} needed trials"
    )


words_of("losers last")("no other trial is waiting".format_map)
