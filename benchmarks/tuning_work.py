"""Work that the tuner's benchmark times. It is the same on both sides, whose functions have equal names.

`python -m benchmarks.tuning_work SIDE SECTION SCALE` runs one section and prints its figures as a line of
JSON. `benchmarks.tuning` runs each as a separate process, so that no side disturbs the other, and removes the
experiments from the temporary folder. A side that lacks a package prints {"skipped": ...}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.interleaved import output_of, timed

ARGUMENTS: dict[str, dict[str, Any]] = {
    "trainkit": {},
    "ray": {"address": "local", "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"},
}
NEEDED = {"trainkit": "trainkit-ml[tune]", "ray": "ray[tune]"}
SLEEP_S = 0.1
SLEEPERS = 16


class Bench:
    """One side, with a separate session.

    Args:
        side: "trainkit" or "ray".
        num_cpus: number of CPUs that the session declares.
        init: further arguments of `init`.
    """

    def __init__(self, side: str, num_cpus: int, **init: Any) -> None:
        self._root = importlib.import_module(side)
        self.tune = importlib.import_module(f"{side}.tune")
        self._root.init(num_cpus=num_cpus, **ARGUMENTS[side], **init)
        self._folder = tempfile.mkdtemp(prefix="tuning-benchmark-")
        self._runs = 0
        self.cpu_s = 0.0
        """CPU seconds of this process in the last `fit`."""

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._root.shutdown()

    def fit(
        self,
        trainable: Any,
        num_samples: int,
        *,
        reuse: bool = False,
        space: dict[str, Any] | None = None,
        search_alg: Any = "random",
        callbacks: list[Any] | None = None,
    ) -> tuple[float, Any]:
        """Return the wall seconds of a `fit` with default loggers and no console output, and its results.

        The default searcher of trainkit learns, but Ray's does not. So both search at random.
        """
        tune, self._runs = self.tune, self._runs + 1
        tuner = tune.Tuner(
            trainable,
            param_space={"x": tune.uniform(-10, 10), **(space or {})},
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                num_samples=num_samples,
                reuse_actors=reuse,
                search_alg=search_alg,
            ),
            run_config=tune.RunConfig(
                storage_path=self._folder, name=f"run_{self._runs}", verbose=0, callbacks=callbacks or []
            ),
        )
        start, cpu_s = time.perf_counter(), time.process_time()
        results = tuner.fit()
        took, self.cpu_s = time.perf_counter() - start, time.process_time() - cpu_s
        if len(results) != num_samples or results.num_errors:
            raise RuntimeError(f"{num_samples} trials were asked for, and these came: {results}")
        return took, results


def trivial(config: dict[str, Any]) -> dict[str, float]:
    """Report once, by returning."""
    return {"loss": (config["x"] - 2) ** 2}


def sleeper(config: dict[str, Any]) -> dict[str, float]:
    """Sleep for a tenth of a second."""
    time.sleep(SLEEP_S)
    return {"loss": config["x"]}


def chatty(report: Callable[[dict[str, float]], None]) -> Callable[[dict[str, Any]], None]:
    """Return a training function that reports as fast as possible."""

    def trainable(config: dict[str, Any]) -> None:
        for step in range(config["reports"]):
            report({"loss": config["x"] / (step + 1)})

    return trainable


# --- sections: from a side and a scale to figures -------------------------------------------------


def fresh(side: str, scale: float) -> dict[str, float]:
    """Measure trivial trials in one process each, and the files that they leave on disk."""
    count = max(2, round((100 if side == "trainkit" else 50) * scale))
    with Bench(side, 2) as bench:
        bench.fit(trivial, 2)  # so that imports and the first fork are not counted as a trial's cost
        took, results = bench.fit(trivial, count)
        files = [path for path in Path(results.experiment_path).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    return {
        "fresh_ms": took / count * 1e3,
        "disk_kb": size / count / 1e3,
        "disk_files": len(files) / count,
    }


def reuse(side: str, scale: float) -> dict[str, float]:
    """Measure trivial trials that reuse processes."""
    count = max(4, round((1_000 if side == "trainkit" else 100) * scale))
    with Bench(side, 2) as bench:
        bench.fit(trivial, 4, reuse=True)
        took, _ = bench.fit(trivial, count, reuse=True)
    return {"reuse_ms": took / count * 1e3}


def inline(side: str, scale: float) -> dict[str, float]:
    """Measure trivial trials inside the program."""
    count = max(2, round(100 * scale))
    with Bench(side, 2, engine="inline") as bench:
        bench.fit(trivial, 2)
        took, _ = bench.fit(trivial, count)
    return {"inline_ms": took / count * 1e3}


def results(side: str, scale: float) -> dict[str, float]:
    """Measure results per second from two trials, with all default loggers."""
    count = max(3, round((10_000 if side == "trainkit" else 1_000) * scale))
    with Bench(side, 2) as bench:
        trainable = chatty(bench.tune.report)
        bench.fit(trainable, 2, space={"reports": 3})
        took, _ = bench.fit(trainable, 2, space={"reports": count})
    return {"results_per_s": 2 * count / took}


def sleep(side: str, scale: float, *, reuse: bool) -> dict[str, float]:
    """Measure the overhead in percent of trials that sleep a tenth of a second, on sixteen declared CPUs."""
    count = max(SLEEPERS, round((10_000 if side == "trainkit" else 160) * scale))
    with Bench(side, SLEEPERS) as bench:
        bench.fit(sleeper, SLEEPERS, reuse=reuse)
        took, _ = bench.fit(sleeper, count, reuse=reuse)
    over = took / (count * SLEEP_S / SLEEPERS) - 1
    return {f"sleep_{'reuse' if reuse else 'fresh'}_over_percent": over * 100}


def parabola(side: str, scale: float) -> dict[str, float]:
    """Measure Optuna's samples of a parabola (Ray issue 11004), in Optuna's own loop and as trials."""
    optuna = importlib.import_module("optuna")
    search = importlib.import_module(f"{side}.tune.search.optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    count = max(3, round(100 * scale))
    with Bench(side, 2) as bench:
        bench.fit(trivial, 2, search_alg=search.OptunaSearch())
        start, cpu_s = time.perf_counter(), time.process_time()
        study = optuna.create_study(sampler=optuna.samplers.TPESampler())
        study.optimize(lambda trial: (trial.suggest_float("x", -10, 10) - 2) ** 2, n_trials=count)
        own, own_cpu_s = time.perf_counter() - start, time.process_time() - cpu_s
        bench.fit(trivial, count)
        random_cpu_s = bench.cpu_s
        took, _ = bench.fit(trivial, count, search_alg=search.OptunaSearch())
    return {
        "optuna_own_ms": own / count * 1e3,
        "optuna_ms": took / count * 1e3,
        # Measured in CPU time, because the wall time of forks varies from run to run.
        "optuna_search_times": (bench.cpu_s - random_cpu_s) / own_cpu_s,
    }


def start(side: str, scale: float) -> dict[str, float]:
    """Measure the time until anything runs: the smallest of a few programs."""
    command = [sys.executable, "-m", "trainkit", "--help"]
    script = (
        "import time; start = time.perf_counter(); from trainkit import tune;"
        "tune.Tuner(lambda config: None); print(time.perf_counter() - start)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    programs = max(1, round(5 * scale))
    help_s = [timed(lambda: output_of(command, environment)) for _ in range(programs)]
    tuner_s = [float(output_of([sys.executable, "-c", script], environment)) for _ in range(programs)]
    return {"help_s": min(help_s), "first_tuner_s": min(tuner_s)}


def _sections() -> dict[str, Callable[[str, float], dict[str, float]]]:
    from benchmarks import tuning_large

    return {
        "fresh": fresh,
        "reuse": reuse,
        "inline": inline,
        "results": results,
        "parabola": parabola,
        "large": tuning_large.large,
        "huge": tuning_large.huge,
        "start": start,
        "sleep_reuse": lambda side, scale: sleep(side, scale, reuse=True),
        "sleep_fresh": lambda side, scale: sleep(side, scale, reuse=False),
    }


def main() -> None:
    """Run one section and print its figures."""
    side, name, scale = sys.argv[1], sys.argv[2], float(sys.argv[3])
    figures: dict[str, Any]
    try:
        importlib.import_module(f"{side}.tune")
        figures = _sections()[name](side, scale)
    except ImportError as error:
        figures = {"skipped": f"pip install '{NEEDED[side]}'", "why": str(error)}
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
