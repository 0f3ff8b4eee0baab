"""Scores in order, with ranks: adding one and asking for a rank cost the same for ten and for ten thousand.

They lie in blocks, each sorted. So no addition moves more than a block, and a rank is the lengths of the
blocks below and one binary search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

Key = tuple[float, int]
"""A score, larger is better, and the negated arrival: of equal scores the earlier is better."""

BLOCK = 1000


class Ranking:
    """Keys in ascending order; none is there twice."""

    def __init__(self) -> None:
        self._blocks: list[list[Key]] = []
        self._best: list[Key] = []  # of each block
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, key: Key) -> int:
        """Take in `key`; return its rank, 1 for the best."""
        self._length += 1
        blocks = self._blocks
        if not blocks:
            self._blocks, self._best = [[key]], [key]
            return 1
        at = min(bisect_left(self._best, key), len(blocks) - 1)
        block = blocks[at]
        place = bisect_left(block, key)
        block.insert(place, key)
        rank = len(block) - place + (sum(map(len, blocks[at + 1 :])) if at + 1 < len(blocks) else 0)
        self._best[at] = block[-1]
        if len(block) > 2 * BLOCK:
            blocks[at : at + 1] = block[:BLOCK], block[BLOCK:]
            self._best[at : at + 1] = block[BLOCK - 1], block[-1]
        return rank

    def remove(self, key: Key) -> None:
        """Let go of `key`, which is there."""
        at = bisect_left(self._best, key)
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        self._length -= 1
        if block:
            self._best[at] = block[-1]
        else:
            del self._blocks[at], self._best[at]

    def rank(self, key: Key) -> int:
        """How many keys are not worse than `key`."""
        at = bisect_left(self._best, key)
        if at == len(self._blocks):
            return 0
        block = self._blocks[at]
        return sum(map(len, self._blocks[at:])) - bisect_left(block, key)

    def at(self, place: int) -> Key:
        """The key at this rank, from 1 to the number of keys."""
        for block in reversed(self._blocks):
            if place <= len(block):
                return block[-place]
            place -= len(block)
        raise IndexError(f"place {place} of {self._length}")

    def best_first(self) -> Iterator[Key]:
        """The keys from the best on; don't change them meanwhile."""
        for block in reversed(self._blocks):
            yield from reversed(block)
