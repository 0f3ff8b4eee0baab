"""Work of a process in the comparison of searches: one seed of one row. Functions return figures by point."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from benchmarks import search_ours, search_peers, search_populations
from benchmarks.incumbents import regrets
from benchmarks.problems import curves
from benchmarks.problems import digits as problem

DIGITS_POINTS = (3, 5, 10, 20)
WORKERS = (1, 4, 16)
TOY_POINTS, PAPER_POINTS = (20, 50, 100), (50, 100, 200, 400)


@cache
def _table() -> np.ndarray:
    return problem.table()


def digits(name: str, seed: int) -> list[float]:
    """Return the regret of one of our algorithms on the digits table."""
    return regrets(search_ours.run_table(name, seed, _table(), units=DIGITS_POINTS[-1]), DIGITS_POINTS)


def crossing(table: str, name: str, seed: int) -> list[float]:
    """Return the regret of one of our algorithms on a table of `curves`."""
    seen = search_ours.run_table(name, seed, curves.table(table), units=DIGITS_POINTS[-1])
    return regrets(seen, DIGITS_POINTS)


def rule_digits(name: str, seed: int) -> list[float]:
    """Return the regret of another library's stopping rule on the digits table, with the same stream."""
    stream = search_ours.stream(seed)
    return regrets(search_peers.run_digits(name, stream, _table(), DIGITS_POINTS[-1]), DIGITS_POINTS)


def digits_by_workers(name: str, seed: int) -> list[float]:
    """Return the regret for each number of workers, after the time of five full trainings."""
    runs = [search_ours.run_table(name, seed, _table(), units=5, workers=workers) for workers in WORKERS]
    return [regrets(run, [5])[0] for run in runs]


def ones(name: str, d: int, points: Sequence[float], seed: int) -> list[float]:
    """Return the regret of one of our algorithms on the problem of counting ones."""
    return regrets(search_ours.run_ones(name, seed, d=d, units=points[-1]), points)


def toy(seed: int) -> list[float]:
    """Return the best value of full PBT at each point."""
    best = search_populations.run_toy("PBT", seed)
    return [best[point - 1] for point in TOY_POINTS]


def toy_of_the_paper(seed: int) -> list[float]:
    """Return the best value of PBT in the paper's setting, where ties are broken at random."""
    best = search_populations.run_toy_of_the_paper(seed)
    return [best[point - 1] for point in PAPER_POINTS]


def toy_trace() -> dict[int, float]:
    """Return the best value by step if weights are copied and nothing is random."""
    return dict(enumerate(search_populations.run_toy("exploit only", 0), 1))


def bandit(name: str, seed: int) -> list[float]:
    """Return the best mean gain, with drift and without."""
    return [search_populations.run_bandit(name, seed, drift=drift) for drift in (True, False)]
