"""Members of a population, their barrier, and its best and worst quantile.

Source: Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846, section 4
(truncation selection).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Mark = tuple[int, float]
"""How many intervals a member has been judged at, and the time that it has reached."""


@dataclass(slots=True)
class Member:
    """Progress of one trial as a member of the population.

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

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_id.values())

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


class Barrier:
    """Meeting point at which all members of a population wait to be judged together.

    Args:
        members: the population; those that have ended are not waited for.

    Attributes:
        target: after how many intervals it stands.
    """

    def __init__(self, members: Population) -> None:
        self._members = members
        self._arrived: dict[str, None] = {}
        self.target = members.first

    def __contains__(self, trial_id: str) -> bool:
        """Return True if a member waits here."""
        return trial_id in self._arrived

    def __len__(self) -> int:
        """How many wait here."""
        return len(self._arrived)

    def arrive(self, member: Member) -> None:
        """A member waits from now on."""
        self._arrived[member.trial_id] = None

    def leave(self, member: Member) -> None:
        """A member has ended, wherever it was."""
        self._arrived.pop(member.trial_id, None)

    def take_back(self, member: Member) -> None:
        """A member that had ended goes on: nobody waits for it where it has been judged before."""
        if not self._arrived:
            self.target = max(self.target, member.intervals + 1)

    @property
    def all_came(self) -> bool:
        """Return True if all members that have not ended wait here, and at least one does."""
        return bool(self._arrived) and all(each.trial_id in self._arrived for each in self._members.active())

    def open(self) -> Iterator[Member]:
        """Let all go that wait, in the order of the population; nothing may depend on who came when."""
        waited, self._arrived = self._arrived, {}
        # Past the one that has come furthest: a long report must not leave the others behind for good.
        self.target = max(self._members[trial_id].intervals for trial_id in waited) + 1
        return (member for member in self._members if member.trial_id in waited)


def quantile_size(members: int, fraction: float) -> int:
    """How many members each quantile has: ceil(members * fraction), at most half of them; 0 for one alone.

    A product that is above a whole number by rounding only counts as that number: 10 * 0.3 is 3.
    """
    return min(math.ceil(members * fraction - 1e-9), members // 2) if members > 1 else 0


@dataclass(frozen=True)
class Quantiles:
    """A population that was ranked.

    Attributes:
        ranked: members with a score that counts, best first.
        lower: of these the worst, and then those whose score doesn't count.
        upper: of these the best, best first.
    """

    ranked: tuple[str, ...]
    lower: frozenset[str]
    upper: tuple[str, ...]

    def rank(self, member: str) -> int | None:
        """From 1; None for a member whose score doesn't count."""
        return self.ranked.index(member) + 1 if member in self.ranked else None


def quantiles(scores: Sequence[tuple[str, float]], fraction: float) -> Quantiles:
    """Rank a population.

    Args:
        scores: members with their scores, larger is better; of equal ones the first ranks before. One of
            minus infinity doesn't count: its member is ranked nowhere and is in the lower quantile as soon
            as any other one's counts.
        fraction: of the population that each quantile takes, 0 to 0.5; with 0 both are empty.
    """
    finite = [(member, score) for member, score in scores if score > -math.inf]
    ranked = tuple(member for member, _ in sorted(finite, key=lambda pair: -pair[1]))
    lost = [member for member, score in scores if not score > -math.inf]
    size = quantile_size(len(ranked), fraction)
    if not fraction or not ranked:
        return Quantiles(ranked, frozenset(), ())
    upper = ranked[: max(size, 1)] if lost or size else ()
    return Quantiles(ranked, frozenset([*ranked[len(ranked) - size :], *lost]), upper)
