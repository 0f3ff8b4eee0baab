"""Data in shared memory: copies of folds that workers share, and folds that need no copy."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import textwrap
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.cluster import KMeans
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, TimeSeriesSplit
from threadpoolctl import threadpool_limits

from tests.conftest import eventually, session_processes
from tests.runtime.local.programs import Programs
from tests.sklearn.copy_files import copy_files
from tests.sklearn.scripted_estimator import done
from tests.sklearn.test_search_resume import SEARCH, begin_and_wait
from trainkit.runtime.local.system import process
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV, shared_memory
from trainkit.sklearn.shared_memory import contiguous_slice

LARGE = 20_000
KINDS = {
    "folds": KFold(3),
    "shuffled": KFold(3, shuffle=True, random_state=0),
    "stratified": StratifiedKFold(3),
    "stratified, shuffled": StratifiedKFold(3, shuffle=True, random_state=0),
}


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the driver decides by it."""
    monkeypatch.setattr(shared_memory, "LEAST_BYTES", 1)


def matrix(rows: int = 6000) -> tuple[Any, Any]:
    """Of so many rows that workers map it."""
    X = np.random.default_rng(0).standard_normal((rows, 6))
    return X, (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)


def assert_same_scores(found: Any, theirs: Any) -> None:
    for key, scores in theirs.cv_results_.items():
        if ("test_" in key or "train_" in key) and "time" not in key:
            np.testing.assert_array_equal(found.cv_results_[key], scores, err_msg=key)
    assert found.best_params_ == theirs.best_params_


