"""Simulations for `benchmarks.simulator`: bracket examples of the papers, stragglers, many workers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit import tune
from trainkit.tune.schedulers import ASHAScheduler, HyperBandScheduler, TrialScheduler

SPACE = {"x": tune.uniform(0, 1)}


class SuccessiveHalving(HyperBandScheduler):
    """Hyperband with its widest bracket only, repeatedly: synchronous successive halving."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._plans = self._plans[:1]


@dataclass(frozen=True)
class Rungs:
    """An objective whose iteration k is rung k, so that trials report only at rungs.

    Attributes:
        factor: eta; iteration k ends at factor**(k - 1) units.
        noise: standard deviation of the noise added to the score.
    """

    factor: int
    noise: float = 0.0

    def __call__(self, config: Mapping[str, Any], training_iteration: int, rng: Any) -> dict[str, Any]:
        level = self.factor ** (training_iteration - 1)
        before = level // self.factor if training_iteration > 1 else 0
        loss = config["x"] + (self.noise * rng.normal() if self.noise else 0.0)
        return {"loss": loss, "resource": level, "time_this_iter_s": level - before}


def asha(max_t: int, factor: int) -> TrialScheduler:
    """Return ASHA in its published form: trials pause at rungs and resume when promoted."""
    return ASHAScheduler("resource", max_t=max_t, reduction_factor=factor, type="promotion")


def sha(max_t: int, factor: int) -> TrialScheduler:
    """Return synchronous successive halving."""
    return SuccessiveHalving("resource", max_t=max_t, reduction_factor=factor)


def run(scheduler: TrialScheduler, objective: Any, num_samples: int = -1, **settings: Any) -> tune.Simulation:
    """Simulate a search for the smallest loss."""
    config = tune.TuneConfig(
        metric="loss", mode="min", num_samples=num_samples, scheduler=scheduler, search_alg="random"
    )
    return tune.simulate(objective, SPACE, config, **settings)


def full_times(results: tune.Simulation, level: float) -> list[float]:
    """Return the times at which trials reached `level`, in order."""
    times = [result.metrics["timestamp"] for result in results if result.metrics.get("resource", 0) >= level]
    return sorted(times)


# --- Li et al. 2020, figure 1 and appendix A.1 -------------------------------------------------------


def first_full(resume: bool, scheduler: TrialScheduler, workers: int = 9) -> float:
    """Return when the first of 9 configurations of the toy bracket (r 1, R 9, eta 3) is trained to R."""
    results = run(scheduler, Rungs(3), 9, workers=workers, resume=resume, seed=0)
    return full_times(results, 9)[0]


STRAGGLERS = {
    (0.0, 0.0): ((33.0, 0.0), (42.3, 4.3), (360, 0), (354, 7)),
    (0.10, 0.0): ((30.4, 0.5), (40.0, 5.0), (398, 15), (381, 13)),
    (0.24, 0.0): ((26.6, 0.6), (35.5, 4.6), (438, 31), (409, 28)),
    (0.24, 0.001): ((20.8, 2.2), (25.4, 5.0), (463, 39), (429, 38)),
    (0.56, 0.0): ((21.0, 0.7), (28.7, 3.5), (524, 55), (462, 40)),
    (0.56, 0.001): ((14.4, 2.0), (18.8, 2.8), (580, 96), (523, 94)),
    (1.33, 0.0): ((12.4, 1.2), (18.3, 2.7), (731, 87), (607, 91)),
    (1.33, 0.001): ((8.2, 1.7), (10.7, 2.8), (775, 176), (696, 135)),
}
"""Paper's results by (std, failures per unit of time), as mean and deviation over 25 seeds: configurations
trained to R by SHA and by ASHA, and the time of the first by SHA and by ASHA."""


@dataclass(frozen=True)
class Spread:
    """Values over seeds."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        return f"{self.mean:7.1f}±{self.deviation:<6.1f}"


def straggling(
    make: Any, std: float, hazard: float, seeds: Sequence[int], horizon_s: float = 2000, resume: bool = False
) -> tuple[Spread, Spread]:
    """Return the number of configurations trained to R and the time of the first, over seeds.

    The setting is 25 workers, eta 4, r 1, R 256; trials train from scratch unless `resume` is set.
    """
    counts, firsts = [], []
    for seed in seeds:
        results = run(
            make(256, 4),
            Rungs(4),
            workers=25,
            horizon_s=horizon_s,
            stragglers=std,
            failures=hazard,
            resume=resume,
            seed=seed,
        )
        times = full_times(results, 256)
        counts.append(len(times))
        firsts += times[:1]
    return Spread(counts), Spread(firsts)
