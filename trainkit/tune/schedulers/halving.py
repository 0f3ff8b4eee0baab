"""Successive halving: rungs, the ranks on them, and the brackets of Hyperband.

Keys lie in sorted blocks. So no addition moves more than a block, and a rank takes the lengths of the blocks
above and one binary search. A block is an array of numbers and not a list of objects: a search among ten
thousand would wait for memory at every step. Levels take no logarithm: log(243)/log(3) is 4.999..., and a
rung would be lost.

Sources: Jamieson and Talwalkar 2016 (successive halving); Li et al. 2018, JMLR 18(185) (sizes of brackets).

All trials of a bracket go to a level. When each has reached it, or has ended, the best of them go to the
next. No logarithm is taken: log(243)/log(3) is 4.999..., and the widest bracket would be lost.

Sources: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016; Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR
18(185), 2018, Algorithm 1. For R=81 and eta=3 the paper contradicts itself: its pseudocode gives brackets of
81, 34, 15, 8 and 5 trials, its example table 81, 27, 9, 6 and 5. These are the pseudocode's.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from trainkit.errors import ConfigError
from trainkit.tune.schedulers.base import Facts, words_of

Key = tuple[float, int]
"""A score, larger is better, and the negated arrival: of equal scores the earlier is better."""

BLOCK = 1000


class Ranking:
    """Keys in ascending order; none is there twice."""

    def __init__(self) -> None:
        self._scores: list[array[float]] = []
        self._arrivals: list[array[int]] = []  # negated, beside the scores
        self._best: list[Key] = []  # of each block
        self._sizes: list[int] = []  # the same: added up for every rank, and of 500 blocks for a million keys

    def __len__(self) -> int:
        return sum(self._sizes)

    def add(self, key: Key) -> int:
        """Take in `key`; return its rank, 1 for the best."""
        if not self._best:
            self._scores, self._arrivals = [array("d", key[:1])], [array("q", key[1:])]
            self._best, self._sizes = [key], [1]
            return 1
        block = min(bisect_left(self._best, key), len(self._best) - 1)
        scores, arrivals = self._scores[block], self._arrivals[block]
        place = self._place(block, key)
        scores.insert(place, key[0])
        arrivals.insert(place, key[1])
        if key > self._best[block]:
            self._best[block] = key
        self._sizes[block] += 1
        rank = sum(self._sizes[block:]) - place
        if len(scores) > 2 * BLOCK:
            self._sizes[block : block + 1] = BLOCK, len(scores) - BLOCK
            self._scores[block : block + 1] = scores[:BLOCK], scores[BLOCK:]
            self._arrivals[block : block + 1] = arrivals[:BLOCK], arrivals[BLOCK:]
            self._best.insert(block, (scores[BLOCK - 1], arrivals[BLOCK - 1]))
        return rank

    def rank(self, key: Key) -> int:
        """How many keys are not worse than `key`."""
        block = bisect_left(self._best, key)
        if block == len(self._best):
            return 0
        return sum(self._sizes[block:]) - self._place(block, key)

    def at(self, place: int) -> Key:
        """The key at this rank, from 1 to the number of keys."""
        block, rest = len(self._sizes), place
        for size in reversed(self._sizes):
            block -= 1
            if rest <= size:
                return self._scores[block][-rest], self._arrivals[block][-rest]
            rest -= size
        raise IndexError(f"place {place} of {len(self)}")

    def _place(self, block: int, key: Key) -> int:
        """Where `key` lies in a block, or would lie."""
        score, arrival = key
        scores = self._scores[block]
        place = bisect_left(scores, score)
        if place < len(scores) and scores[place] == score:
            end = bisect_right(scores, score, place)
            return bisect_left(self._arrivals[block], arrival, place, end)
        return place


MOST_RUNGS = 1000
"""More come from a factor that is next to 1."""


def rung_levels(minimum: float, maximum: float, factor: float, bracket: int = 0) -> list[float]:
    """Return minimum * factor**(bracket + k) for k = 0, 1, ... while below `maximum`, then `maximum`."""
    level = minimum
    for _ in range(bracket):
        level *= factor
    levels = []
    while _is_below(level, maximum):
        levels.append(level)
        level *= factor
    return [*levels, maximum]


def bracket_count(minimum: float, maximum: float, factor: float) -> int:
    """How many brackets differ: those whose first level is not above `maximum`.

    Raises:
        ConfigError: they are more than a thousand.
    """
    count, level = 0, minimum
    while not _is_below(maximum, level):
        count += 1
        level *= factor
        if count > MOST_RUNGS:
            raise ConfigError(
                f"a factor of {factor} from {minimum} to {maximum} makes more than {MOST_RUNGS} rungs: "
                "give a larger reduction_factor, such as 4"
            )
    return count


def _is_below(level: float, other: float) -> bool:
    # 0.7 * 3 is 2.0999999999999996, which is no rung of its own below 2.1.
    return level < other and not math.isclose(level, other, rel_tol=1e-12)


def bracket_sizes(minimum: float, maximum: float, factor: float) -> list[int]:
    """Hyperband's number of configurations for each bracket, bracket 0 (stops earliest) first.

    For 1, 81, 3: [81, 34, 15, 8, 5].
    """
    count = bracket_count(minimum, maximum, factor)
    sizes = []
    for bracket in range(count):
        halvings = count - 1 - bracket
        configurations: float = count
        for _ in range(halvings):
            configurations *= factor
        sizes.append(int(-(-configurations // (halvings + 1))))  # rounded up
    return sizes


class Rung:
    """The scores recorded at one level, larger is better, and how many of them may go on.

    Args:
        level: the resource spent here.
        factor: eta; the floor(n / factor) best of n entries may go on.
        least: how many may in any case.

    Attributes:
        level: the same.
        entries: how many there are so far.
        places: how many of them may go on.
        cutoff: the score at the last of these places; None where there is none yet.
    """

    def __init__(self, level: float, factor: float, least: int = 1) -> None:
        self.level = level
        self.entries = 0
        self.places = least
        self.cutoff: float | None = None
        self._factor = factor
        self._least = least
        self._ranking = Ranking()
        self._last: Key | None = None
        """The entry at the last of the places; asked for much oftener than it changes."""

    def record(self, score: float) -> int:
        """Add `score`; return its rank from 1, where equal scores that came earlier rank before it."""
        rank = self._ranking.add((score, -self.entries))
        self.entries += 1
        before, self.places = self.places, max(self._least, int(self.entries // self._factor))
        if self.places and (rank <= self.places or before != self.places):
            self._last = self._ranking.at(self.places)
            self.cutoff = self._last[0]
        return rank


class PromotionRung(Rung):
    """A rung at which trials wait paused until they are promoted.

    The question of who is promotable looks at those that wait from the best on, and at none below the
    places: mostly at one.
    """

    def __init__(self, level: float, factor: float) -> None:
        super().__init__(level, factor, least=0)
        self._keys: dict[str, Key] = {}
        self._waiting: set[str] = set()
        self._queue: list[tuple[float, int, str]] = []
        """Those that wait, a heap with the best first, and some that don't any more."""

    def record_of(self, trial_id: str, score: float) -> int:
        """Add the score of a trial, which waits from now on; return its rank."""
        self._keys[trial_id] = score, -self.entries
        self.wait(trial_id)
        return self.record(score)

    def wait(self, trial_id: str) -> None:
        """A trial with an entry waits for its promotion, be it again."""
        if trial_id not in self._waiting:
            score, arrival = self._keys[trial_id]
            self._waiting.add(trial_id)
            heappush(self._queue, (-score, -arrival, trial_id))

    @property
    def best_waiting(self) -> tuple[float, str] | None:
        """The best of all that wait, whether it holds a place or not, with its score; None: there is none."""
        while self._queue and self._queue[0][2] not in self._waiting:
            heappop(self._queue)
        return (-self._queue[0][0], self._queue[0][2]) if self._queue else None

    def promotable(self, among: Container[str]) -> str | None:
        """The best of those that wait, are `among` these and hold one of the places; None: there is none."""
        if self._last is None:
            return None
        queue, waiting = self._queue, self._waiting
        last = (-self._last[0], -self._last[1])
        passed, found = [], None
        while found is None and queue and queue[0][:2] <= last:
            trial_id = queue[0][2]
            if trial_id in waiting and trial_id in among:
                found = trial_id
            else:
                passed.append(heappop(queue))
        for each in passed:  # a question changes nothing
            if each[2] in waiting:
                heappush(queue, each)
        return found

    def rank_of(self, trial_id: str) -> int:
        """The rank of a trial among all entries so far."""
        return self._ranking.rank(self._keys[trial_id])

    def leave(self, trial_id: str) -> int:
        """A trial waits no longer; return its rank among all entries, of which it stays one."""
        self._waiting.discard(trial_id)
        return self.rank_of(trial_id)


