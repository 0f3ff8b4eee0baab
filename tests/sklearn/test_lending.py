"""Data in shared memory: once for all workers, and folds whose rows lie side by side without a copy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import TimeSeriesSplit

from trainkit.runtime.local.system import process
from trainkit.sklearn import TuneGridSearchCV
from trainkit.sklearn.shared_memory import contiguous_slice

MB = 1_000_000


class Watching(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Writes down what its process holds while it fits; then it writes to the data.

    Args:
        log: a folder, which gets a file for each process.
        number: told apart by it.
    """

    def __init__(self, log: str = "", number: int = 0) -> None:
        self.log = log
        self.number = number

    def fit(self, X: Any, y: Any) -> Self:
        self.sum_ = float(X.sum())
        with open("/proc/self/smaps") as file:
            mapped = {line.split()[4] for line in file if "memfd:trainkit" in line}
        held = {"own": process.own_pages_bytes(os.getpid()), "segments": sorted(mapped), "rows": len(X)}
        with open(Path(self.log, str(os.getpid())), "a") as file:
            file.write(json.dumps(held) + "\n")
        X[:10] += 1.0  # its own, as it would be with a copy
        return self

    def predict(self, X: Any) -> Any:
        return X[:, 0] + self.sum_

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        return self.sum_ + float(X[0, 0])


def watched(log: Path) -> dict[str, list[dict[str, Any]]]:
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in log.iterdir()}


@pytest.mark.usefixtures("runtime")
class TestLent:
    @pytest.mark.slow
    def test_four_workers_hold_less_than_the_data_for_themselves(self, tmp_path: Path) -> None:
        """X goes to shared memory once, and folds of rows side by side are views of it."""
        X = np.random.default_rng(0).standard_normal((100_000, 100))  # 80 MB
        grid = {"number": list(range(8)), "log": [str(tmp_path)]}
        search = TuneGridSearchCV(Watching(), grid, cv=TimeSeriesSplit(2), n_jobs=4, refit=False)
        search.fit(X[:300], X[:300, 0])
        small = max(line["own"] for lines in watched(tmp_path).values() for line in lines)
        for path in tmp_path.iterdir():
            path.unlink()
        search.fit(X, X[:, 0])
        workers = watched(tmp_path)
        most = [max(line["own"] for line in lines) - small for lines in workers.values()]
        assert sum(most) < X.nbytes / 2, [size / MB for size in most]
        assert len({tuple(lines[0]["segments"]) for lines in workers.values()}) == 1, "one segment for all"


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
