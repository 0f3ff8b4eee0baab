"""Work of `benchmarks.sklearn_searches`, on both sides.

`python -m benchmarks.sklearn_work SECTION... SCALE` runs sections, in which the sides take turns, and prints
all their figures as a line of JSON: for each row, the rounds of our side and of theirs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV, HalvingRandomSearchCV, RandomizedSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC

import trainkit
from benchmarks.interleaved import environment, in_turn, output_of, timed
from benchmarks.sklearn_searches import Figures
from trainkit.sklearn import TuneGridSearchCV, TuneHalvingRandomSearchCV, TuneSearchCV
from trainkit.sklearn.first_folds import MOST_CANDIDATES

JOBS = 2
SIDES: Mapping[str, Any] = {"trainkit": TuneGridSearchCV, "scikit-learn": GridSearchCV}


def svm_grid(scale: float) -> dict[str, Any]:
    """Return a grid of 16 candidates, or of few for a small run."""
    return {"C": [0.1, 1.0, 10.0, 100.0][: 4 if scale == 1 else 1], "gamma": [1e-4, 5e-4, 1e-3, 5e-3]}


def tiny_grid(scale: float) -> dict[str, Any]:
    """Return a grid of 100 candidates, or of few for a small run."""
    return {"var_smoothing": list(np.logspace(-9, 0, 100 if scale == 1 else 10))}


def svm(scale: float) -> Figures:
    """Measure 48 fits of a support vector machine on all digits; the workers of both sides exist already."""
    X, y = load_digits(return_X_y=True)
    rows = max(100, round(len(X) * scale))
    return {"svm": _fits(SVC(), svm_grid(scale), X[:rows], y[:rows], **_turns(6, scale))}


def tiny(scale: float) -> Figures:
    """Measure 300 fits that take about a millisecond each; the workers of both sides exist already."""
    X, y = load_digits(return_X_y=True)
    return {"tiny": _fits(GaussianNB(), tiny_grid(scale), X[:200], y[:200], **_turns(6, scale))}


def folds(scale: float) -> Figures:
    """Measure a grid of few candidates with many folds; the workers of both sides exist already."""
    X, y = load_digits(return_X_y=True)
    rows, cv = (600, 50) if scale == 1 else (100, 5)
    grid = {"C": [0.1, 1.0, 10.0, 100.0]}
    return {"folds": _fits(SVC(), grid, X[:rows], y[:rows], **_turns(6, scale), cv=cv)}


def many(scale: float, name: str = "many", count: int = 1_000) -> Figures:
    """Measure time and memory of many candidates, 3 fits of about a millisecond each, with existing workers.

    The memory is the maximum of the program and its workers; a shared page counts in equal parts. Each search
    runs in a separate program, because memory that one search freed may stay with its process.
    """
    count = count if scale == 1 else 20

    def program(side: str) -> tuple[float, float]:
        command = [sys.executable, "-m", "benchmarks.sklearn_work", f"--{side}", str(count)]
        took, held = json.loads(output_of(command, _usual()).splitlines()[-1])
        return took, held

    rounds = [[program(side) for side in SIDES] for _ in range(3 if scale == 1 else 1)]
    times, memory = ([[each[side][figure] for each in rounds] for side in range(2)] for figure in range(2))
    return {name: times, f"{name}_memory": memory}


def _many_alone(side: str, count: int) -> None:
    """Search in this process; print the seconds and the largest number of megabytes."""
    X, y = load_digits(return_X_y=True)
    if side == "trainkit":
        _warm()

    def fit(candidates: int) -> float:
        grid = {"var_smoothing": list(np.logspace(-9, 0, candidates))}
        search = SIDES[side](GaussianNB(), grid, cv=3, n_jobs=JOBS)
        return timed(lambda: search.fit(X[:200], y[:200]))

    # The workers of either side exist only after a search that is too large for our program itself.
    fit(MOST_CANDIDATES + 1)
    took: list[float] = []
    (most,) = _most(lambda: took.append(fit(count)), _shares_now, every_s=0.2)
    trainkit.shutdown()
    print(json.dumps([took[0], most / 1e6]))


def alone(scale: float) -> Figures:
    """Measure the fits of `svm` and `tiny` without `init`: our first fit begins a session for later fits."""
    X, y = load_digits(return_X_y=True)
    rows = max(100, round(len(X) * scale))
    turns = _turns(4, scale)
    return {
        "svm_alone": _fits(SVC(), svm_grid(scale), X[:rows], y[:rows], **turns, session=False),
        "tiny_alone": _fits(GaussianNB(), tiny_grid(scale), X[:200], y[:200], **turns, session=False),
    }


def _turns(rounds: int, scale: float) -> dict[str, int]:
    """Return the number of measured rounds, and of warm-up rounds before them."""
    return {"rounds": rounds, "warm_up": 1} if scale == 1 else {"rounds": 1, "warm_up": 0}


def _fits(
    estimator: Any,
    grid: Any,
    X: Any,
    y: Any,
    *,
    rounds: int,
    warm_up: int,
    session: bool = True,
    cv: int = 3,
) -> list[list[float]]:
    def fit(side: str) -> Callable[[], None]:
        return lambda: SIDES[side](estimator, grid, cv=cv, n_jobs=JOBS).fit(X, y) and None

    if session:
        _warm()
    else:
        trainkit.shutdown()
    return in_turn([fit(side) for side in SIDES], rounds, warm_up=warm_up)


def _warm() -> None:
    """Begin a session unless one exists; the program ends it."""
    if not trainkit.is_initialized():
        trainkit.init(num_cpus=JOBS)


_COLD = """
import time
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB
from {module} import {name}
X, y = load_digits(return_X_y=True)
begun = time.perf_counter()
{name}(GaussianNB(), {grid!r}, cv=3, n_jobs=2).fit(X[:200], y[:200])
print("took", time.perf_counter() - begun)
"""


def cold(scale: float) -> Figures:
    """Measure 300 tiny fits in a new program: the time of `fit`, and of the whole program."""
    grid = {"var_smoothing": [float(value) for value in tiny_grid(scale)["var_smoothing"]]}
    within: dict[str, list[float]] = {side: [] for side in SIDES}

    def program(side: str) -> Callable[[], None]:
        module = "trainkit.sklearn" if side == "trainkit" else "sklearn.model_selection"
        text = _COLD.format(module=module, name=SIDES[side].__name__, grid=grid)

        def run() -> None:
            within[side].append(float(output_of([sys.executable, "-c", text], _usual()).split()[1]))

        return run

    turns = _turns(6, scale)
    whole = in_turn([program(side) for side in SIDES], **turns)
    fits = [times[turns["warm_up"] :] for times in within.values()]
    return {"cold": fits, "cold_program": whole}


_TWICE = """
import time
from sklearn.datasets import load_iris, make_classification
from sklearn.linear_model import LogisticRegression
from {module} import {name}
X, y = {data}
for _ in range(2):
    begun = time.perf_counter()
    {name}(LogisticRegression(max_iter=1000), {grid!r}, cv=3, n_jobs=2).fit(X, y)
    print(time.perf_counter() - begun)
