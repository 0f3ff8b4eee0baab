"""Counting ones: half the parameters are bits, half are chances; a budget buys draws, which blur the value.

Source: Falkner, Klein, Hutter 2018, arXiv:1807.01774, appendix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

LEVELS = (1, 3, 9, 27, 81)
"""Of the resource; one unit is nine draws of each chance, so the budgets are 9 to 729 draws."""
DRAWS = 9


def names(d: int) -> tuple[list[str], list[str]]:
    """Of the bits, and of the chances."""
    return [f"bit_{i}" for i in range(d // 2)], [f"chance_{i}" for i in range(d // 2)]


def regret(config: Mapping[str, Any], d: int) -> float:
    """How far the noise-free sum is from d, as a share of it."""
    bits, chances = names(d)
    return 1 - (sum(config[name] for name in bits) + sum(config[name] for name in chances)) / d


def loss(config: Mapping[str, Any], level: int, *, d: int, seed: int, from_scratch: bool) -> float:
    """What is observed at LEVELS[level].

    Args:
        config: of the trial.
        level: from 0.
        d: how many parameters.
        seed: of the draws.
        from_scratch: True: all draws are new at each level; False: those of the level below count on.
    """
    bits, chances = names(d)
    sizes = [LEVELS[level]] if from_scratch else np.diff((0, *LEVELS[: level + 1])).tolist()
    first = level if from_scratch else 0
    share = np.array([config[name] for name in chances])
    hits = np.zeros(len(share))
    for number, size in enumerate(sizes, first):
        hits += _generator(share, seed, number).binomial(DRAWS * size, share)
    return -(sum(config[name] for name in bits) + float((hits / (DRAWS * LEVELS[level])).sum()))


def _generator(share: np.ndarray, seed: int, level: int) -> np.random.Generator:
    """The same draws whenever the same trial comes to the same level."""
    word = hashlib.blake2b(share.tobytes(), digest_size=8).digest()
    return np.random.default_rng([seed, level, int.from_bytes(word, "big")])
