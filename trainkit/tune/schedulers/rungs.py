"""Rungs of asynchronous successive halving, and the ranks of the scores on a rung.

Keys (a score with its arrival number) are kept in sorted blocks. An insertion thus moves the keys of at most
one block. A rank is found from the lengths of the better blocks and one binary search. A block is an array of
numbers, because a search among Python objects would wait for memory at each step.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container
from heapq import heappop, heappush

Key = tuple[float, int]
"""A score (larger is better) and its negated arrival number; the earlier of equal scores is better."""

BLOCK = 1000


class Ranking:
    """Sorted collection of distinct keys, in ascending order."""

    def __init__(self) -> None:
        self._scores: list[array[float]] = []
        self._arrivals: list[array[int]] = []  # negated arrival number of each score
        self._best: list[Key] = []  # best key of each block
        # sizes of blocks, from whose sum a rank is computed; a million keys have about 500 blocks
        self._sizes: list[int] = []

    def __len__(self) -> int:
        return sum(self._sizes)

    def add(self, key: Key) -> int:
        """Insert `key`; return its rank, 1 for the best."""
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
        """Return the rank of `key`: the number of keys that are not worse."""
        block = bisect_left(self._best, key)
        if block == len(self._best):
            return 0
        return sum(self._sizes[block:]) - self._place(block, key)

    def at(self, place: int) -> Key:
        """Return the key at rank `place`, from 1 to the number of keys."""
        block, rest = len(self._sizes), place
        for size in reversed(self._sizes):
            block -= 1
            if rest <= size:
                return self._scores[block][-rest], self._arrivals[block][-rest]
            rest -= size
        raise IndexError(f"place {place} of {len(self)}")

    def _place(self, block: int, key: Key) -> int:
        """Return the position of `key` in a block, or the position at which `key` would be inserted."""
        score, arrival = key
        scores = self._scores[block]
        place = bisect_left(scores, score)
        if place < len(scores) and scores[place] == score:
            end = bisect_right(scores, score, place)
            return bisect_left(self._arrivals[block], arrival, place, end)
        return place


class Rung:
    """The scores recorded at one level (larger is better), and the number of trials that may continue.

    Args:
        level: the resource spent at this rung.
        factor: eta; of n trials, the floor(n / eta) best may continue.
        least: smallest number of trials that may continue.

    Attributes:
        level: the resource spent at this rung.
        entries: number of scores so far.
        places: number of trials that may continue.
        cutoff: lowest score with which a trial may continue; None if no trial may continue yet.
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
        """Key of the worst trial that may continue; cached, because it is read more often than it changes."""

    def record(self, score: float) -> int:
        """Add `score`; return its rank, from 1; equal scores rank in the order of arrival."""
        rank = self._ranking.add((score, -self.entries))
        self.entries += 1
        before, self.places = self.places, max(self._least, int(self.entries // self._factor))
        if self.places and (rank <= self.places or before != self.places):
            self._last = self._ranking.at(self.places)
            self.cutoff = self._last[0]
        return rank


class PromotionRung(Rung):
    """A rung at which paused trials wait until they are promoted.

    The search for a promotable trial visits waiting trials from the best down to the worst that may continue.
    The search usually visits only one trial.
    """

    def __init__(self, level: float, factor: float) -> None:
        super().__init__(level, factor, least=0)
        self._keys: dict[str, Key] = {}
        self._waiting: set[str] = set()
        self._queue: list[tuple[float, int, str]] = []
        """Heap of waiting trials, the best first; the heap may also contain trials that no longer wait."""

    def record_of(self, trial_id: str, score: float) -> int:
        """Add a trial's score, and let the trial wait for promotion; return the trial's rank."""
        self._keys[trial_id] = score, -self.entries
        self.wait(trial_id)
        return self.record(score)

    def wait(self, trial_id: str) -> None:
        """Let a trial whose score is recorded wait for promotion, possibly again."""
        if trial_id not in self._waiting:
            score, arrival = self._keys[trial_id]
            self._waiting.add(trial_id)
            heappush(self._queue, (-score, -arrival, trial_id))

    @property
    def best_waiting(self) -> tuple[float, str] | None:
        """The best waiting trial and its score, even if the trial may not continue;
        None if no trial waits.
        """
        while self._queue and self._queue[0][2] not in self._waiting:
            heappop(self._queue)
        return (-self._queue[0][0], self._queue[0][2]) if self._queue else None

    def promotable(self, among: Container[str]) -> str | None:
        """Return the best waiting trial in `among` that may continue; None if no such trial exists."""
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
        for each in passed:  # the queue is restored, because this method must change nothing
            if each[2] in waiting:
                heappush(queue, each)
        return found

    def rank_of(self, trial_id: str) -> int:
        """Return a trial's rank among all scores so far."""
        return self._ranking.rank(self._keys[trial_id])

    def leave(self, trial_id: str) -> int:
        """End a trial's wait for promotion; return its rank among all scores. The trial's score stays."""
        self._waiting.discard(trial_id)
        return self.rank_of(trial_id)