"""


def first(scale: float) -> Figures:
    """Measure the first and the second search of a program without `init`, on tiny and small data."""
    rows = 20_000 if scale == 1 else 2_000
    work = {
        "iris": ("load_iris(return_X_y=True)", {"C": [0.1, 1.0]}),
        "wide": (f"make_classification({rows}, 50, random_state=0)", {"C": [0.01, 0.1, 1.0, 10.0]}),
    }
    figures: Figures = {}
    for key, (data, grid) in work.items():
        took: dict[str, list[list[float]]] = {side: [] for side in SIDES}

        def program(side: str, data: str = data, grid: Any = grid, took: Any = took) -> Callable[[], None]:
            module = "trainkit.sklearn" if side == "trainkit" else "sklearn.model_selection"
            text = _TWICE.format(module=module, name=SIDES[side].__name__, data=data, grid=grid)
            command = [sys.executable, "-c", text]
            return lambda: took[side].append([float(each) for each in output_of(command, _usual()).split()])

        turns = _turns(8, scale)
        in_turn([program(side) for side in SIDES], **turns)
        for number, place in enumerate(("first", "second")):
            figures[f"{key}_{place}"] = [
                [each[number] for each in times[turns["warm_up"] :]] for times in took.values()
            ]
    return figures


def _usual() -> dict[str, str]:
    """Return the environment of a program that sets no number of threads."""
    return {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}


def stopping(scale: float) -> Figures:
    """Measure a linear classifier with stochastic gradient descent on the digits, with and without stopping.

    Each round has different candidates, which are the same for all three searches.
    """
    X, y = _digits(scale)
    candidates, epochs = (60, 81) if scale == 1 else (6, 9)
    model = SGDClassifier(max_iter=epochs, tol=None, random_state=0)
    common = {"cv": 3, "n_jobs": JOBS}
    searches: list[Callable[[int], Any]] = [
        lambda seed: TuneSearchCV(
            SGDClassifier(random_state=0),
            SGD_SPACE,
            n_trials=candidates,
            early_stopping=True,
            max_iters=epochs,
            random_state=seed,
            **common,
        ),
        lambda seed: RandomizedSearchCV(model, SGD_SPACE, n_iter=candidates, random_state=seed, **common),
        lambda seed: HalvingRandomSearchCV(
            SGDClassifier(tol=None, random_state=0),
            SGD_SPACE,
            n_candidates=candidates,
            resource="max_iter",
            max_resources=epochs,
            min_resources=1,
            factor=4,
            random_state=seed,
            **common,
        ),
    ]
    times, scores = _search_in_turn(searches, X, y, scale)
    return {
        "stopping_random": [times[0], times[1]],
        "stopping_halving": [times[0], times[2]],
        "stopping_score": [scores[0], scores[1]],
        "halving_score": [scores[0], scores[2]],
    }


def growing(scale: float) -> Figures:
    """Measure halving searches of the same classifier: by samples on both sides, and by epochs on theirs.

    By samples, both sides evaluate the same candidates on the same samples, so their scores are equal.
    """
    X, y = _digits(scale)
    candidates, epochs = (60, 81) if scale == 1 else (6, 9)
    model = SGDClassifier(max_iter=epochs, tol=None, random_state=0)
    common = {"cv": 3, "n_jobs": JOBS, "n_candidates": candidates}

    def by_samples(cls: Any) -> Callable[[int], Any]:
        return lambda seed: cls(model, SGD_SPACE, min_resources="exhaust", random_state=seed, **common)

    def by_epochs(seed: int) -> Any:
        resources = {"resource": "max_iter", "max_resources": epochs, "min_resources": 1, "factor": 4}
        return HalvingRandomSearchCV(
            SGDClassifier(tol=None, random_state=0), SGD_SPACE, random_state=seed, **resources, **common
        )

    searches = [by_samples(TuneHalvingRandomSearchCV), by_samples(HalvingRandomSearchCV), by_epochs]
    times, scores = _search_in_turn(searches, X, y, scale)
    return {
        "growing": [times[0], times[1]],
        "growing_epochs": [times[0], times[2]],
        "growing_score": [scores[0], scores[1]],
        "growing_epochs_score": [scores[0], scores[2]],
    }


SGD_SPACE = {"alpha": loguniform(1e-7, 1e1), "penalty": ["l2", "l1", "elasticnet"]}


def _digits(scale: float) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    rows = max(300, round(len(X) * scale))
    return X[:rows] / 16.0, y[:rows]


def _search_in_turn(
    searches: Sequence[Callable[[int], Any]], X: Any, y: Any, scale: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Fit the searches in turn, with a new seed in each round; return their seconds and best scores."""
    scores: list[list[float]] = [[] for _ in searches]

    def fit(side: int) -> Callable[[], None]:
        def run() -> None:
            search = searches[side](len(scores[side]))
            scores[side].append(float(search.fit(X, y).best_score_))

        return run

    _warm()
    times = in_turn([fit(side) for side in range(len(searches))], **_turns(5, scale))
    return times, scores


