"""Stopping rules of other libraries on our streams, so that both sides see the same configurations.

Each rule is rewritten from the library's source, so that the library need not be installed. A trial runs
until its rule stops it at a level; then the next trial runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.incumbents import Seen
from benchmarks.problems import digits

ETA = 3
LEVELS = (1, 3, 9)

Rule = Callable[[Sequence[float], float], bool]
"""Rule (earlier scores at a level, new score) -> True if the trial continues; larger scores are better."""


def ray(before: Sequence[float], score: float) -> bool:
    """Apply Ray Tune 2.60's rule: at least the percentile of earlier scores; the first trial continues."""
    return not before or score >= float(np.percentile(before, 100 * (1 - 1 / ETA)))


def syne_tune(before: Sequence[float], score: float) -> bool:
    """Apply Syne Tune 0.16's rule: at most a share of 1 / ETA is strictly better."""
    return sum(each > score for each in before) / (len(before) + 1) <= 1 / ETA


def optuna(before: Sequence[float], score: float) -> bool:
    """Apply Optuna 5's rule: at least the score at the last place that continues."""
    every = sorted([*before, score], reverse=True)
    return score >= every[max(1, len(every) // ETA) - 1]


RULES: Mapping[str, Rule] = {"Ray": ray, "Syne Tune": syne_tune, "Optuna": optuna}


def run_digits(name: str, stream: Sequence[int], table: np.ndarray, units: float) -> list[Seen]:
    """Search the table in the order of `stream`, with the work of `units` full trainings."""
    rule, last, best = RULES[name], digits.PASSES, float(table[:, -1].min())
    levels: dict[int, list[float]] = {level: [] for level in LEVELS}
    seen: list[Seen] = []
    for row in stream:
        for passes in range(1, last + 1):
            work = (len(seen) + 1) / last
            if work > units:
                return seen
            error = float(table[row, passes - 1])
            seen.append(Seen(work, passes, error, float(table[row, -1]) - best))
            if passes in levels:
                goes_on = rule(levels[passes], -error)
                levels[passes].append(-error)
                if not goes_on:
                    break
    return seen
