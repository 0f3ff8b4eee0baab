"""The work of `benchmarks.sklearn_searches`, on both sides.

`python -m benchmarks.sklearn_work SECTION... SCALE` runs sections, in each the sides in turn, and prints all
their figures as a line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
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
from benchmarks.interleaved import environment, in_turn, output_of
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV

JOBS = 2
SIDES: Mapping[str, Any] = {"trainkit": TuneGridSearchCV, "scikit-learn": GridSearchCV}


def _ratios(name: str, ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Medians of both, and of the ratio round by round, which what else the machine does disturbs least."""
    return {
        f"{name}_s": statistics.median(ours),
        f"{name}_theirs_s": statistics.median(theirs),
        f"{name}_times": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
    }


def svm_grid() -> dict[str, Any]:
    """16 candidates."""
    return {"C": [0.1, 1.0, 10.0, 100.0], "gamma": [1e-4, 5e-4, 1e-3, 5e-3]}


def tiny_grid(scale: float) -> dict[str, Any]:
    """100 candidates, or few where it is to be little work."""
    return {"var_smoothing": list(np.logspace(-9, 0, 100 if scale == 1 else 10))}


def svm(scale: float) -> dict[str, float]:
    """48 fits of a support vector machine on all the digits, warm: the workers of both sides are there."""
    X, y = load_digits(return_X_y=True)
    rows = max(100, round(len(X) * scale))
    ours, theirs = _fits(SVC(), svm_grid(), X[:rows], y[:rows], **_turns(5, scale))
    return _ratios("svm", ours, theirs)


def tiny(scale: float) -> dict[str, float]:
    """300 fits that take about a millisecond each, warm."""
    X, y = load_digits(return_X_y=True)
    ours, theirs = _fits(GaussianNB(), tiny_grid(scale), X[:200], y[:200], **_turns(5, scale))
    return _ratios("tiny", ours, theirs)


def alone(scale: float) -> dict[str, float]:
    """The same two, each of our fits with a session that it begins and ends itself."""
    X, y = load_digits(return_X_y=True)
    rows = max(100, round(len(X) * scale))
    turns = _turns(3, scale)
    ours, theirs = _fits(SVC(), svm_grid(), X[:rows], y[:rows], **turns, session=False)
    found = _ratios("svm_alone", ours, theirs)
    ours, theirs = _fits(GaussianNB(), tiny_grid(scale), X[:200], y[:200], **turns, session=False)
    return found | _ratios("tiny_alone", ours, theirs)


def _turns(rounds: int, scale: float) -> dict[str, int]:
    """How many turns the sides take, and how many before that which do not count."""
    return {"rounds": rounds, "warm_up": 1} if scale == 1 else {"rounds": 1, "warm_up": 0}


def _fits(
    estimator: Any, grid: Any, X: Any, y: Any, *, rounds: int, warm_up: int, session: bool = True
) -> tuple[list[float], list[float]]:
    def fit(side: str) -> Callable[[], None]:
        return lambda: SIDES[side](estimator, grid, cv=3, n_jobs=JOBS).fit(X, y) and None

    if session:
        trainkit.init(num_cpus=JOBS)
    try:
        ours, theirs = in_turn([fit(side) for side in SIDES], rounds, warm_up=warm_up)
    finally:
        trainkit.shutdown()
    return ours, theirs


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


def cold(scale: float) -> dict[str, float]:
    """300 tiny fits in a program that has just started: the time of `fit`, and of the whole program."""
    grid = {"var_smoothing": [float(value) for value in tiny_grid(scale)["var_smoothing"]]}
    within: dict[str, list[float]] = {side: [] for side in SIDES}

    def program(side: str) -> Callable[[], None]:
        module = "trainkit.sklearn" if side == "trainkit" else "sklearn.model_selection"
        text = _COLD.format(module=module, name=SIDES[side].__name__, grid=grid)

        def run() -> None:
            within[side].append(float(output_of([sys.executable, "-c", text], _usual()).split()[1]))

        return run

    turns = _turns(5, scale)
    whole = in_turn([program(side) for side in SIDES], **turns)
    ours, theirs = (times[turns["warm_up"] :] for times in within.values())
    return _ratios("cold", ours, theirs) | _ratios("cold_program", *whole)


def _usual() -> dict[str, str]:
    """The environment of a program that says nothing about threads."""
    return {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}


