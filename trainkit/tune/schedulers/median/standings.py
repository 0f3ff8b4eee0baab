"""How trials stood at any time: by their running averages, or their last values, and the median of those.

Scores are larger is better; minus infinity is a report that was no number.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import numpy as np

from trainkit.tune.schedulers.median.timelines import Timelines


class Standings:
    """What trials have reported, each report once and in order of a trial's time, and how they stood.

    A time that is asked about again, as whole numbers are, gets a sorted list of its own, kept up to
    date: an answer is then one look, with any number of trials. A time asked about once, as seconds are,
    costs a search in all trials' reports.

    Args:
        since: averages begin with the first report at this time or later.
        averaged: whether a trial stands by the average of its reports, or by its latest alone.
    """

    def __init__(self, since: float, *, averaged: bool) -> None:
        self._since = since
        self._averaged = averaged
        self._rows: dict[str, int] = {}
        self._timelines = Timelines()
        self._best: list[float] = []
        self._last: list[tuple[float, int]] = []  # how it stands now, and by how many reports
        self._latest = np.full(16, -math.inf)
        self._members = np.zeros(16, bool)
        self._asked: set[float] = set()
        self._listed_times: list[float] = []
        self._listed: dict[float, array[float]] = {}

    def add(self, trial_id: str, *, member: bool) -> None:
        """Take in a trial that has reported nothing yet; others are judged by it only as a member."""
        row = self._rows[trial_id] = self._timelines.begin()
        if row == len(self._latest):
            self._latest = np.concatenate((self._latest, np.full_like(self._latest, -math.inf)))
            self._members = np.concatenate((self._members, np.zeros_like(self._members)))
        self._members[row] = member
        self._best.append(-math.inf)
        self._last.append((-math.inf, 0))

    def __contains__(self, trial_id: str) -> bool:
        return trial_id in self._rows

    def best(self, trial_id: str) -> float:
        """The best score of a trial, of all its reports."""
        return self._best[self._rows[trial_id]]

    def latest(self, trial_id: str) -> float:
        """Time of a trial's last report; minus infinity: none yet."""
        return float(self._latest[self._rows[trial_id]])

    def record(self, trial_id: str, time: float, score: float) -> None:
        """Take in a report, later than all that this trial has made."""
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
        """Judge others by this trial from now on, with all that it has reported."""
        row = self._rows[trial_id]
        if not self._members[row]:
            self._members[row] = True
            self._list(row, -math.inf)

    def _list(self, row: int, before: float) -> None:
        """Enter a trial into the lists of times after `before` that it has reached."""
        times, latest = self._listed_times, float(self._latest[row])
        for time in times[bisect_right(times, before) : bisect_right(times, latest)]:
            if (value := self._timelines.at(row, time)) is not None:
                insort(self._listed[time], value)

    def at(self, time: float) -> Sequence[float]:
        """How the members that have reported at `time` or later stood then, worst first."""
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
    """The average of `count` numbers: `before` is that of all but the last, which is `score`.

    The average of equal numbers is exactly that number, so that a tie stays one.
    """
    if before == -math.inf or score == -math.inf:
        return -math.inf
    change = score - before
    if math.isfinite(change):
        return before + change / count
    return before + (score / count - before / count)


def median(ascending: Sequence[float]) -> float:
    """Return the middle of sorted numbers, or the average of the two in the middle."""
    middle = len(ascending) // 2
    if len(ascending) % 2:
        return ascending[middle]
    below, above = ascending[middle - 1], ascending[middle]
    return below if below == above else below / 2 + above / 2
