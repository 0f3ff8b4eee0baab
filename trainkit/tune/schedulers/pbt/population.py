"""Members of a population, the barrier at which members wait, and the best and worst quantile.

Source: Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846, section 4
(truncation selection).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Mark = tuple[int, float]
"""A member's number of intervals at its last judgement, and the time that the member has reached."""


@dataclass(slots=True)
class Member:
    """Progress of one trial as a member of the population.

    Attributes:
        trial_id: id of the trial.
        config: the trial's current configuration.
        time: value of `time_attr` that the trial has reached.
        intervals: number of whole perturbation intervals at the trial's last judgement; a report may jump
            over several intervals.
        score: score at the trial's last judgement, larger is better; None: not judged yet.
        arrival: sequence number of the trial's last judgement among all trials' judgements.
        active: False once the trial has ended.
        paused: sequence number of the trial's current pause among all trials' pauses; None: not paused.
        inherited: True between a takeover of a donor's state and the next judgement. During this time,
            `score` belongs to the weights before the takeover.
        offered: intervals and time of each donor, by the donor's trial id, at the last decision that offered
            donors to the trial.
        change: intervals and time of the donor whose state the trial has taken over since its last report, or
            None.
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
        """The member's number of intervals at its last judgement, and its time."""
        return self.intervals, self.time


class Population:
    """All members of a population, by trial id, in the order in which they were added.

    Args:
        interval: time between judgements.
        burn_in: time before which no member is judged.
    """

    def __init__(self, interval: float, burn_in: float) -> None:
        self.by_id: dict[str, Member] = {}
        self._interval = interval
        self.first = max(1, math.ceil(burn_in / interval - 1e-9))
        """Number of intervals at the first judgement, which is at or after the burn-in."""
        self._arrivals = 0
        self._pauses = 0

    def __getitem__(self, trial_id: str) -> Member:
        return self.by_id[trial_id]

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_id.values())

    def active(self) -> Iterator[Member]:
        """Return the members that have not ended."""
        return (member for member in self.by_id.values() if member.active)

    def reached(self, time: float) -> int:
        """Return the number of whole intervals in `time`, tolerant of rounding errors."""
        return math.floor(time / self._interval + 1e-9)

    def advance(self, member: Member, time: float) -> int:
        """Record a member's report at `time`; return the number of whole intervals in `time`.

        After a takeover, `time` counts from the donor's time if the donor's state contains a time, or else
        from the member's own time. This method assumes that `time` counts from the donor's time if `time` has
        not increased, or has jumped past the donor's time.
        """
        if member.change is not None:
            intervals, donor_time = member.change
            if time <= member.time or member.time < donor_time < time:
                member.intervals, member.time = intervals, time
            member.change = None
        member.time = max(member.time, time)
        return self.reached(time)

    def judge(self, member: Member, intervals: int, score: float) -> None:
        """Record a member's score, by which the member is ranked."""
        member.intervals, member.score, member.inherited = intervals, score, False
        member.arrival = self._arrivals
        self._arrivals += 1

    def pause(self, member: Member) -> None:
        """Mark a member as paused; among members with equal times, the first to pause resumes first."""
        member.paused = self._pauses
        self._pauses += 1

    def scores(self, shuffle: Callable[[int], Any] | None = None) -> list[tuple[str, float]]:
        """Return the scores of the active members that were judged, in the order of judgement, or in the
        random order of `shuffle`.
        """
        judged = [(m.arrival, m.trial_id, m.score) for m in self.active() if m.score is not None]
        judged.sort()
        order = range(len(judged)) if shuffle is None else shuffle(len(judged))
        return [(judged[place][1], judged[place][2]) for place in order]


class Barrier:
    """Synchronization point at which all members of a population wait to be judged together.

    Args:
        members: the population; the barrier does not wait for ended members.

    Attributes:
        target: number of intervals after which the members wait.
    """

    def __init__(self, members: Population) -> None:
        self._members = members
        self._arrived: dict[str, None] = {}
        self.target = members.first

    def __contains__(self, trial_id: str) -> bool:
        """Return True if a member waits at the barrier."""
        return trial_id in self._arrived

    def __len__(self) -> int:
        """Return the number of waiting members."""
        return len(self._arrived)

    def arrive(self, member: Member) -> None:
        """Add a waiting member."""
        self._arrived[member.trial_id] = None

    def leave(self, member: Member) -> None:
        """Remove an ended member, which may wait at the barrier."""
        self._arrived.pop(member.trial_id, None)

    def take_back(self, member: Member) -> None:
        """Accept an ended member that runs again; a barrier at which no member waits moves past the member's
        last judgement.
        """
        if not self._arrived:
            self.target = max(self.target, member.intervals + 1)

    @property
    def all_came(self) -> bool:
        """True if at least one member waits, and all members that have not ended wait."""
        return bool(self._arrived) and all(each.trial_id in self._arrived for each in self._members.active())

    def open(self) -> Iterator[Member]:
        """Release the waiting members in the population's order, whatever the order of their arrivals."""
        waited, self._arrived = self._arrived, {}
        # The barrier moves past the furthest member, so that a report that jumps over several intervals does
        # not separate members.
        self.target = max(self._members[trial_id].intervals for trial_id in waited) + 1
        return (member for member in self._members if member.trial_id in waited)


def quantile_size(members: int, fraction: float) -> int:
    """Return the size of each quantile: ceil(members * fraction), at most half; 0 for a single member.

    Rounding errors are removed first: 10 * 0.3 counts as 3, although the product of the two floats may be
    slightly larger.
    """
    return min(math.ceil(members * fraction - 1e-9), members // 2) if members > 1 else 0


@dataclass(frozen=True)
class Quantiles:
    """A ranked population.

    Attributes:
        ranked: members with a finite score, best first.
        lower: the worst of the ranked members, and all members without a finite score.
        upper: the best of the ranked members, best first.
    """

    ranked: tuple[str, ...]
    lower: frozenset[str]
    upper: tuple[str, ...]

    def rank(self, member: str) -> int | None:
        """Return a member's rank, from 1; None if the member has no finite score."""
        return self.ranked.index(member) + 1 if member in self.ranked else None


def quantiles(scores: Sequence[tuple[str, float]], fraction: float) -> Quantiles:
    """Rank a population.

    Args:
        scores: members with their scores, larger is better; the first of equal scores ranks higher. A member
            with a score of minus infinity is not ranked, and is in the lower quantile as soon as another
            member has a finite score.
        fraction: fraction of the population in each quantile, 0 to 0.5; with 0 both quantiles are empty.
    """
    finite = [(member, score) for member, score in scores if score > -math.inf]
    ranked = tuple(member for member, _ in sorted(finite, key=lambda pair: -pair[1]))
    lost = [member for member, score in scores if not score > -math.inf]
    size = quantile_size(len(ranked), fraction)
    if not fraction or not ranked:
        return Quantiles(ranked, frozenset(), ())
    upper = ranked[: max(size, 1)] if lost or size else ()
    return Quantiles(ranked, frozenset([*ranked[len(ranked) - size :], *lost]), upper)
