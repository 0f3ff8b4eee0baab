"""Thousands of trials: cost of the last compared with the first, memory of the driver, and resuming."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.interleaved import output_of, timed
from trainkit import tune
from trainkit.tune.store.writer import ExperimentStore

TRIALS, MANY = 10_000, 100_000
EARLY, LATE = 500, 5_000
"""Numbers of trials at which a write of the state is timed; memory is counted from the first one on."""


class Watch(tune.Callback):
    """Recorder of the driver's CPU time and memory as trials end, and of the seconds of each commit.

    CPU time is used because wall time includes the load of other programs on a busy machine.
    """

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self.memory_mb: list[float] = []
        self.commits: list[tuple[int, float]] = []

    def __deepcopy__(self, memo: object) -> Watch:
        return self

    def on_trial_complete(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        self.cpu_s.append(time.process_time())
        self.memory_mb.append(_memory_mb())

    def commit_ms(self, after: int, width: int) -> float:
        """Return the median milliseconds of a commit while about `after` trials had ended."""
        near = [took for ended, took in self.commits if abs(ended - after) <= width]
        return statistics.median(near) * 1e3


def large(side: str, scale: float) -> dict[str, float]:
    """Measure trials of one report each, then a restore of all of them."""
    from benchmarks.tuning_work import Bench, trivial

    count = max(40, round(TRIALS * scale))
    part = count // 10
    watch, commit = Watch(), ExperimentStore.commit

    def timed(store: ExperimentStore, records: Sequence[Any]) -> None:
        start = time.thread_time()
        commit(store, records)
        if records:
            watch.commits.append((len(watch.cpu_s), time.thread_time() - start))

    with Bench(side, 2) as bench:
        bench.fit(trivial, 4, reuse=True)
        ExperimentStore.commit = timed  # type: ignore[method-assign]
        begun = time.process_time()
        took, results = bench.fit(trivial, count, reuse=True, callbacks=[watch])
        ExperimentStore.commit = commit  # type: ignore[method-assign]
        _, restore_s = _restored(results, trivial)
    first = watch.cpu_s[part - 1] - begun
    last = watch.cpu_s[-1] - watch.cpu_s[-1 - part]
    early, late = (round(number * count / TRIALS) for number in (EARLY, LATE))
    return {
        "large_s": took,
        "last_to_first_times": last / first,
        "driver_grows_mb": watch.memory_mb[-1] - watch.memory_mb[early],
        "restore_s": restore_s,
        "state_write_ms": watch.commit_ms(late, part // 4),
        "state_write_grows_percent": (
            watch.commit_ms(late, part // 4) / watch.commit_ms(early, part // 4) - 1
        )
        * 100,
    }


def huge(side: str, scale: float) -> dict[str, float]:
    """Measure ten times as many trials, then resuming, listing and a table of them."""
    from benchmarks.tuning_work import Bench, trivial

    count = max(40, round(MANY * scale))
    part = min(1_000, count // 10)
    watch = Watch()
    with Bench(side, 2) as bench:
        bench.fit(trivial, 4, reuse=True)
        begun = time.process_time()
        _, results = bench.fit(trivial, count, reuse=True, callbacks=[watch])
        memory_mb = _memory_mb()
        restored, restore_s = _restored(results, trivial)
        folder = str(Path(results.experiment_path).parent)
        ls_s = timed(lambda: output_of([sys.executable, "-m", "trainkit", "ls", folder]))
        table_s = timed(restored.get_dataframe)
    return {
        "huge_last_to_first_times": (watch.cpu_s[-1] - watch.cpu_s[-1 - part])
        / (watch.cpu_s[part - 1] - begun),
        "huge_driver_mb": memory_mb,
        "huge_restore_s": restore_s,
        "huge_ls_s": ls_s,
        "huge_table_s": table_s,
    }


def _restored(results: tune.ResultGrid, trainable: Any) -> tuple[tune.ResultGrid, float]:
    """Return all results of a restored experiment, and the seconds of the restore."""
    start = time.perf_counter()
    again = tune.Tuner.restore(results.experiment_path, trainable, run_config=tune.RunConfig(verbose=0))
    restored = again.fit()
    took = time.perf_counter() - start
    if len(restored) != len(results):
        raise RuntimeError(f"{len(results)} trials were run, and {len(restored)} restored")
    return restored, took


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
