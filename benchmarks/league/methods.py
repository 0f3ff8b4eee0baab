"""Runs of one search: ours in simulation, another library's by questions on the same virtual clock."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.incumbents import Seen
from benchmarks.league.lines import Asked
from benchmarks.league.problems import Parameter, Problem
from trainkit import __version__, tune


@dataclass(frozen=True)
class Run:
    """A run of a search.

    Attributes:
        seen: the reports in their order; work counts in complete trials.
        cpu_s: seconds of CPU of this process, or elapsed seconds of another process, in all.
        version: package and version of the method.
    """

    seen: list[Seen]
    cpu_s: float
    version: str


Search = Callable[[Problem, int, int, int], Run]
"""Function (problem, seed, workers, evaluations) -> run."""


def _domain(each: Parameter) -> Any:
    if each.values:
        made: Any = tune.choice(list(each.values))
    elif each.integer:
        made = (tune.lograndint if each.log else tune.randint)(int(each.low), int(each.high) + 1)
    else:
        made = (tune.loguniform if each.log else tune.uniform)(each.low, each.high)
    return tune.when({each.parent: list(each.branches)}, made) if each.parent else made


def ours(**named: Any) -> Search:
    """Return a search with trainkit, with `named` as further arguments of its TuneConfig."""

    def search(problem: Problem, seed: int, workers: int, evaluations: int) -> Run:
        def objective(
            config: Mapping[str, Any], training_iteration: int, rng: np.random.Generator
        ) -> dict[str, Any]:
            del rng
            losses, last = problem.losses(config, seed)
            return {
                "loss": losses[training_iteration - 1],
                "last": last,
                "time_this_iter_s": problem.seconds(config, seed),
                "done": training_iteration == len(losses),
            }

        start = time.process_time()
        results = tune.simulate(
            objective,
            param_space={each.name: _domain(each) for each in problem.space},
            tune_config=tune.TuneConfig(
                metric="loss", mode="min", num_samples=evaluations if problem.reports == 1 else -1, **named
            ),
            workers=workers,
            max_work=evaluations * problem.reports,
            seed=seed,
        )
        reports = sorted(
            (report["timestamp"], report["training_iteration"], report["loss"], report["last"])
            for result in results
            for report in result.history
        )
        seen = [
            Seen(count / problem.reports, step, loss, last - problem.optimum)
            for count, (_, step, loss, last) in enumerate(reports, 1)
        ]
        return Run(seen, time.process_time() - start, f"trainkit {__version__}")

    return search


def theirs(method: str, process: Asked) -> Search:
    """Return a search with another library in its process."""

    def search(problem: Problem, seed: int, workers: int, evaluations: int) -> Run:
        version = process.ask(
            do="start",
            method=method,
            space=[each.plain for each in problem.space],
            seed=seed,
            evaluations=evaluations,
            reports=problem.reports,
        )
        start = time.perf_counter()
        seen = list(_reports(process, problem, seed, workers, evaluations))
        took = time.perf_counter() - start
        process.ask(do="close")
        return Run(seen, took, version)

    return search


def _reports(process: Asked, problem: Problem, seed: int, workers: int, evaluations: int) -> Iterator[Seen]:
    """Yield the reports; a worker starts the next trial as soon as its trial has ended."""
    most, count, number, now = evaluations * problem.reports, 0, 0, 0.0
    running: list[tuple[float, int, int]] = []
    trials: dict[int, tuple[Sequence[float], float, float]] = {}
    while count < most:
        while len(running) < workers and (problem.reports > 1 or number < evaluations):
            config = process.ask(do="suggest", number=number)
            trials[number] = (*problem.losses(config, seed), problem.seconds(config, seed))
            heapq.heappush(running, (now + trials[number][2], number, 1))
            number += 1
        now, trial, step = heapq.heappop(running)
        losses, last, seconds = trials[trial]
        loss, count = losses[step - 1], count + 1
        yield Seen(count / problem.reports, step, loss, last - problem.optimum)
        ends = step == len(losses)
        stopped = problem.reports > 1 and process.ask(do="report", number=trial, step=step, loss=loss)
        if stopped or ends:
            process.ask(do="end", number=trial, loss=loss, stopped=not ends)
        else:
            heapq.heappush(running, (now + seconds, trial, step + 1))