def stopping(scale: float) -> dict[str, float]:
    """A linear classifier by stochastic gradient descent on the digits, with early stopping and without.

    Each round draws other candidates, the same for all three; scores are means over the rounds.
    """
    X, y = load_digits(return_X_y=True)
    rows = max(300, round(len(X) * scale))
    X, y = X[:rows] / 16.0, y[:rows]
    space = {"alpha": loguniform(1e-7, 1e1), "penalty": ["l2", "l1", "elasticnet"]}
    candidates, epochs = (60, 81) if scale == 1 else (6, 9)
    model = SGDClassifier(max_iter=epochs, tol=None, random_state=0)
    common = {"cv": 3, "n_jobs": JOBS}
    searches: list[Callable[[int], Any]] = [
        lambda seed: TuneSearchCV(
            SGDClassifier(random_state=0),
            space,
            n_trials=candidates,
            early_stopping=True,
            max_iters=epochs,
            random_state=seed,
            **common,
        ),
        lambda seed: RandomizedSearchCV(model, space, n_iter=candidates, random_state=seed, **common),
        lambda seed: HalvingRandomSearchCV(
            SGDClassifier(tol=None, random_state=0),
            space,
            n_candidates=candidates,
            resource="max_iter",
            max_resources=epochs,
            min_resources=1,
            factor=4,
            random_state=seed,
            **common,
        ),
    ]
    scores: list[list[float]] = [[] for _ in searches]

    def fit(side: int) -> Callable[[], None]:
        def run() -> None:
            search = searches[side](len(scores[side]))
            scores[side].append(float(search.fit(X, y).best_score_))

        return run

    trainkit.init(num_cpus=JOBS)
    try:
        times = in_turn([fit(side) for side in range(3)], **_turns(5, scale))
    finally:
        trainkit.shutdown()
    ours, random, halving = times
    found = _ratios("stopping_random", ours, random) | _ratios("stopping_halving", ours, halving)
    own, randomized, halved = (statistics.mean(each) for each in scores)
    return found | {
        "stopping_score": own,
        "stopping_random_score": randomized,
        "stopping_halving_score": halved,
        "stopping_score_short_of_random": randomized - own,
    }


def memory(scale: float) -> dict[str, float]:
    """What four workers hold while they fit on 500 MB by the folds that `cv=5` gives, on either side.

    "grows": the unshared memory of all of them together, beyond what it is on a thousand samples; a page of
    a copy that is shared counts where one of them alone has it mapped. "in_all": their anonymous memory and
    the copies that they share, mapped or not. X itself is there once on either side, and not counted.
    """
    rows = max(1_000, round(500_000 * scale))
    X = np.random.default_rng(0).standard_normal((rows, 125))  # 500 MB
    y = (X[:, 0] > 0).astype(int)
    grid = {"alpha": list(np.logspace(-7, 0, 8))}
    model = SGDClassifier(max_iter=3, tol=None, random_state=0)
    found = {"memory_data_mb": X.nbytes / 1e6}
    for side, name in (("trainkit", "memory"), ("scikit-learn", "memory_theirs")):
        search = SIDES[side](model, grid, cv=5, n_jobs=4, refit=False)
        if side == "trainkit":
            trainkit.init(num_cpus=4)
        try:
            before = _most_held(lambda search=search: search.fit(X[:1000], y[:1000]))
            most = _most_held(lambda search=search: search.fit(X, y))
        finally:
            trainkit.shutdown()
        found[f"{name}_grows_mb"] = (most.own - before.own) / 1e6
        found[f"{name}_in_all_mb"] = (most.in_all - before.in_all) / 1e6
    return found


class Held(NamedTuple):
    """Bytes that workers hold together: unshared, and in all."""

    own: int
    in_all: int


def _most_held(call: Callable[[], object]) -> Held:
    """The most of either while `call` runs."""
    thread = threading.Thread(target=call)
    thread.start()
    most = Held(0, 0)
    while thread.is_alive():
        held = _held()
        most = Held(max(most.own, held.own), max(most.in_all, held.in_all))
        time.sleep(0.02)
    thread.join()
    return most


def _held() -> Held:
    own = anonymous = 0
    for child in psutil.Process().children(recursive=True):
        try:
            text = Path(f"/proc/{child.pid}/smaps_rollup").read_text()
        except OSError:  # it has just ended
            continue
        sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in text.splitlines()[1:]}
        own += sizes["Private_Clean:"] + sizes["Private_Dirty:"]
        anonymous += sizes["Pss_Anon:"]
    return Held(own, anonymous + _copies())


def _copies() -> int:
    """Bytes in the copies that workers share, whose files are this process's."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:trainkit-copy" in os.readlink(link):
                total += os.stat(link).st_blocks * 512
        except OSError:  # closed meanwhile
            continue
    return total


SECTIONS = {
    "svm": svm,
    "tiny": tiny,
    "alone": alone,
    "cold": cold,
    "stopping": stopping,
    "memory": memory,
}


def main() -> None:
    """Run the sections and print their figures."""
    warnings.simplefilter("ignore")
    *names, scale = sys.argv[1:]
    figures: dict[str, float] = {}
    for name in names:
        figures |= SECTIONS[name](float(scale))
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
