"""Successive halving: the levels of rungs, the wording of decisions, and the brackets of Hyperband.

Levels are computed without logarithms, because of rounding errors: log(243)/log(3) is 4.999... and not 5, so
a rung and the widest bracket would be missing.

In synchronous halving, all trials of a bracket run to a level. When each trial has reached the level or has
ended, the best trials continue to the next level.

Sources: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016; Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR
18(185), 2018, Algorithm 1. For R=81 and eta=3 the paper contradicts itself: its pseudocode gives brackets of
81, 34, 15, 8 and 5 trials, its example table 81, 27, 9, 6 and 5. This module follows the pseudocode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainkit.errors import ConfigError
from trainkit.tune.schedulers.base import Facts, words_of

MOST_RUNGS = 1000
"""Upper limit on the number of rungs, for reduction factors close to 1."""


def rung_levels(minimum: float, maximum: float, factor: float, bracket: int = 0) -> list[float]:
    """Return the levels minimum * factor**(bracket + k), k = 0, 1, ..., below `maximum`; then `maximum`."""
    level = minimum
    for _ in range(bracket):
        level *= factor
    levels = []
    while _is_below(level, maximum):
        levels.append(level)
        level *= factor
    return [*levels, maximum]


def bracket_count(minimum: float, maximum: float, factor: float) -> int:
    """Return the number of possible brackets b, whose first level minimum * factor**b is at most `maximum`.

    Raises:
        ConfigError: more than a thousand brackets are possible.
    """
    count, level = 0, minimum
    while not _is_below(maximum, level):
        count += 1
        level *= factor
        if count > MOST_RUNGS:
            raise ConfigError(
                f"reduction_factor={factor} makes more than {MOST_RUNGS} rungs from {minimum} to {maximum}: "
                "use a larger factor, such as 4"
            )
    return count


def _is_below(level: float, other: float) -> bool:
    # Rounding must not add a rung: 0.7 * 3 gives 2.0999999999999996, although 2.1 is meant.
    return level < other and not math.isclose(level, other, rel_tol=1e-12)


def bracket_sizes(minimum: float, maximum: float, factor: float) -> list[int]:
    """Return the number of configurations in each bracket of Hyperband, from bracket 0, which stops earliest.

    For minimum 1, maximum 81 and factor 3: [81, 34, 15, 8, 5].
    """
    count = bracket_count(minimum, maximum, factor)
    sizes = []
    for bracket in range(count):
        halvings = count - 1 - bracket
        configurations: float = count
        for _ in range(halvings):
            configurations *= factor
        sizes.append(int(-(-configurations // (halvings + 1))))  # the two minus signs round the number up
    return sizes


# --- wording of decisions ----------------------------------------------------------------------------


def place_words(reason: Facts) -> str:
    """Return text such as 'rung 4 of bracket 1'."""
    rung = f"rung {reason['rung']:g}"
    return f"{rung} of bracket {reason['bracket']}" if "bracket" in reason else rung


@words_of("rung")
def _rung_words(reason: Facts) -> str:
    rank = f"rank {reason['rank']} of {reason['entries']}"
    judged = f"{place_words(reason)}, {rank}, {reason['places']} continue{'s' * (reason['places'] == 1)}"
    # The reason has no cutoff if no trial may continue yet, or if the worst trial that may continue has no
    # finite score.
    if "cutoff" in reason:
        judged += f", cutoff {reason['cutoff']:.6g}"
    return f"{judged}, skipped lower rungs: {reason['skipped']}" if "skipped" in reason else judged


@words_of("finish")
def _finish_words(reason: Facts) -> str:
    rank = f"rank {reason['rank']} of {reason['entries']}"
    return f"{place_words(reason)}, {rank}, to train one trial to the end"


@words_of("waits")
def _waits_words(reason: Facts) -> str:
    return f"waits for promotion from {place_words(reason)}"


@words_of("not chosen")
def _not_chosen_words(reason: Facts) -> str:
    rank = f"{place_words(reason)}, rank {reason['rank']} of {reason['entries']}"
    if "awaits" in reason:
        return f"{rank} so far, trials still expected: {reason['awaits']}"
    places = f"{reason['places']} place{'s' * (reason['places'] != 1)}"
    return f"{rank}, {places}" + (", still waiting to resume" if "due" in reason else "")


words_of("max_t")("reached max_t={max_t:g}".format_map)


@dataclass(frozen=True)
class BracketPlan:
    """Size and levels of a bracket, known before it has trials.

    Attributes:
        size: number of trials in the bracket.
        levels: times at which trials are judged; at the last level, `max_t`, trials end.
        lowest: index of the bracket's first level among the levels of all brackets, from 0.
    """

    size: int
    levels: tuple[float, ...]
    lowest: int


def shared_levels(max_t: float, factor: float) -> tuple[float, ...]:
    """Return the levels max_t / factor**k of at least 1, rounded half up; the last level is `max_t`.

    For `factor` 3, a `max_t` of 81 gives 1, 3, 9, 27, 81, and a `max_t` of 100 gives 1, 4, 11, 33, 100. Every
    bracket ends at `max_t`. A bracket that begins at a later level uses only the higher levels.
    """
    levels, divisor = [max_t], factor
    for _ in range(bracket_count(1, max_t, factor) - 1):
        levels.append(int((2 * max_t + divisor) // (2 * divisor)))
        divisor *= factor
    return tuple(reversed(levels))


def bracket_plans(max_t: float, factor: float) -> list[BracketPlan]:
    """Return the brackets of one cycle, the bracket with the most trials first.

    Args:
        max_t: the largest resource of a trial, R in the paper; above 0.
        factor: eta, at least 2.
    """
    levels = shared_levels(max_t, factor)
    sizes = bracket_sizes(1, max(1, max_t), factor)
    return [BracketPlan(size, levels[skipped:], skipped) for skipped, size in enumerate(sizes)]


def places(entries: int, factor: float) -> int:
    """Return how many of `entries` trials continue: floor(entries / factor), but at least one."""
    return max(1, int(entries // factor))


@dataclass(frozen=True)
class Judgement:
    """Outcome of a bracket's round, in which trials are compared at one level; larger scores are better.

    Attributes:
        level: resource at which the trials were compared.
        budget: index of `level` among the levels of all brackets.
        ranks: rank of every trial of the round, from 1; equal scores rank in the order of arrival.
        places: largest number of trials that may continue.
        went: ids of trials that continue, the best first.
        fell: ids of trials that had not ended, but were not selected to continue.
        cutoff: lowest score of a trial that continues; if no trial continues, the score at rank `places`.
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
        number: number of the bracket, from 0.
        plan: the bracket's size and levels.
        factor: eta; one trial in eta continues.
    """

    def __init__(self, number: int, plan: BracketPlan, factor: float) -> None:
        self.number = number
        self._plan = plan
        self._factor = factor
        self._taken = 0
        self._closed = False
        self._round = 0
        self._awaited: set[str] = set()
        # The dictionary has the scores of the current round, in the order of arrival.
        self._scores: dict[str, float] = {}
        self._gone: set[str] = set()

    @property
    def takes_more(self) -> bool:
        """True while further trials may join the bracket."""
        return not self._closed and self._taken < self._plan.size

    @property
    def level(self) -> float:
        """The resource at which the trials of this round are compared."""
        return self._plan.levels[self._round]

    @property
    def budget(self) -> int:
        """The index of `level` among the levels of all brackets."""
        return self._plan.lowest + self._round

    @property
    def is_last_round(self) -> bool:
        """True in the last round, in which trials run to their end without a further comparison."""
        return self._round == len(self._plan.levels) - 1

    @property
    def awaits(self) -> int:
        """Number of trials that the current round waits for, including trials that have not joined yet."""
        return len(self._awaited) + (self._plan.size - self._taken if self.takes_more else 0)

    def join(self, trial_id: str) -> None:
        """Add a trial to the bracket; allowed only while `takes_more` is True."""
        self._taken += 1
        self._awaited.add(trial_id)

    def close(self) -> None:
        """Accept no further trials, so that the round does not wait for more trials."""
        self._closed = True

    def is_awaited(self, trial_id: str) -> bool:
        """Return True if the round waits for this trial to reach `level`."""
        return trial_id in self._awaited

    def record(self, trial_id: str, score: float) -> None:
        """Record the score of an awaited trial that has reached `level`."""
        self._awaited.remove(trial_id)
        self._scores[trial_id] = score

    def leave(self, trial_id: str, *, failed: bool = False) -> None:
        """Mark a trial as ended.

        An ended trial still counts by its score, or as worst if it failed or has no score.
        """
        if trial_id in self._awaited:
            self.record(trial_id, -math.inf)
        if trial_id in self._scores:
            self._gone.add(trial_id)
            if failed:
                self._scores[trial_id] = -math.inf

    def standing(self, trial_id: str) -> tuple[int, int] | None:
        """Return a trial's rank in this round and the number of ranked trials; None: no score yet."""
        if trial_id not in self._scores:
            return None
        return self._in_order().index(trial_id) + 1, len(self._scores)

    def _in_order(self) -> list[str]:
        # The sort is stable, so ties keep the order of arrival.
        return sorted(self._scores, key=lambda trial_id: -self._scores[trial_id])

    def judge(self) -> Judgement | None:
        """Compare the trials of the current round and begin the next round; return None if the round is not
        complete.

        The best max(1, floor(n / eta)) of n trials continue. A trial that has ended can't continue, so the
        next best trial continues instead. A trial with a score of minus infinity never continues.
        """
        if self.awaits or self.is_last_round or not self._scores:
            return None
        order = self._in_order()
        open_places = places(len(order), self._factor)
        able = [each for each in order if each not in self._gone]
        went = [each for each in able if self._scores[each] > -math.inf][:open_places]
        chosen = set(went)
        judgement = Judgement(
            level=self.level,
            budget=self.budget,
            ranks={trial_id: rank for rank, trial_id in enumerate(order, 1)},
            places=open_places,
            went=tuple(went),
            fell=tuple(each for each in able if each not in chosen),
            cutoff=self._scores[went[-1] if went else order[open_places - 1]],
        )
        self._round += 1
        self._awaited, self._scores, self._gone = chosen, {}, set()
        return judgement
