"""Scores in order, with ranks: adding one and asking for a rank cost the same for ten and for ten thousand.

They lie in blocks, each sorted. So no addition moves more than a block, and a rank is the lengths of the
blocks above and one binary search. A block is an array of numbers and not a list of objects: a search among
ten thousand would wait for memory at every step.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

Key = tuple[float, int]
"""A score, larger is better, and the negated arrival: of equal scores the earlier is better."""

BLOCK = 1000


class Ranking:
    """Keys in ascending order; none is there twice."""

    def __init__(self) -> None:
        self._scores: list[array[float]] = []
        self._arrivals: list[array[int]] = []  # negated, beside the scores
        self._best: list[Key] = []  # of each block
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, key: Key) -> int:
        """Take in `key`; return its rank, 1 for the best."""
        self._length += 1
        if not self._best:
            self._scores, self._arrivals, self._best = [array("d", key[:1])], [array("q", key[1:])], [key]
            return 1
        block = min(bisect_left(self._best, key), len(self._best) - 1)
        scores, arrivals = self._scores[block], self._arrivals[block]
        place = self._place(block, key)
        scores.insert(place, key[0])
        arrivals.insert(place, key[1])
        if key > self._best[block]:
            self._best[block] = key
        rank = self._above(block) + len(scores) - place
        if len(scores) > 2 * BLOCK:
            self._scores[block : block + 1] = scores[:BLOCK], scores[BLOCK:]
            self._arrivals[block : block + 1] = arrivals[:BLOCK], arrivals[BLOCK:]
            self._best.insert(block, (scores[BLOCK - 1], arrivals[BLOCK - 1]))
        return rank

    def rank(self, key: Key) -> int:
        """How many keys are not worse than `key`."""
        block = bisect_left(self._best, key)
        if block == len(self._best):
            return 0
        return self._above(block) + len(self._scores[block]) - self._place(block, key)

    def at(self, place: int) -> Key:
        """The key at this rank, from 1 to the number of keys."""
        block, rest = len(self._scores) - 1, place
        while block >= 0:
            scores = self._scores[block]
            if rest <= len(scores):
                return scores[-rest], self._arrivals[block][-rest]
            rest -= len(scores)
            block -= 1
        raise IndexError(f"place {place} of {self._length}")

    def _place(self, block: int, key: Key) -> int:
        """Where `key` lies in a block, or would lie."""
        score, arrival = key
        scores = self._scores[block]
        place = bisect_left(scores, score)
        if place < len(scores) and scores[place] == score:
            end = bisect_right(scores, score, place)
            return bisect_left(self._arrivals[block], arrival, place, end)
        return place

    def _above(self, block: int) -> int:
        """How many keys lie in better blocks."""
        return sum(map(len, self._scores[block + 1 :]))
