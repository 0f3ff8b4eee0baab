"""Pools compared with those of the standard library and joblib, and with Ray's tasks if Ray is installed.

    python -m benchmarks.pools [--small]

Sides take turns in one run, with two workers each, which are started before the first round. "times" is the
factor by which ours is better. Prints a table, and its rows as one line of JSON.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor as AnyExecutor
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import joblib
import numpy
from joblib.externals.loky import get_reusable_executor
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

import trainkit
from benchmarks.interleaved import Plain, in_turn, output_of
from benchmarks.rows import MORE, Report, Row, parser
from trainkit.plugins.pools import Executor, register_trainkit

FIRST = (
    "import time; start = time.perf_counter(); from {module} import {name} as Pool\n"
    "pool = Pool(2); pool.submit(abs, -1).result(); print(time.perf_counter() - start)\n"
)


def nothing(value: int) -> int:
    """Return the argument."""
    return value


def submitted(executor: AnyExecutor, count: int) -> Callable[[], None]:
    """Return a function that makes `count` empty calls."""

    def run() -> None:
        futures = [executor.submit(nothing, number) for number in range(count)]
        if [future.result() for future in futures] != list(range(count)):
            raise RuntimeError("a call was answered wrongly")

    return run


def tasks_of_ray(count: int) -> Callable[[], None]:
    """Start Ray; return a function that runs `count` empty tasks of Ray."""
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    task = ray.remote(nothing)

    def run() -> None:
        if ray.get([task.remote(number) for number in range(count)]) != list(range(count)):
            raise RuntimeError("a task was answered wrongly")

    return run


def len_once(array: numpy.ndarray, path: Path) -> int:
    """Return the length of an array once the file `path` exists."""
    while not path.exists():
        time.sleep(0.01)
    return len(array)


def first(module: str, name: str) -> float:
    """Return the seconds from an import to the first result, in a new program."""
    return float(output_of([sys.executable, "-c", FIRST.format(module=module, name=name)]))


def scored(backend: str, folds: int) -> Callable[[], None]:
    """Return a function that runs a cross-validation with two jobs."""
    X, y = load_digits(return_X_y=True)

    def run() -> None:
        with joblib.parallel_config(backend=backend, n_jobs=2):
            cross_val_score(SVC(), X, y, cv=folds)

    return run


def main() -> None:
    """Measure and print the rows."""
    given = parser(__doc__).parse_args()
    count, rounds, folds = (200, 1, 2) if given.small else (10_000, 9, 20)
    trainkit.init(num_cpus=2, preload=["sklearn"])
    register_trainkit()
    plain = Plain(lambda: sum(range(500_000)))
    with (
        Report("pools", "the other", small=given.small) as report,
        Executor(2) as ours,
        tempfile.TemporaryDirectory() as folder,
    ):
        for other, words in (
            (ProcessPoolExecutor(2), "ProcessPoolExecutor"),
            (get_reusable_executor(2), "loky"),
        ):
            with other:
                plain.look()
                sides = in_turn([submitted(ours, count), submitted(other, count)], rounds)
                plain.look()
            mine, theirs = ([count / seconds for seconds in side] for side in sides)
            report.add(Row(f"empty calls ({words})", "1/s", MORE).measured(mine, theirs, plain.times))
        if find_spec("ray"):
            import ray

            sides = in_turn([submitted(ours, count), tasks_of_ray(count)], rounds)
            ray.shutdown()
            mine, theirs = ([count / seconds for seconds in side] for side in sides)
            report.add(Row("empty calls (tasks of Ray)", "1/s", MORE).measured(mine, theirs, plain.times))
        array = numpy.zeros(100_000_000 // 8)
        go = Path(folder, "go")
        results = ours.map(len_once, [array] * 8, [go] * 8)
        copies = sum(row["size_bytes"] for row in trainkit.list_objects()) / array.nbytes
        go.touch()
        list(results)
        report.add(
            Row("copies of a 100 MB array that eight calls take", exact=True).measured([round(copies, 2)])
        )
        for backend in ("trainkit", "loky"):
            scored(backend, folds)()
        sides = in_turn([scored("trainkit", folds), scored("loky", folds)], rounds)
        report.add(Row("cross_val_score of an SVM with two jobs (loky)", "s").measured(*sides, plain.times))
        sides = in_turn(
            [
                lambda: first("trainkit.plugins.pools", "Executor"),
                lambda: first("joblib.externals.loky", "ProcessPoolExecutor"),
            ],
            max(1, rounds // 2),
            0 if given.small else 1,
        )
        report.add(Row("from an import to the first result (loky)", "s").measured(*sides, plain.times))
    trainkit.shutdown()


if __name__ == "__main__":
    main()