def memory(scale: float) -> Figures:
    """Measure the memory of four workers that fit on 500 MB with the folds of `cv=5`, on either side.

    "grows": unshared memory of all workers together, beyond that on a thousand samples; a page of a shared
    copy counts if only one worker maps it. "in_all": anonymous memory of the workers and all copies that they
    share, mapped or not. X itself exists once on either side, and is not counted.
    """
    rows = max(1_000, round(500_000 * scale))
    X = np.random.default_rng(0).standard_normal((rows, 125))  # 500 MB
    y = (X[:, 0] > 0).astype(int)
    grid = {"alpha": list(np.logspace(-7, 0, 8))}
    model = SGDClassifier(max_iter=3, tol=None, random_state=0)
    grown: dict[str, list[float]] = {"memory_grows": [], "memory_in_all": []}
    workers = 4 if scale == 1 else JOBS
    trainkit.shutdown()
    for side in SIDES:
        search = SIDES[side](model, grid, cv=5, n_jobs=workers, refit=False)
        if side == "trainkit":
            trainkit.init(num_cpus=workers)
        try:
            before = _most_held(lambda search=search: search.fit(X[:1000], y[:1000]))
            most = _most_held(lambda search=search: search.fit(X, y))
        finally:
            trainkit.shutdown()
        grown["memory_grows"].append((most.own - before.own) / 1e6)
        grown["memory_in_all"].append((most.in_all - before.in_all) / 1e6)
    return {name: [[ours], [theirs]] for name, (ours, theirs) in grown.items()}


