"""Folds run as tasks: processes stay for the next search of a session, but not with the samples."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from trainkit.clock import VirtualClock
from trainkit.runtime.keeping import kept, let_go
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.tune.search import Searcher

pytestmark = pytest.mark.usefixtures("runtime")
PRELOAD = ("trainkit.sklearn.evaluation", "sklearn.naive_bayes")

GRID = {"var_smoothing": [1e-9, 1e-6, 1e-3, 1e-1]}


def here(estimator: Any, X: Any, y: Any) -> float:
    return float(os.getpid())


def pids_of(search: Any) -> set[int]:
    names = [name for name in search.cv_results_ if name.startswith("split")]
    return {int(pid) for name in names for pid in search.cv_results_[name]}


def searched(X: Any, **given: Any) -> set[int]:
    y = np.arange(len(X)) % 2
    search = TuneGridSearchCV(GaussianNB(), GRID, scoring=here, refit=False, cv=3, **given)
    return pids_of(search.fit(X, y))


def test_a_second_search_is_run_by_processes_of_the_first() -> None:
    X = np.random.default_rng(0).standard_normal((60, 4))
    first, second = searched(X), searched(X)
    assert first & second
    assert len(first | second) <= SESSION_CPUS


def holds_samples(pid: int) -> bool:
    """Whether shared memory of the object store is mapped there."""
    return "memfd:trainkit" in Path(f"/proc/{pid}/maps").read_text()


def test_a_process_that_waits_holds_no_samples() -> None:
    X = np.random.default_rng(0).standard_normal((20_000, 50))  # 8 MB: copies of folds stay unshared
    pids = searched(X)
    assert eventually(lambda: not any(map(holds_samples, pids)))
    assert pids & searched(X)


@pytest.mark.parametrize("alone", [{"reuse_actors": False}, {"trial_timeout_s": 600.0}])
def test_a_candidate_may_have_a_process_to_itself(alone: dict[str, Any]) -> None:
    X, y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 2
    search = TuneGridSearchCV(GaussianNB(), GRID, scoring=here, refit=False, cv=3)
    search.fit(X, y, tune_params=alone)
    splits = [search.cv_results_[f"split{split}_test_score"] for split in range(3)]
    assert all(len({split[candidate] for split in splits}) == 1 for candidate in range(4))
    if "reuse_actors" in alone:
        assert len(pids_of(search)) == 4


def test_n_jobs_holds_where_the_session_has_more() -> None:
    seen: Any = trainkit.remote(Counter).remote()

    def busy(estimator: Any, X: Any, y: Any) -> float:
        trainkit.get(seen.enter.remote())
        trainkit.get(seen.leave.remote())
        return 0.0

    X, y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 2
    TuneGridSearchCV(GaussianNB(), GRID, scoring=busy, refit=False, cv=3, n_jobs=2).fit(X, y)
    assert 1 <= trainkit.get(seen.highest.remote()) <= 2


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
    X, y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 2
    TuneSearchCV(
        GaussianNB(),
        {"var_smoothing": trainkit.tune.loguniform(1e-9, 1e-1)},
        n_trials=12,
        cv=3,
        search_optimization=Asked(),
    ).fit(X, y)
    assert 1 <= Asked.most <= SESSION_CPUS


def test_what_calls_keep_is_made_once_and_goes_when_none_comes(tmp_path: Path) -> None:
    def call(key: str) -> tuple[int, int]:
        def make() -> Any:
            class Kept:
                count = 0

                def __del__(self) -> None:
                    (tmp_path / key).touch()

            return Kept()

        value = kept(key, make)
        value.count += 1
        return value.count, os.getpid()

    one = trainkit.remote(call).options(num_cpus=SESSION_CPUS)  # so that one process runs all of them
    found = trainkit.get([one.remote("a"), one.remote("a")])
    assert [count for count, _ in found] == [1, 2]
    assert trainkit.get(one.remote("b"))[0] == 1
    assert eventually((tmp_path / "a").exists)
    assert eventually((tmp_path / "b").exists)
    assert trainkit.get(one.remote("b")) == (1, found[0][1])


def test_calls_of_two_kinds_may_take_turns() -> None:
    clock, numbers = VirtualClock(), itertools.count()

    def turn(key: str, after_s: float) -> int:
        clock.advance(after_s)
        return kept(key, lambda: next(numbers), clock)

    try:
        assert [turn(key, 0.2) for key in "abab"] == [0, 1, 0, 1]
        assert [turn("b", 0.4), turn("a", 0.4)] == [1, 2]
    finally:
        let_go()
