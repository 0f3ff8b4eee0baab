"""What chance does to a simulated experiment: how long an attempt takes, when it fails, what it measures.

Each has generators of its own, made from the seed: with another scheduler, or without failures, the rest
stays as it was.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_finite, is_whole, require
from trainkit.tune.seeds import simulation_generator, trial_draws

if TYPE_CHECKING:
    from numpy.random import Generator

Script = Sequence[tuple[float, int]]
"""Failures at given times: (seconds, number of the trial)."""

_BLOCK = 256
"""Draws made at once: one by one they would cost more than all the rest of a step."""


class Stragglers:
    """Factors that attempts' durations are multiplied by: 1 + |N(0, std)|.

    Source: Li et al. 2020, arXiv:1810.05934, appendix A.1.

    Args:
        std: of the normal distribution; 0: every attempt takes as long as it should.
        seed: of the experiment.

    Raises:
        ConfigError: `std` is no number of 0 or more.
    """

    def __init__(self, std: float, seed: int) -> None:
        require(is_finite(std) and std >= 0, f"stragglers={std!r}: give a standard deviation of 0 or more")
        self._std = float(std)
        self._draws = self._drawn(seed)

    def _drawn(self, seed: int) -> Iterator[float]:
        rng = simulation_generator(seed, "stragglers")
        while True:
            yield from (1.0 + abs(rng.normal(0.0, self._std, _BLOCK))).tolist()

    def factor(self) -> float:
        """For the next attempt."""
        return next(self._draws) if self._std else 1.0


class Failures:
    """When attempts fail.

    Args:
        given: probability that a running attempt fails within a second, the same at all times; or a script.
        seed: of the experiment.

    Raises:
        ConfigError: `given` is neither.
    """

    def __init__(self, given: float | Script, seed: int) -> None:
        self._draws: Iterator[float] | None = None
        self._script: defaultdict[int, list[float]] = defaultdict(list)
        if isinstance(given, (int, float)):
            require(0 <= given < 1, f"failures={given!r}: give a probability per second, from 0 to below 1")
            if given > 0:
                self._draws = self._drawn(seed, -1.0 / math.log1p(-given))
            return
        for entry in _entries(given):
            self._script[entry[1]].append(float(entry[0]))
        for times in self._script.values():
            times.sort()

    @staticmethod
    def _drawn(seed: int, mean_s: float) -> Iterator[float]:
        rng = simulation_generator(seed, "failures")
        while True:
            yield from rng.exponential(mean_s, _BLOCK).tolist()

    def due(self, trial: int, now: float) -> float:
        """When an attempt of the trial with this number fails that begins now; infinity: it doesn't.

        Those that the script has for the past, or for this very moment, are over.
        """
        if self._draws is not None:
            return now + next(self._draws)
        if not self._script:
            return math.inf
        times = self._script.get(trial, [])
        place = bisect_left(times, math.nextafter(now, math.inf))
        return times[place] if place < len(times) else math.inf


def _entries(given: object) -> Script:
    words = f"failures={given!r:.100}: give a probability per second, or pairs (seconds, number of the trial)"
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ConfigError(words)
    for entry in given:
        if not (isinstance(entry, Sequence) and len(entry) == 2):
            raise ConfigError(words)
        time, trial = entry
        require(is_finite(time) and time >= 0 and is_whole(trial) and trial >= 0, words)
    return given


class Measurements:
    """The generator that an objective draws from, the same for the same iteration of a trial.

    So whatever scheduler looks at it, and however often it is run again, a trial measures the same.

    Args:
        seed: of the experiment.
    """

    def __init__(self, seed: int) -> None:
        self._rng, self._at = trial_draws(seed)

    def of(self, trial: int, iteration: int) -> Generator:
        """Return the generator, at the place for this iteration; good until the next call."""
        self._at(trial, iteration)
        return self._rng