class Held(NamedTuple):
    """Bytes that workers use together: unshared, and in all."""

    own: int
    in_all: int


def _most_held(call: Callable[[], object]) -> Held:
    """Return the maximum of both figures while `call` runs."""
    return Held(*_most(call, _held_now, every_s=0.02))


def _most(call: Callable[[], object], look: Callable[[], Sequence[int]], every_s: float) -> list[int]:
    """Return the maximum of each figure that `look` returns while `call` runs."""
    thread = threading.Thread(target=call)
    thread.start()
    most = list(look())
    while thread.is_alive():
        most = [max(pair) for pair in zip(most, look(), strict=True)]
        thread.join(every_s)
    return most


def _held_now() -> Held:
    children = [_sizes(child.pid) for child in psutil.Process().children(recursive=True)]
    own = sum(sizes["Private_Clean:"] + sizes["Private_Dirty:"] for sizes in children)
    return Held(own, sum(sizes["Pss_Anon:"] for sizes in children) + _copies())


def _shares_now() -> tuple[int]:
    """Return the bytes of this process and its descendants; a shared page counts in equal parts."""
    this = psutil.Process()
    return (sum(_sizes(each.pid)["Pss:"] for each in [this, *this.children(recursive=True)]),)


def _sizes(pid: int) -> Counter[str]:
    """Return bytes by name from the kernel's account of a process; empty if the process has just ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return Counter()
    return Counter({line.split()[0]: int(line.split()[1]) * 1024 for line in text.splitlines()[1:]})


def _copies() -> int:
    """Return the bytes of the copies that workers share; this process holds their files."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:trainkit-copy" in os.readlink(link):
                total += os.stat(link).st_blocks * 512
        except OSError:  # closed in the meantime
            continue
    return total


SECTIONS: dict[str, Callable[[float], Figures]] = {
    "svm": svm,
    "tiny": tiny,
    "stopping": stopping,
    "growing": growing,
    "folds": folds,
    "many": many,
    "many_more": lambda scale: many(scale, "many_more", 5_000),
    "alone": alone,
    "cold": cold,
    "first": first,
    "memory": memory,
}


def main() -> None:
    """Run the sections and print their figures."""
    warnings.simplefilter("ignore")
    *names, scale = sys.argv[1:]
    if names[0].startswith("--"):
        _many_alone(names[0].removeprefix("--"), int(scale))
        return
    figures: Figures = {}
    for name in names:
        figures |= SECTIONS[name](float(scale))
    trainkit.shutdown()
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
