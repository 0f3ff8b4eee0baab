"""Cost of a decision when many trials are known: `python -m benchmarks.decision_cost [--small]`.

Each scheduler first receives 10,000 trials, and then judges reports of further trials, which pass through all
rungs as in a search. A population has 1,000 members; BOHB knows 1,000 observations in 10 dimensions. Prints
median and 99th percentile, each as the median over five parts of the measured decisions, and a line of JSON.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.interleaved import Plain
from benchmarks.limits import insertions
from benchmarks.rows import Report, Row, parser
from trainkit import tune
from trainkit.tune import schedulers as sch
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import Decision, Verdict
from trainkit.tune.search import TuneBOHB
from trainkit.tune.space.search_space import Space

TRIALS, MEASURED = 10_000, 2_000
PARTS = 5
"""Number of parts into which the measured decisions are divided; each has its own median."""
MEMBERS = 1_000
OBSERVATIONS, DIMENSIONS = 1_000, 10
ITERATION = "training_iteration"


class Driven:
    """A scheduler that is driven as a controller would.

    Args:
        scheduler: scheduler to drive.
        seconds: True: reports have distinct times, as `time_total_s`.
    """

    def __init__(self, scheduler: sch.TrialScheduler, *, seconds: bool = False) -> None:
        scheduler.set_search_properties("loss", "min", scheduler_generator(0), None)
        self._scheduler = scheduler
        self._seconds = seconds
        self._rng = np.random.default_rng(0)
        self._trials = 0
        self._paused: dict[str, None] = {}

    def trial(self, reports: int) -> list[float]:
        """Let a new trial report until it is stopped or paused; return the seconds of each decision."""
        trial_id, config = f"{self._trials:05}", {"lr": float(self._rng.uniform(0.001, 1))}
        self._trials += 1
        self._scheduler.on_trial_add(trial_id, config)
        level, spent, took = float(self._rng.normal()), 0.0, []
        for iteration in range(1, reports + 1):
            spent += float(self._rng.uniform(0.5, 1.5))
            result = {
                ITERATION: iteration,
                "loss": level + 1 / iteration + 0.1 * float(self._rng.normal()),
                "time_total_s": spent if self._seconds else float(iteration),
                "config": config,
            }
            begin = time.perf_counter()
            decision = self._scheduler.on_result(trial_id, result)
            verdicts = self._scheduler.verdicts()
            goes_on = self._scheduler.choose_trial_to_run((), self._paused, new=True)
            took.append(time.perf_counter() - begin)
            self._heed([(trial_id, decision), *verdicts])
            if goes_on is not None:
                self._paused.pop(goes_on, None)
                self._scheduler.on_trial_resume(goes_on)
            if decision.verdict is not Verdict.CONTINUE:
                return took
        self._scheduler.on_trial_complete(trial_id)
        return took

    def _heed(self, decisions: list[tuple[str, Decision]]) -> None:
        for trial_id, decision in decisions:
            self._paused.pop(trial_id, None)
            if decision.verdict is Verdict.STOP:
                self._scheduler.on_trial_complete(trial_id)
            elif decision.verdict is Verdict.PAUSE:
                self._paused[trial_id] = None
            for donor in decision.donors[:1]:
                self._scheduler.on_trial_change(trial_id, donor.config, donor.trial_id)


def of_trials(
    scheduler: sch.TrialScheduler, reports: int, scale: float, *, seconds: bool = False
) -> list[float]:
    """Give a scheduler many trials, then measure with further trials; return the seconds of each decision."""
    driven = Driven(scheduler, seconds=seconds)
    for _ in range(round(TRIALS * scale)):
        driven.trial(reports)
    took: list[float] = []
    gc.collect()
    while len(took) < MEASURED * scale:
        took += driven.trial(reports)
    return took


def of_population(scheduler: sch.TrialScheduler, scale: float) -> list[float]:
    """Return the seconds of decisions about members of a population that all train in step."""
    driven = Driven(scheduler)
    count = max(8, round(MEMBERS * scale))
    scheduler.set_search_properties("loss", "min", scheduler_generator(0), count)
    rng, took = np.random.default_rng(0), []
    ids = [f"{number:05}" for number in range(count)]
    for trial_id in ids:
        scheduler.on_trial_add(trial_id, {"lr": float(rng.uniform(0.001, 1))})
    for iteration in (1, 2):
        for trial_id in ids:
            result = {ITERATION: iteration, "loss": float(rng.normal()), "config": {"lr": 0.1}}
            begin = time.perf_counter()
            decision = scheduler.on_result(trial_id, result)
            verdicts = scheduler.verdicts()
            cost = time.perf_counter() - begin
            if iteration == 2:
                took.append(cost)
            driven._heed([(trial_id, decision), *verdicts])
            if trial_id in driven._paused:
                scheduler.on_trial_resume(trial_id)
    return took


def of_bohb(scale: float) -> list[float]:
    """Return the seconds of suggestions by a model of many observations; each adds one observation."""
    space = {f"x{number}": tune.uniform(0, 1) for number in range(DIMENSIONS)}
    searcher = TuneBOHB()
    searcher.begin(Space.of(space), metric="loss", mode="min", num_samples=-1, seed=0)
    rng, took = np.random.default_rng(0), []
    known = max(DIMENSIONS + 5, round(OBSERVATIONS * scale))
    for number in range(known + max(5, round(100 * scale))):
        trial_id = f"{number:05}"
        config: Any = {name: float(rng.uniform()) for name in space}
        if number < known:
            searcher.replay(trial_id, config)
        else:
            begin = time.perf_counter()
            config = searcher.suggest(trial_id)
            took.append(time.perf_counter() - begin)
        result = {ITERATION: 1, "loss": sum(config.values()) + float(rng.normal())}
        searcher.on_trial_result(trial_id, result)
        stop = Decision(Verdict.STOP, {"rule": "max_t", "max_t": 1, "budget": 0})
        searcher.on_trial_decision(trial_id, result, stop)
        searcher.on_trial_complete(trial_id, result)
    return took


def _pbt(**given: Any) -> sch.TrialScheduler:
    mutations = {"lr": tune.uniform(0.001, 1)}
    return sch.PopulationBasedTraining(
        time_attr=ITERATION,
        perturbation_interval=1,
        hyperparam_mutations=mutations,
        log_config=False,
        **given,
    )


ROWS: dict[str, Callable[[float], list[float]]] = {
    "ASHA, stopping": lambda scale: of_trials(sch.ASHAScheduler(max_t=81, reduction_factor=3), 81, scale),
    "ASHA, promotion": lambda scale: of_trials(
        sch.ASHAScheduler(max_t=81, reduction_factor=3, type="promotion"), 81, scale
    ),
    "HyperBand": lambda scale: of_trials(sch.HyperBandScheduler(), 81, scale),
    "median, whole iterations": lambda scale: of_trials(
        sch.MedianStoppingRule(time_attr=ITERATION, grace_period=1), 27, scale
    ),
    "median, time_total_s": lambda scale: of_trials(
        sch.MedianStoppingRule(grace_period=1), 27, scale, seconds=True
    ),
    "PBT, of 1,000 members": lambda scale: of_population(_pbt(), scale),
    "BOHB, a suggestion": of_bohb,
}
"""Function that measures a row, by the row's name."""


def main() -> None:
    """Measure and print the rows."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", choices=list(ROWS), action="append", help="may be given again")
    given = arguments.parse_args()
    scale = 0.01 if given.small else 1.0
    with Report("decision_cost", small=given.small) as report:
        for name in given.only or ROWS:
            plain = Plain(insertions)
            plain.look()
            took = [each * 1e6 for each in ROWS[name](scale)]
            plain.look()
            # Parts are consecutive, because the known data grows.
            parts = [
                sorted(took[len(took) * part // PARTS : len(took) * (part + 1) // PARTS])
                for part in range(PARTS)
            ]
            tops = [part[int(0.99 * (len(part) - 1))] for part in parts]
            report.add(Row(name, "us").measured(map(statistics.median, parts), plain=plain.times))
            report.add(Row(f"{name}: 99th percentile", "us").measured(tops, plain=plain.times))


if __name__ == "__main__":
    main()