class Mapped(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Scores whether it is given memory that is mapped; `log` gets a line for each fit.

    Args:
        log: a folder.
        number: told apart by it.
        driver: pid of the search's process.
    """

    def __init__(self, log: str = "", number: int = 0, driver: int = 0) -> None:
        self.log = log
        self.number = number
        self.driver = driver

    def fit(self, X: Any, y: Any = None) -> Self:
        self.mapped_ = is_mapped(X)
        with open(Path(self.log, str(os.getpid())), "a") as file:
            line = {
                "number": self.number,
                "own": process.own_pages_bytes(os.getpid()),
                "full": full(self.driver or os.getpid()),
            }
            file.write(json.dumps(line | {"rows": len(X), "first": float(X[0, 0])}) + "\n")
        return self

    def score(self, X: Any, y: Any = None) -> float:
        return float(self.mapped_ and is_mapped(X))

    partial_fit = fit


def full(driver: int) -> int:
    """Bytes that all copies take whose files that process holds."""
    sizes = {}
    for name in os.listdir(f"/proc/{driver}/fd"):
        path = f"/proc/{driver}/fd/{name}"
        with contextlib.suppress(OSError):  # closed meanwhile
            if "memfd:trainkit-copy" in os.readlink(path):
                stat = os.stat(path)
                sizes[stat.st_ino] = stat.st_blocks * 512
    return sum(sizes.values())


def fits(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in log.iterdir() for line in path.read_text().splitlines()]


class Writer(Mapped):
    """Writes to the data."""

    def fit(self, X: Any, y: Any) -> Self:
        X[:, 0] *= 2
        self.sum_ = float(X.sum())
        return self

    def score(self, X: Any, y: Any) -> float:
        X += self.sum_
        return float(X.sum())


KEPT: list[tuple[Any, float]] = []
"""Of a worker: what estimators there were given, and its sum then."""


class Keeper(Mapped):
    """Keeps what it is given, for longer than it lives."""

    def fit(self, X: Any, y: Any) -> Self:
        KEPT.append((X, float(X.sum())))
        return self

    def score(self, X: Any, y: Any) -> float:
        return float(all(kept.sum() == total for kept, total in KEPT))


@pytest.mark.usefixtures("runtime")
class TestSameAnswers:
    @pytest.mark.parametrize(
        ("kind", "order"),
        [("folds", "C"), ("shuffled", "F"), ("stratified", "F"), ("stratified, shuffled", "C")],
    )
    def test_of_a_classifier(self, kind: str, order: Any) -> None:
        X, y = matrix()
        X = np.asarray(X, order=order)
        model = SGDClassifier(max_iter=3, tol=None, random_state=0)
        arguments: dict[str, Any] = {"cv": KINDS[kind], "return_train_score": True, "n_jobs": 2}
        grid = {"alpha": list(np.logspace(-5, 0, 6))}
        found = TuneGridSearchCV(model, grid, **arguments).fit(X, y)
        assert_same_scores(found, GridSearchCV(model, grid, **arguments | {"n_jobs": 1}).fit(X, y))
        assert not copy_files()

    def test_without_y(self) -> None:
        X, _ = matrix()
        model, grid = KMeans(n_init=1, random_state=0), {"n_clusters": [2, 3]}
        found = TuneGridSearchCV(model, grid, n_jobs=2).fit(X)
        with threadpool_limits(1):  # as a trial has, for the same bits
            assert_same_scores(found, GridSearchCV(model, grid).fit(X))

    @pytest.mark.parametrize("kind", ["folds", "shuffled"])
    def test_where_an_estimator_writes_to_the_data(self, kind: str) -> None:
        X, y = matrix()
        before, grid = X.copy(), {"number": list(range(6))}
        found = TuneGridSearchCV(Writer(), grid, cv=KINDS[kind], n_jobs=2, refit=False).fit(X, y)
        theirs = GridSearchCV(Writer(), grid, cv=KINDS[kind], refit=False).fit(before.copy(), y)
        assert_same_scores(found, theirs)
        np.testing.assert_array_equal(X, before)

    def test_where_an_estimator_keeps_the_data(self) -> None:
        X, y = matrix()
        grid = {"number": list(range(8))}
        found = TuneGridSearchCV(Keeper(), grid, cv=KINDS["shuffled"], n_jobs=2, refit=False).fit(X, y)
        assert found.cv_results_["mean_test_score"].tolist() == [1.0] * 8

    def test_with_early_stopping(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        X, y = matrix()

        def found() -> Any:
            search = TuneSearchCV(
                SGDClassifier(random_state=0),
                {"alpha": [1e-5, 1e-3, 1e-1]},
                search_optimization="random",
                n_trials=3,
                early_stopping="median",
                max_iters=3,
                cv=3,
                random_state=0,
                n_jobs=1,
                refit=False,
            )
            return search.fit(X, y)

        shared = found()
        monkeypatch.setattr(shared_memory, "LEAST_BYTES", 2**60)
        assert_same_scores(shared, found())


@pytest.mark.usefixtures("runtime")
class TestShared:
    def test_one_worker_goes_fold_by_fold(self, tmp_path: Path) -> None:
        X, y = matrix()
        grid = {"number": [1, 2], "log": [str(tmp_path)]}
        TuneGridSearchCV(Mapped(), grid, cv=KFold(3), n_jobs=1, refit=False).fit(X, y)
        assert [line["number"] for line in fits(tmp_path)] == [1, 2, 1, 2, 1, 2]

    @pytest.mark.parametrize("end", [{"time_budget_s": 3600}, {"stopper": {"average_test_score": 2.0}}])
    def test_where_an_early_end_is_asked_for_candidates_are_complete_soon(
        self, tmp_path: Path, end: dict[str, Any]
    ) -> None:
        X, y = matrix()
        grid = {"number": [1, 2], "log": [str(tmp_path)]}
        TuneGridSearchCV(Mapped(), grid, cv=KFold(3), n_jobs=1, refit=False, **end).fit(X, y)
        assert [line["number"] for line in fits(tmp_path)] == [1, 1, 1, 2, 2, 2]

    def test_small_data_goes_candidate_by_candidate(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_memory, "LEAST_BYTES", 2**60)
        X, y = matrix()
        grid = {"number": [1, 2], "log": [str(tmp_path)]}
        found = TuneGridSearchCV(Mapped(), grid, cv=KFold(3, shuffle=True), n_jobs=1, refit=False).fit(X, y)
        assert [line["number"] for line in fits(tmp_path)] == [1, 1, 1, 2, 2, 2]
        assert found.best_score_ == 0.0

    @pytest.mark.parametrize("cv", [StratifiedKFold(), TimeSeriesSplit(5)], ids=["copies", "views"])
    def test_workers_have_no_copy_and_share_no_more_than_they_use(self, tmp_path: Path, cv: Any) -> None:
        """Four fifths of 40 MB for each worker, as scikit-learn copies it, would be 64 MB of their own.

        Folds of rows side by side are views of X, so there are no copies at all.
        """
        X = np.random.default_rng(0).standard_normal((50_000, 100))
        y = (X[:, 0] > 0).astype(int)
        grid = {"number": list(range(4)), "log": [str(tmp_path)]}
        search = TuneGridSearchCV(Mapped(driver=os.getpid()), grid, cv=cv, n_jobs=2, refit=False)
        search.fit(X[:400], y[:400])
        small = max(line["own"] for line in fits(tmp_path))
        for path in tmp_path.iterdir():
            path.unlink()
        search.fit(X, y)
        assert len(fits(tmp_path)) == 20
        grown = max(line["own"] for line in fits(tmp_path)) - small
        assert grown < X.nbytes / 2, f"{grown / 1e6} MB"
        most = max(line["full"] for line in fits(tmp_path))
        least, limit = (X.nbytes / 2, 2.1 * X.nbytes) if isinstance(cv, StratifiedKFold) else (-1, 1)
        assert least < most < limit, f"{most / 1e6} MB, of two workers"

    def test_nothing_is_left(self, tmp_path: Path) -> None:
        X, y = matrix()
        grid = {"number": [1, 2, 3], "log": [str(tmp_path)]}
        TuneGridSearchCV(Mapped(), grid, cv=3, n_jobs=2, refit=False).fit(X, y)
        assert not copy_files()
        assert eventually(lambda: not [found for pid in session_processes() for found in copy_files(pid)])


@pytest.mark.external
def test_ctrl_c_and_a_second_fit_that_does_the_rest(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 2.10, where candidates pause between folds: none is complete, and no fold is done again."""
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "300")  # to end in order, on a busy machine too
    large = SEARCH.replace("data()", f"data({LARGE})").replace("told()\n        print", "print")
    small = "import trainkit.sklearn.shared_memory as memory\nmemory.LEAST_BYTES = 1\n"
    program = begin_and_wait(programs, small + textwrap.dedent(large))
    before = done(programs.folder / "log")
    program.send_signal(signal.SIGINT)
    (programs.folder / "gate").unlink()
    out, err = program.communicate("\n", timeout=300)
    assert program.returncode == 0, err
    interrupted, second = out.splitlines()
    assert (interrupted, json.loads(second)["numbers"]) == ("interrupted", [1, 2, 3, 4])
    assert [line.split()[1] for line in before] == ["1", "2"]  # both on the first fold, and no further
    *known, _refit = done(programs.folder / "log")
    assert len(known) == len(set(known)) == 12, known


@given(st.integers(0, 50), st.integers(1, 50), st.integers(1, 3))
def test_rows_side_by_side_are_a_slice(first: int, count: int, step: int) -> None:
    indices = np.arange(first, first + count * step, step)
    rows = contiguous_slice(indices)
    if step == 1 or count == 1:
        np.testing.assert_array_equal(np.arange(200)[rows], indices)
    else:
        assert rows is None


@pytest.mark.parametrize("indices", [[0, 2, 1], [1, 0], [0, 0, 2], [], [-1, 0, 1]])
def test_other_rows_are_none(indices: list[int]) -> None:
    assert contiguous_slice(np.array(indices, dtype=int)) is None
