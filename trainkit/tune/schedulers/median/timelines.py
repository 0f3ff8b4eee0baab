"""Rows of numbers against ascending times, which grow one by one and are searched all at once.

All rows lie in one array, each with room to grow; a row that is full moves to a place twice as long. So
a search for one time in ten thousand rows is a few operations on whole arrays, not ten thousand searches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FIRST_ROOM = 4


class Timelines:
    """See the module. Rows are numbered from 0 in the order in which they were begun."""

    def __init__(self) -> None:
        self._times: Floats = np.empty(64)
        self._values: Floats = np.empty(64)
        self._used = 0
        self._rows = 0
        # Of each row: where it lies, how many numbers it has, and how many it has room for.
        self._start: Integers = np.zeros(16, np.int64)
        self._count: Integers = np.zeros(16, np.int64)
        self._room: Integers = np.zeros(16, np.int64)

    def begin(self) -> int:
        """Begin an empty row; return its number."""
        if self._rows == len(self._start):
            more = np.zeros_like(self._start)
            self._start, self._count, self._room = (
                np.concatenate((column, more)) for column in (self._start, self._count, self._room)
            )
        self._rows += 1
        return self._rows - 1

    def append(self, row: int, time: float, value: float) -> None:
        """Add a number to a row; `time` is above all that it has."""
        count = int(self._count[row])
        if count == self._room[row]:
            self._move(row, max(FIRST_ROOM, 2 * count))
        place = int(self._start[row]) + count
        self._times[place] = time
        self._values[place] = value
        self._count[row] = count + 1

    def _move(self, row: int, room: int) -> None:
        while self._used + room > len(self._times):
            self._times = np.concatenate((self._times, np.empty_like(self._times)))
            self._values = np.concatenate((self._values, np.empty_like(self._values)))
        old, new, count = int(self._start[row]), self._used, int(self._count[row])
        self._times[new : new + count] = self._times[old : old + count]
        self._values[new : new + count] = self._values[old : old + count]
        self._start[row], self._room[row] = new, room
        self._used += room

    def at(self, row: int, time: float) -> float | None:
        """The last number of a row at `time` or before; None: it has none so early."""
        start, count = int(self._start[row]), int(self._count[row])
        place = int(np.searchsorted(self._times[start : start + count], time, side="right"))
        return float(self._values[start + place - 1]) if place else None

    def all_at(self, time: float, rows: Integers) -> Floats:
        """The same of each of `rows` that has a number so early, in their order."""
        start = self._start[rows]
        below, above = np.zeros(len(rows), np.int64), self._count[rows]
        # So many halvings find the place in the longest row; shorter ones stay where they have ended.
        for _ in range(int(above.max(initial=0)).bit_length()):
            middle = (below + above) >> 1
            open_ = below < above
            early = open_ & (self._times[np.where(open_, start + middle, 0)] <= time)
            below = np.where(early, middle + 1, below)
            above = np.where(open_ & ~early, middle, above)
        some = below > 0
        found: Floats = self._values[start[some] + below[some] - 1]
        return found
