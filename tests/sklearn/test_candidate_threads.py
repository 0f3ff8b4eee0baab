"""How many threads an estimator has: as many as its candidate has CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.svm import SVC
from threadpoolctl import threadpool_info

from trainkit.sklearn import TuneGridSearchCV

pytestmark = pytest.mark.usefixtures("runtime")
X, Y = load_iris(return_X_y=True)


def most_threads(estimator: Any, X: Any, y: Any) -> float:
    """A scorer that says how many threads a library may use here."""
    np.ones((8, 8)) @ np.ones((8, 8))
    return float(max(pool["num_threads"] for pool in threadpool_info()))


@pytest.mark.parametrize(("sk_n_jobs", "threads"), [(None, 1), (3, 3)])  # row 1.44
def test_a_candidate_has_as_many_threads_as_cpus(
    monkeypatch: pytest.MonkeyPatch, sk_n_jobs: int | None, threads: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    search = TuneGridSearchCV(SVC(), {"C": [1, 2]}, cv=2, scoring=most_threads, sk_n_jobs=sk_n_jobs).fit(X, Y)
    assert list(search.cv_results_["mean_test_score"]) == [threads, threads]