# --- words of its decisions --------------------------------------------------------------------------


def place_words(reason: Facts) -> str:
    """Return such as 'rung 4 of bracket 1'."""
    rung = f"rung {reason['rung']:g}"
    return f"{rung} of bracket {reason['bracket']}" if "bracket" in reason else rung


@words_of("rung")
def _rung_words(reason: Facts) -> str:
    rank = f"rank {reason['rank']} of {reason['entries']}"
    judged = f"{place_words(reason)}, {rank}, {reason['places']} may go on"
    if "cutoff" in reason:  # else there is no place yet, or no finite score
        judged += f", cutoff {reason['cutoff']:.6g}"
    return f"{judged}, past {reason['skipped']} lower" if "skipped" in reason else judged


@words_of("finish")
def _finish_words(reason: Facts) -> str:
    return f"{place_words(reason)}, rank {reason['rank']} of {reason['entries']}, to train one to the end"


@words_of("waits")
def _waits_words(reason: Facts) -> str:
    return f"it waits to be promoted from {place_words(reason)}"


@words_of("not chosen")
def _not_chosen_words(reason: Facts) -> str:
    rank = f"{place_words(reason)}, rank {reason['rank']} of {reason['entries']}"
    if "awaits" in reason:
        return f"{rank} so far, {reason['awaits']} more were to come there"
    places = f"{reason['places']} place{'s' * (reason['places'] != 1)}"
    return f"{rank}, {places}" + (", its turn had not come" if "due" in reason else "")


words_of("max_t")("reached max_t={max_t:g}".format_map)


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
