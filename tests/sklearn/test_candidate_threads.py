"""How many threads an estimator, and any library of a trial, has: as many as there are CPUs for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC
from threadpoolctl import threadpool_info

import trainkit
from tests.conftest import eventually
from trainkit.sklearn import TuneGridSearchCV

pytestmark = pytest.mark.usefixtures("runtime")
X, Y = load_iris(return_X_y=True)


def most_threads(estimator: Any, X: Any, y: Any) -> float:
    """A scorer that says how many threads a library may use here."""
    np.ones((8, 8)) @ np.ones((8, 8))
    return float(max(pool["num_threads"] for pool in threadpool_info()))


@pytest.mark.slow
@pytest.mark.parametrize(("sk_n_jobs", "threads"), [(None, 1), (3, 3)])  # row 1.44
def test_a_candidate_has_as_many_threads_as_cpus(
    monkeypatch: pytest.MonkeyPatch, sk_n_jobs: int | None, threads: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    search = TuneGridSearchCV(SVC(), {"C": [1, 2]}, cv=2, scoring=most_threads, sk_n_jobs=sk_n_jobs).fit(X, Y)
    assert list(search.cv_results_["mean_test_score"]) == [threads, threads]


def threads_of_booster(estimator: Any, X: Any, y: Any) -> float:
    return float(estimator.named_steps["model"].n_jobs)


@pytest.mark.slow
@pytest.mark.parametrize("stopping", [{}, {"early_stopping": "fifo", "max_iters": 2}])
def test_lightgbm_has_them_too_unless_the_user_gives_it_others(
    monkeypatch: pytest.MonkeyPatch, stopping: dict[str, Any]
) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for given, used in [(None, 2), (1, 1)]:
        model = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1, n_jobs=given)
        other = {} if stopping else {"model": [model, clone(model).set_params(n_estimators=3)]}
        search = TuneGridSearchCV(
            Pipeline([("model", model)]),
            {"model__num_leaves": [7, 15], **other},
            cv=2,
            scoring=threads_of_booster,
            sk_n_jobs=2,
            **stopping,
        ).fit(X, Y)
        assert set(search.cv_results_["mean_test_score"]) == {used}
        assert search.best_estimator_.named_steps["model"].n_jobs == given


class Process:
    """A process of its own, forked from what was loaded beforehand."""

    def threads(self) -> dict[str, set[int]]:
        """Return by kind of library how many threads those that are loaded have."""
        found: dict[str, set[int]] = {}
        for pool in threadpool_info():
            found.setdefault(pool["user_api"], set()).add(pool["num_threads"])
        return found


def test_libraries_that_were_loaded_before_take_the_cpus_of_the_trial() -> None:
    for cpus in (1, 2, 3):
        seen: dict[str, set[int]] = {}

        def is_loaded(cpus: int = cpus, seen: dict[str, set[int]] = seen) -> bool:
            """Look into a new process: the first ones don't wait until all imports are made."""
            one = trainkit.remote(num_cpus=cpus)(Process).remote()
            seen.update(trainkit.get(one.threads.remote()))
            trainkit.kill(one)
            return "openmp" in seen

        assert eventually(is_loaded)
        assert seen["openmp"] == seen["blas"] == {cpus}
