"""Counting ones: half the parameters are bits, half are chances. The budget is a number of noisy draws.

Source: Falkner, Klein, Hutter 2018, arXiv:1807.01774, appendix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

LEVELS = (1, 3, 9, 27, 81)
"""Levels of the resource; one unit is nine draws of each chance, so the budgets are 9 to 729 draws."""
DRAWS = 9


def names(d: int) -> tuple[list[str], list[str]]:
    """Return the names of the bits, and of the chances."""
    return [f"bit_{i}" for i in range(d // 2)], [f"chance_{i}" for i in range(d // 2)]


def regret(config: Mapping[str, Any], d: int) -> float:
    """Return the distance of the noise-free sum from d, as a share of d."""
    bits, chances = names(d)
    return 1 - (sum(config[name] for name in bits) + sum(config[name] for name in chances)) / d


def loss(config: Mapping[str, Any], level: int, *, d: int, seed: int, from_scratch: bool) -> float:
    """Return the observed loss at `LEVELS[level]`.

    Args:
        config: configuration of the trial.
        level: index of the level, from 0.
        d: number of parameters.
        seed: seed of the draws.
        from_scratch: True: all draws are new at each level; False: draws of lower levels are kept.
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
    """Return a generator that gives the same draws whenever the same trial reaches the same level."""
    word = hashlib.blake2b(share.tobytes(), digest_size=8).digest()
    return np.random.default_rng([seed, level, int.from_bytes(word, "big")])
