"""Brackets of Hyperband: their sizes, and one bracket's members and promotions.

All trials of a bracket go to a level. When each has reached it, or has ended, the best of them go to the
next. No logarithm is taken: log(243)/log(3) is 4.999..., and the widest bracket would be lost.

Sources: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016; Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR
18(185), 2018, Algorithm 1. For R=81 and eta=3 the paper contradicts itself: its pseudocode gives brackets of
81, 34, 15, 8 and 5 trials, its example table 81, 27, 9, 6 and 5. These are the pseudocode's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainkit.tune.schedulers.halving.rungs import bracket_count, bracket_sizes


@dataclass(frozen=True)
class BracketPlan:
    """A bracket before any trial is in it.

    Attributes:
        size: how many trials it takes.
        levels: where they are judged, in units of time; at the last, `max_t`, they end.
        lowest: place of the first of these among the levels of all brackets, from 0.
    """

    size: int
    levels: tuple[float, ...]
    lowest: int

    def rounds(self, factor: float) -> list[tuple[float, int]]:
        """Each level, and how many trials reach it if none fails: `size`, and then floor(n / factor)."""
        found, entries = [], self.size
        for level in self.levels:
            found.append((level, entries))
            entries = places(entries, factor)
        return found


def shared_levels(max_t: float, factor: float) -> tuple[float, ...]:
    """Return max_t / factor**k, rounded half up, for all k for which that is 1 at least; `max_t` is last.

    For 81 and 3: 1, 3, 9, 27, 81; for 100 and 3: 1, 4, 11, 33, 100. Every bracket ends at `max_t`, and
    those that begin later have the last ones of the same levels.
    """
    levels, divisor = [max_t], factor
    for _ in range(bracket_count(1, max_t, factor) - 1):
        levels.append(int((2 * max_t + divisor) // (2 * divisor)))
        divisor *= factor
    return tuple(reversed(levels))


def bracket_plans(max_t: float, factor: float) -> list[BracketPlan]:
    """Return the brackets of one turn, the widest first.

    Args:
        max_t: the most that a trial may spend, R in the paper; above 0.
        factor: eta, at least 2.
    """
    levels = shared_levels(max_t, factor)
    sizes = bracket_sizes(1, max(1, max_t), factor)
    return [BracketPlan(size, levels[skipped:], skipped) for skipped, size in enumerate(sizes)]


def places(entries: int, factor: float) -> int:
    """How many of so many go on: floor(entries / factor), and always one."""
    return max(1, int(entries // factor))


@dataclass(frozen=True)
class Judgement:
    """Outcome of a round; scores are "larger is better".

    Attributes:
        level: where the trials were compared.
        budget: place of that level among those of all brackets.
        ranks: of every trial of the round, from 1; equal scores rank as they arrived.
        places: how many could go on.
        went: ids of those that go on, the best first.
        fell: ids of those that could have gone on and do not.
        cutoff: the lowest score that goes on; where none does, the score in the last of the places.
    """

    level: float
    budget: int
    ranks: dict[str, int]
    places: int
    went: tuple[str, ...]
    fell: tuple[str, ...]
    cutoff: float


class Bracket:
    """One bracket of synchronous successive halving.

    Args:
        number: of the bracket, from 0.
        plan: how many trials it takes, and its levels.
        factor: eta: one in so many goes on.
    """

    def __init__(self, number: int, plan: BracketPlan, factor: float) -> None:
        self.number = number
        self._plan = plan
        self._factor = factor
        self._taken = 0
        self._closed = False
        self._round = 0
        self._awaited: set[str] = set()
        self._scores: dict[str, float] = {}  # of this round, in the order of arrival
        self._gone: set[str] = set()

    @property
    def takes_more(self) -> bool:
        """True while further trials may join."""
        return not self._closed and self._taken < self._plan.size

    @property
    def level(self) -> float:
        """Where the trials of this round are compared."""
        return self._plan.levels[self._round]

    @property
    def budget(self) -> int:
        """The place of `level` among those of all brackets."""
        return self._plan.lowest + self._round

    @property
    def is_last_round(self) -> bool:
        """True when the trials run to their end and nothing is left to judge."""
        return self._round == len(self._plan.levels) - 1

    @property
    def awaits(self) -> int:
        """How many trials this round waits for, those that are yet to join included."""
        return len(self._awaited) + (self._plan.size - self._taken if self.takes_more else 0)

    def join(self, trial_id: str) -> None:
        """Take a trial, while `takes_more`."""
        self._taken += 1
        self._awaited.add(trial_id)

    def close(self) -> None:
        """Wait for no trial that has not joined."""
        self._closed = True

    def is_awaited(self, trial_id: str) -> bool:
        """True if the trial is on its way to `level`."""
        return trial_id in self._awaited

    def record(self, trial_id: str, score: float) -> None:
        """A trial that is awaited has reached `level`."""
        self._awaited.remove(trial_id)
        self._scores[trial_id] = score

    def leave(self, trial_id: str, *, failed: bool = False) -> None:
        """A trial can't go on: it has ended, or failed. It still counts, by its score if it did not fail."""
        if trial_id in self._awaited:
            self.record(trial_id, -math.inf)
        if trial_id in self._scores:
            self._gone.add(trial_id)
            if failed:
                self._scores[trial_id] = -math.inf

    def standing(self, trial_id: str) -> tuple[int, int] | None:
        """The rank of a trial among those of this round that have been at `level`, and how many; or None."""
        if trial_id not in self._scores:
            return None
        return self._in_order().index(trial_id) + 1, len(self._scores)

    def _in_order(self) -> list[str]:
        return sorted(self._scores, key=lambda trial_id: -self._scores[trial_id])  # stable: ties by arrival

    def judge(self) -> Judgement | None:
        """Compare the trials and begin the next round, if this one is complete; None if it isn't.

        Of n trials the best max(1, floor(n / eta)) go on that can: not those that have ended, whose
        places pass to the next best, nor those whose score is minus infinity.
        """
        if self.awaits or self.is_last_round or not self._scores:
            return None
        order = self._in_order()
        open_places = places(len(order), self._factor)
        able = [each for each in order if each not in self._gone]
        went = [each for each in able if self._scores[each] > -math.inf][:open_places]
        judgement = Judgement(
            level=self.level,
            budget=self.budget,
            ranks={trial_id: rank for rank, trial_id in enumerate(order, 1)},
            places=open_places,
            went=tuple(went),
            fell=_without(able, went),
            cutoff=self._scores[went[-1] if went else order[open_places - 1]],
        )
        self._round += 1
        self._awaited, self._scores, self._gone = set(went), {}, set()
        return judgement


def _without(those: Iterable[str], out: Iterable[str]) -> tuple[str, ...]:
    left_out = set(out)
    return tuple(each for each in those if each not in left_out)
