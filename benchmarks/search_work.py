"""One seed of one row of the comparison of searches: what a process of it does. Figures by point."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from benchmarks import search_ours, search_peers, search_populations
from benchmarks.incumbents import regrets
from benchmarks.problems import digits as problem

DIGITS_POINTS = (3, 5, 10, 20)
WORKERS = (1, 4, 16)
TOY_POINTS, PAPER_POINTS = (20, 50, 100), (50, 100, 200, 400)


@cache
def _table() -> np.ndarray:
    return problem.table()


def digits(name: str, seed: int) -> list[float]:
    """Regret of one of ours on the digits table."""
    return regrets(search_ours.run_digits(name, seed, _table(), units=DIGITS_POINTS[-1]), DIGITS_POINTS)


def rule_digits(name: str, seed: int) -> list[float]:
    """The same of another library's stopping rule, on the same stream."""
    stream = search_ours.digits_stream(seed)
    return regrets(search_peers.run_digits(name, stream, _table(), DIGITS_POINTS[-1]), DIGITS_POINTS)


def digits_by_workers(name: str, seed: int) -> list[float]:
    """Regret for each number of workers, after the time of five full trainings."""
    runs = [search_ours.run_digits(name, seed, _table(), units=5, workers=workers) for workers in WORKERS]
    return [regrets(run, [5])[0] for run in runs]


def ones(name: str, d: int, points: Sequence[float], seed: int) -> list[float]:
    """Regret of one of ours on counting ones."""
    return regrets(search_ours.run_ones(name, seed, d=d, units=points[-1]), points)


def toy(seed: int) -> list[float]:
    """The best value of full PBT."""
    best = search_populations.run_toy("PBT", seed)
    return [best[point - 1] for point in TOY_POINTS]


def toy_of_the_paper(seed: int) -> list[float]:
    """The same with ties broken at random."""
    best = search_populations.run_toy_of_the_paper(seed)
    return [best[point - 1] for point in PAPER_POINTS]


def toy_trace() -> dict[int, float]:
    """By step, the best value where weights are copied and nothing is drawn."""
    return dict(enumerate(search_populations.run_toy("exploit only", 0), 1))


def bandit(name: str, seed: int) -> list[float]:
    """The best mean gain, with and without drift."""
    return [search_populations.run_bandit(name, seed, drift=drift) for drift in (True, False)]
