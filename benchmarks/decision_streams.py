"""Streams of reports, of the kinds for which early stopping rules differ."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

KINDS = {
    "plain": "distinct values, each trial reports 1, 2, 3, ...",
    "ties": "whole numbers from 0 to 5",
    "NaN": "one report in ten is NaN, or infinite",
    "jumps": "one report in three is up to 30 later than the one before",
    "back": "one report in ten is earlier than the one before, as after a restore",
    "late": "one more report comes after a trial was stopped",
    "no metric": "one report in five lacks the metric",
}
MAX_T = 100


class Report(NamedTuple):
    """A trial's report; the value is None if it is missing."""

    trial: str
    t: int
    value: float | None


def stream(kind: str, seed: int, trials: int = 40, last_t: int = MAX_T + 5) -> list[Report]:
    """Return the reports that all trials would make up to `last_t`, in the order of time."""
    rng = np.random.default_rng([seed, *kind.encode()])
    timed: list[tuple[float, Report]] = []
    for number in range(trials):
        quality, clock, t = rng.normal(), float(rng.uniform(0, trials)), 0
        while t < last_t:
            t = _next(kind, t, rng)
            clock += float(rng.exponential())
            value: float | None = float(quality + 0.02 * t + 0.5 * rng.normal())
            if kind == "ties":
                value = float(rng.integers(6))
            elif kind == "NaN" and rng.random() < 0.1:
                value = float(rng.choice([math.nan, math.inf, -math.inf]))
            elif kind == "no metric" and rng.random() < 0.2:
                value = None
            timed.append((clock, Report(str(number), t, value)))
    timed.sort(key=lambda each: each[0])
    return [report for _, report in timed]


def _next(kind: str, t: int, rng: np.random.Generator) -> int:
    if kind == "jumps" and rng.random() < 1 / 3:
        return t + int(rng.integers(2, 31))
    if kind == "back" and rng.random() < 0.1:
        return max(1, t - int(rng.integers(1, 6)))
    return t + 1
