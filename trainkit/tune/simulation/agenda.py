"""What is going to happen, in the order in which it will: the virtual clock."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Kind(IntEnum):
    """What comes first where several things happen at one time."""

    FINISH = 0
    FAILURE = 1
    START = 2


FINISH, FAILURE, START = Kind.FINISH, Kind.FAILURE, Kind.START


class Agenda(Generic[T]):
    """A heap by (time, kind, when it was put there).

    Attributes:
        now: the virtual time, in seconds; it moves when something is taken, and never back.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, int, T]] = []
        self._number = 0

    def put(self, time: float, kind: Kind, what: T) -> None:
        """Let `what` happen at `time`, which is not before now."""
        self._number += 1
        heapq.heappush(self._heap, (time, kind, self._number, what))

    @property
    def next_time(self) -> float | None:
        """When the next thing happens; None: nothing will."""
        return self._heap[0][0] if self._heap else None

    def take(self) -> list[T]:
        """Return what happens next, all of one moment: finishes and failures, or else starts.

        Together, as whoever looks for work looks at all that is known by then.
        """
        heap = self._heap
        time, first, _, what = heapq.heappop(heap)
        self.now = time
        batch = [what]
        starts = first is START
        while heap and heap[0][0] == time and (heap[0][1] is START) is starts:
            batch.append(heapq.heappop(heap)[3])
        return batch

    def wait_until(self, time: float) -> None:
        """Let time pass in which nothing happens."""
        self.now = max(self.now, time)
