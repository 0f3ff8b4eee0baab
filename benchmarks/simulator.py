"""Results of the simulator on the papers' examples, and its cost.

    python -m benchmarks.simulator [--only toy stragglers scaling cost large] [--folder pictures]
                                   [--seeds 25] [--rows 1 2] [--jobs 1000000] [--small]

Seconds are CPU seconds of this process, so that other load on the machine matters little. The last line has
the costs as rows of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.interleaved import Plain, output_of
from benchmarks.limits import insertions
from benchmarks.rows import MORE, Report, Row, parser
from benchmarks.simulated_work import (
    STRAGGLERS,
    Rungs,
    Spread,
    asha,
    first_full,
    full_times,
    run,
    sha,
    straggling,
)
from trainkit import tune
from trainkit.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler


def toy(arguments: argparse.Namespace) -> None:
    """Simulate figure 1 of the ASHA paper."""
    print("First configuration of the toy bracket trained to R: 9 workers, eta 3, r 1, R 9")
    for name, make in (("ASHA", asha), ("SHA", sha)):
        scratch, resumed = (first_full(resume, make(9, 3)) for resume in (False, True))
        print(f"  {name:5} t = {scratch:g} from scratch (13), t = {resumed:g} resumed (9)")
    results = run(asha(9, 3), Rungs(3), 9, workers=9, seed=0)
    _save(results, "timeline", arguments.folder / "toy_timeline.png")


def stragglers(arguments: argparse.Namespace) -> None:
    """Simulate appendix A.1 of the ASHA paper."""
    seeds = range(arguments.seeds)
    print(
        "\nStragglers and lost jobs: 25 workers, eta 4, r 1, R 256, n 256, from scratch, 2000 units of time,"
    )
    print(f"{arguments.seeds} seeds; reference in brackets, * where it is more than two standard errors away")
    print("  std   p      trained to R: SHA, ASHA; the first at: SHA, ASHA")
    for number, ((std, hazard), reference) in enumerate(STRAGGLERS.items(), 1):
        if arguments.rows and number not in arguments.rows:
            continue
        counts, firsts = zip(*(straggling(make, std, hazard, seeds) for make in (sha, asha)), strict=True)
        cells = [
            f"{got} ({expected[0]:g}±{expected[1]:g}){_far(got, *expected)}"
            for got, expected in zip((*counts, *firsts), reference, strict=True)
        ]
        print(f"  {std:<4g}  {hazard:<5g}  {'  '.join(cells)}", flush=True)
    results = run(asha(256, 4), Rungs(4), workers=25, horizon_s=1000, stragglers=0.56, failures=0.001, seed=0)
    _save(results, "timeline", arguments.folder / "stragglers_timeline.png")
    _save(results, "rungs", arguments.folder / "stragglers_rungs.png")


def _far(got: Spread, mean: float, deviation: float) -> str:
    """Return a mark if two means differ by more than two standard errors and by more than a hundredth."""
    number = len(got.values)
    error = (got.deviation**2 / number + deviation**2 / 25) ** 0.5
    return "*" if abs(got.mean - mean) > max(2 * error, 0.01 * mean) else ""


def scaling(arguments: argparse.Namespace) -> None:
    """Print how much more 512 workers do than one."""
    reference = {1: 1.40, 4: 1.45, 16: 1.36, 64: 1.26, 256: 1.17, 512: 1.15}
    print("\nThroughput of ASHA: stragglers .24, rank noise .1, from scratch, 2000 units of time")
    for workers, expected in list(reference.items())[: 1 if arguments.small else None]:
        seeds = range(1 if arguments.small else 8 if workers <= 16 else 2 if workers == 64 else 1)
        values, busy = [], []
        for seed in seeds:
            results = run(
                asha(256, 4),
                Rungs(4, 0.1),
                workers=workers,
                horizon_s=400 if arguments.small else 2000,
                stragglers=0.24,
                resume=False,
                seed=seed,
            )
            values.append(len(full_times(results, 256)) / workers)
            busy.append(results.utilisation)
        got = Spread(values)
        print(
            f"  {workers:4} workers: trained to R per worker {got.mean:.2f} ({expected:.2f}), "
            f"utilisation {Spread(busy).mean:.3f}, {len(values)} seeds",
            flush=True,
        )


def one(config: Any, training_iteration: int, rng: Any) -> dict[str, Any]:
    """Report an iteration of one unit."""
    return {"loss": config["x"] / training_iteration}


KINDS: dict[str, tuple[Callable[[], TrialScheduler], Any]] = {
    "FIFO, 27 reports a trial": (FIFOScheduler, one),
    "ASHA stopping, a report a rung": (
        lambda: ASHAScheduler("resource", max_t=256, reduction_factor=4),
        Rungs(4),
    ),
    "ASHA promotion, a report a rung": (lambda: asha(256, 4), Rungs(4)),
}


def cost(arguments: argparse.Namespace) -> list[Row]:
    """Measure jobs per second of CPU, with 25 workers and with records kept.

    A job is the work of a worker between two decisions on its trial, as in ASHA's paper: an iteration with
    FIFO, and with ASHA the training of a trial up to its next rung. Three of four jobs of ASHA are the first
    of their trial, so the trial is sampled, named, set up and ended for it; with FIFO this is one in 27. So
    each speed is given with the number of trials per job.
    """
    jobs = 500 if arguments.small else 50_000
    rows = []
    for name, (make, objective) in KINDS.items():
        plain, speeds = Plain(insertions), []
        for _ in range(1 if arguments.small else 3):
            plain.look()
            spent, results = _timed(make(), objective, 25, jobs)
            speeds.append(results.work / spent)
        rows.append(Row(f"{name}: jobs", "1/s", MORE).measured(speeds, plain=plain.times))
        trials = Row(f"{name}: new trials a job", better="", exact=True)
        rows.append(trials.measured([len(results) / results.work]))
    return rows


def _timed(
    scheduler: TrialScheduler, objective: Any, workers: int, jobs: int
) -> tuple[float, tune.Simulation]:
    """Return the CPU seconds for `jobs` jobs, and the simulation."""
    gc.collect()
    config = tune.TuneConfig(
        metric="loss", mode="min", num_samples=-1, scheduler=scheduler, search_alg="random"
    )
    stop = tune.RunConfig(stop={"training_iteration": 27})
    began = time.process_time()
    results = tune.simulate(
        objective,
        {"x": tune.uniform(0, 1)},
        config,
        workers=workers,
        max_work=jobs,
        seed=0,
        run_config=stop if isinstance(scheduler, FIFOScheduler) else None,
    )
    return time.process_time() - began, results


def large(arguments: argparse.Namespace) -> list[Row]:
    """Measure 10,000 workers in a separate process, because its memory is measured."""
    command = [sys.executable, "-m", "benchmarks.simulator", "--only", "large-alone"]
    command += ["--jobs", str(arguments.jobs)]
    plain, found = Plain(insertions), []
    for _ in range(1 if arguments.small else 3):
        plain.look()
        found.append(json.loads(output_of([*command, "--small"] if arguments.small else command)))
    spent, peaks = zip(*found, strict=True)
    name = f"10,000 workers, {arguments.jobs:,} jobs (ASHA, a report a rung)"
    return [
        Row(f"{name}: CPU", "s").measured(spent, plain=plain.times),
        Row(f"{name}: at the most", "MB").measured(peaks),
    ]


def _large(arguments: argparse.Namespace) -> tuple[int, int]:
    """Return the numbers of workers and jobs of the large simulation."""
    return (100, 2_000) if arguments.small else (10_000, arguments.jobs)


def large_alone(arguments: argparse.Namespace) -> None:
    """Run the large simulation in this process; print its seconds and megabytes."""
    began = time.process_time()
    make, objective = KINDS["ASHA stopping, a report a rung"]
    _timed(make(), objective, *_large(arguments))
    # getrusage would include the memory of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    print(json.dumps([time.process_time() - began, peak]))


def _save(results: tune.Simulation, kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results.plot(kind).savefig(path, dpi=120)
    print(f"  {path}")


SHOWN = {"toy": toy, "stragglers": stragglers, "scaling": scaling, "large-alone": large_alone}
MEASURED = {"cost": cost, "large": large}


def main(given: Sequence[str] | None = None) -> None:
    """Print all sections, or the requested ones."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=25, help="of the straggler table")
    options.add_argument("--rows", type=int, nargs="+", help="of that table, from 1 on; a minute each")
    options.add_argument("--jobs", type=int, default=200_000, help="of 10,000 workers; default %(default)s")
    options.add_argument("--folder", type=Path, default=Path("pictures"), help="for the plots")
    options.add_argument("--only", nargs="+", choices=[*SHOWN, *MEASURED], help="some of the parts")
    arguments = options.parse_args(given)
    if arguments.small:
        arguments.seeds, arguments.rows = 1, [1]
    names = arguments.only or [name for name in [*SHOWN, *MEASURED] if name != "large-alone"]
    for name in [name for name in SHOWN if name in names]:
        SHOWN[name](arguments)
    if measured := [name for name in MEASURED if name in names]:
        with Report("simulator", small=arguments.small) as report:
            for name in measured:
                for row in MEASURED[name](arguments):
                    report.add(row)


if __name__ == "__main__":
    main()
