"""Our side of the comparison of searches: each problem under each scheduler, simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from benchmarks.incumbents import Seen
from benchmarks.problems import digits, ones
from trainkit import tune
from trainkit.tune import schedulers as sch
from trainkit.tune.schedulers import Verdict


@dataclass(frozen=True)
class Side:
    """One of our algorithms.

    Attributes:
        scheduler: function that makes the scheduler from `time_attr`, `max_t` and `arguments`.
        searcher: function that makes the searcher; None: random configurations.
        from_scratch: True: each measurement is new and costs its whole budget, as in HpBandSter.
    """

    scheduler: Callable[..., sch.TrialScheduler]
    searcher: Callable[[], Any] | None = None
    from_scratch: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def made(self, time_attr: str, max_t: float) -> dict[str, Any]:
        """Return the arguments for a TuneConfig."""
        given = {} if self.scheduler is sch.FIFOScheduler else {"time_attr": time_attr, "max_t": max_t}
        searcher = "random" if self.searcher is None else self.searcher()
        return {"scheduler": self.scheduler(**{**given, **self.arguments}), "search_alg": searcher}


_ASHA = {"grace_period": 1, "reduction_factor": 3}


def _median(time_attr: str, max_t: float, **arguments: Any) -> sch.TrialScheduler:
    del max_t
    return sch.MedianStoppingRule(time_attr=time_attr, grace_period=1, min_samples_required=3, **arguments)


SIDES: dict[str, Side] = {
    "random": Side(sch.FIFOScheduler),
    "ASHA, stopping": Side(sch.ASHAScheduler, arguments=_ASHA),
    "ASHA, promotion": Side(sch.ASHAScheduler, arguments=_ASHA | {"type": "promotion"}),
    "HyperBand": Side(sch.HyperBandScheduler, arguments={"reduction_factor": 3}),
    "HyperBand, from scratch": Side(
        sch.HyperBandScheduler, arguments={"reduction_factor": 3}, from_scratch=True
    ),
    "BOHB, from scratch": Side(
        sch.HyperBandForBOHB,
        lambda: tune.search.TuneBOHB(),
        arguments={"reduction_factor": 3},
        from_scratch=True,
    ),
    "BOHB, from scratch, HpBandSter's min_bandwidth": Side(
        sch.HyperBandForBOHB,
        lambda: tune.search.TuneBOHB(bohb_config={"min_bandwidth": 1e-3}),
        arguments={"reduction_factor": 3},
        from_scratch=True,
    ),
    "median": Side(_median),
    "learned stopping": Side(sch.LearnedStopping),
    "Optuna TPE": Side(sch.FIFOScheduler, lambda: tune.search.OptunaSearch()),
    "Optuna TPE + ASHA": Side(
        sch.ASHAScheduler, lambda: tune.search.OptunaSearch(), arguments=_ASHA | {"brackets": 5}
    ),
    "Optuna TPE + ASHA, promotion": Side(
        sch.ASHAScheduler, lambda: tune.search.OptunaSearch(), arguments=_ASHA | {"type": "promotion"}
    ),
    "default": Side(sch.FIFOScheduler, lambda: tune.search.AutoSearch()),
    "hyperopt TPE": Side(sch.FIFOScheduler, lambda: tune.search.HyperOptSearch()),
}


def stream(seed: int, size: int = digits.CONFIGURATIONS) -> list[int]:
    """Return the order in which the configurations of a table are tried."""
    return np.random.default_rng(seed).permutation(size).tolist()


def run_table(name: str, seed: int, errors: np.ndarray, *, units: float, workers: int = 1) -> list[Seen]:
    """Search the table `errors` for the time in which each worker could do `units` full trainings."""
    best, last = float(errors[:, -1].min()), errors.shape[1]

    def objective(config: Mapping[str, Any], training_iteration: int, rng: np.random.Generator) -> dict:
        del rng
        error = float(errors[config["row"], training_iteration - 1])
        return {"error": error, "done": training_iteration == last}

    results = tune.simulate(
        objective,
        param_space={"row": tune.grid_search(stream(seed, len(errors)))},
        tune_config=tune.TuneConfig(
            metric="error", mode="min", **SIDES[name].made("training_iteration", last)
        ),
        workers=workers,
        horizon_s=units * last + 0.5,
        seed=seed,
    )
    return [
        Seen(
            report["timestamp"] / last,
            report["training_iteration"],
            report["error"],
            float(errors[result.config["row"], -1]) - best,
        )
        for result in results
        for report in result.history
    ]


def run_ones(name: str, seed: int, *, d: int, units: float) -> list[Seen]:
    """Search for the time of `units` measurements with the largest budget, one measurement at a time.

    From scratch, only reports that a scheduler judges are measurements, and each costs its whole budget.
    """
    side, levels = SIDES[name], ones.LEVELS

    def objective(config: Mapping[str, Any], training_iteration: int, rng: np.random.Generator) -> dict:
        del rng
        level = training_iteration - 1
        return {
            "loss": ones.loss(config, level, d=d, seed=seed, from_scratch=side.from_scratch),
            "resource": levels[level],
            "time_this_iter_s": float(levels[level] - (levels[level - 1] if level else 0)),
            "done": training_iteration == len(levels),
        }

    bits, chances = ones.names(d)
    space = {name: tune.choice([0, 1]) for name in bits} | {name: tune.uniform(0, 1) for name in chances}
    results = tune.simulate(
        objective,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=-1, **side.made("resource", levels[-1])
        ),
        workers=1,
        horizon_s=units * levels[-1] + 0.5,
        seed=seed,
    )
    reports = [(report, result) for result in results for report in result.history]
    reports.sort(key=lambda pair: pair[0]["timestamp"])
    if side.from_scratch:
        judged = {
            (each["trial_id"], each["iteration"])
            for each in results.decisions()
            if each["verdict"] != Verdict.RESUME
        }
        reports = [pair for pair in reports if (pair[1].trial_id, pair[0]["training_iteration"]) in judged]
        spent = list(accumulate(report["resource"] for report, _ in reports))
    else:
        spent = [report["timestamp"] for report, _ in reports]
    return [
        Seen(work / levels[-1], report["resource"], report["loss"], ones.regret(result.config, d))
        for work, (report, result) in zip(spent, reports, strict=True)
    ]
