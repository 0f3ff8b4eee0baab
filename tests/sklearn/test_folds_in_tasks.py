"""Folds run as tasks, by processes that serve one search."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.sklearn.trials import REPORT_EVERY_S
from trainkit.tune.search import Searcher

pytestmark = pytest.mark.usefixtures("runtime")

GRID = {"var_smoothing": [1e-9, 1e-6, 1e-3, 1e-1]}
X, Y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 2


def here(estimator: Any, X: Any, y: Any) -> float:
    return float(os.getpid())


def pids_of(search: Any) -> set[int]:
    names = [name for name in search.cv_results_ if name.startswith("split")]
    return {int(pid) for name in names for pid in search.cv_results_[name]}


def holds_samples(pid: int) -> bool:
    """Whether shared memory of the object store is mapped there."""
    return "memfd:trainkit" in Path(f"/proc/{pid}/maps").read_text()


def test_processes_serve_many_candidates_and_go_with_the_search() -> None:
    X = np.random.default_rng(0).standard_normal((20_000, 50))  # 8 MB: copies of folds stay unshared

    def scored(estimator: Any, X: Any, y: Any) -> float:
        return float(os.getpid() if holds_samples(os.getpid()) else 0)

    y = np.arange(len(X)) % 2
    search = TuneGridSearchCV(GaussianNB(), GRID, scoring=scored, refit=False, cv=3).fit(X, y)
    pids = pids_of(search)
    assert 0 not in pids
    assert len(pids) <= SESSION_CPUS
    assert eventually(lambda: not any(map(psutil.pid_exists, pids)))
    assert eventually(lambda: trainkit.available_resources() == trainkit.cluster_resources())


def test_a_second_search_finds_what_has_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables, the working directory, and modules that were edited and loaded again."""
    module = tmp_path / "scoring_that_changes.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = []
    for number in (1, 2):
        module.write_text(
            "import os\ndef score(estimator, X, y):\n"
            f"    {'#' * number}\n"  # of another size, as what is compiled is known by that and the second
            f"    found = {number}, os.environ['NUMBER'], os.path.basename(os.getcwd())\n"
            "    return int('%s%s%s' % found)\n"
        )
        scoring = importlib.reload(importlib.import_module(module.stem))
        monkeypatch.setenv("NUMBER", str(number))
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        search = TuneGridSearchCV(GaussianNB(), GRID, scoring=scoring.score, refit=False, cv=3).fit(X, Y)
        found.append(set(search.cv_results_["mean_test_score"]))
    assert found == [{111.0}, {222.0}]


class Draws(GaussianNB):  # type: ignore[misc]
    """Scores by NumPy's global generator."""

    def __init__(self, number: int = 0, sleep_s: float = 0.0) -> None:
        super().__init__()
        self.number = number
        self.sleep_s = sleep_s

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        time.sleep(self.sleep_s)
        return float(np.random.random())


@pytest.mark.slow
def test_what_a_fold_draws_does_not_depend_on_how_long_folds_take() -> None:
    def drawn(sleep_s: float, **tune_params: Any) -> list[list[float]]:
        model, space = Draws(sleep_s=sleep_s), {"number": [1, 2, 3]}
        search = TuneSearchCV(model, space, n_trials=3, random_state=0, refit=False, cv=3)
        search.fit(X, Y, tune_params=tune_params)
        return [list(search.cv_results_[f"split{split}_test_score"]) for split in range(3)]

    usual = drawn(0.0)  # folds of a candidate one after the other in a process
    assert len(set(itertools.chain(*usual))) == 9
    assert drawn(REPORT_EVERY_S) == drawn(0.0, reuse_actors=False) == usual


@pytest.mark.parametrize("alone", [{"reuse_actors": False}, {"trial_timeout_s": 600.0}])
def test_a_candidate_may_have_a_process_to_itself(alone: dict[str, Any]) -> None:
    search = TuneGridSearchCV(GaussianNB(), GRID, scoring=here, refit=False, cv=3)
    search.fit(X, Y, tune_params=alone)
    splits = [search.cv_results_[f"split{split}_test_score"] for split in range(3)]
    assert all(len({split[candidate] for split in splits}) == 1 for candidate in range(4))
    if "reuse_actors" in alone:
        assert len(pids_of(search)) == 4


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_folds_of_a_single_candidate_run_at_once(n_jobs: int | None) -> None:
    seen: Any = trainkit.remote(Counter).remote()

    def busy(estimator: Any, X: Any, y: Any) -> float:
        trainkit.get(seen.enter.remote())
        eventually(lambda: trainkit.get(seen.highest.remote()) >= 2)
        trainkit.get(seen.leave.remote())
        return float(X.sum())

    given: dict[str, Any] = {"scoring": busy, "refit": False, "cv": 5, "n_jobs": n_jobs}
    found = TuneGridSearchCV(GaussianNB(), {}, **given).fit(X, Y).cv_results_
    assert trainkit.get(seen.highest.remote()) >= 2
    if n_jobs is not None:
        assert trainkit.get(seen.highest.remote()) == n_jobs
    folds = StratifiedKFold(5).split(X, Y)
    assert [found[f"split{fold}_test_score"][0] for fold in range(5)] == [X[test].sum() for _, test in folds]


class Counter:
    """How many are inside at once."""

    def __init__(self) -> None:
        self._inside = self._most = 0

    def enter(self) -> None:
        self._inside += 1
        self._most = max(self._most, self._inside)

    def leave(self) -> None:
        self._inside -= 1

    def highest(self) -> int:
        return self._most


class Asked(Searcher):
    """Suggests numbers, and notes for all of the class how many of them have no answer yet."""

    most = 0

    def __init__(self) -> None:
        super().__init__()
        self._open: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self._open.add(trial_id)
        Asked.most = max(Asked.most, len(self._open))
        return {"var_smoothing": 10.0 ** -len(trial_id) * (1 + int(trial_id.rsplit("_", 1)[1]))}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self._open.remove(trial_id)


def test_a_searcher_is_asked_only_when_a_process_is_free() -> None:
    TuneSearchCV(
        GaussianNB(),
        {"var_smoothing": trainkit.tune.loguniform(1e-9, 1e-1)},
        n_trials=12,
        cv=3,
        search_optimization=Asked(),
    ).fit(X, Y)
    assert 1 <= Asked.most <= SESSION_CPUS
