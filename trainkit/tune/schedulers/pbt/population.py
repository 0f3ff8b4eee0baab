"""The members of a population: what each has reached, and when its next turn to be judged is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Mark = tuple[int, float]
"""How many intervals a member has been judged at, and the time that it has reached."""


@dataclass(slots=True)
class Member:
    """What is known of one trial.

    Attributes:
        trial_id: its own.
        config: its configuration now.
        time: that it has reached.
        intervals: of these it has been judged after so many; a jump over several counts all.
        score: when it was judged last, larger is better; None: not yet.
        arrival: which of all judgements that was.
        active: False once it has ended.
        paused: which of all pauses it waits in; None: it isn't paused.
        inherited: True from an exploit until the next judgement: its score is that of other weights.
        offered: where each donor stood when the member was last told to exploit.
        change: where the donor stood whose state it has had since its last report.
    """

    trial_id: str
    config: Mapping[str, Any]
    time: float = 0.0
    intervals: int = 0
    score: float | None = None
    arrival: int = -1
    active: bool = True
    paused: int | None = None
    inherited: bool = False
    offered: dict[str, Mark] = field(default_factory=dict)
    change: Mark | None = None

    @property
    def mark(self) -> Mark:
        """Where it stands."""
        return self.intervals, self.time


class Population:
    """All members, by trial id, in the order in which they were added.

    Args:
        interval: from one judgement to the next.
        burn_in: before it nobody is judged.
    """

    def __init__(self, interval: float, burn_in: float) -> None:
        self.by_id: dict[str, Member] = {}
        self._interval = interval
        self.first = max(1, math.ceil(burn_in / interval - 1e-9))
        """The first judgement comes after so many intervals: at or after the burn-in."""
        self._arrivals = 0
        self._pauses = 0

    def __getitem__(self, trial_id: str) -> Member:
        return self.by_id[trial_id]

    def __len__(self) -> int:
        return len(self.by_id)

    def active(self) -> Iterator[Member]:
        """Those that have not ended."""
        return (member for member in self.by_id.values() if member.active)

    def reached(self, time: float) -> int:
        """How many whole intervals lie before `time`; what rounding takes off doesn't count."""
        return math.floor(time / self._interval + 1e-9)

    def advance(self, member: Member, time: float) -> int:
        """A member reports at `time`; return how many intervals it has reached by that.

        After an exploit the time may be the donor's, where it comes with the state, or its own, where it
        counts what was reported: one that has fallen, or is past the donor's, is the donor's.
        """
        if member.change is not None:
            intervals, donor_time = member.change
            if time <= member.time or member.time < donor_time < time:
                member.intervals, member.time = intervals, time
            member.change = None
        member.time = max(member.time, time)
        return self.reached(time)

    def judge(self, member: Member, intervals: int, score: float) -> None:
        """Take a score for the population to rank."""
        member.intervals, member.score, member.inherited = intervals, score, False
        member.arrival = self._arrivals
        self._arrivals += 1

    def pause(self, member: Member) -> None:
        """A member waits from now on, behind those of the same time that wait already."""
        member.paused = self._pauses
        self._pauses += 1

    def scores(self, shuffle: Callable[[int], Any] | None = None) -> list[tuple[str, float]]:
        """Of the active members that have been judged, in order of arrival, or as `shuffle` has it."""
        judged = [(m.arrival, m.trial_id, m.score) for m in self.active() if m.score is not None]
        judged.sort()
        order = range(len(judged)) if shuffle is None else shuffle(len(judged))
        return [(judged[place][1], judged[place][2]) for place in order]
