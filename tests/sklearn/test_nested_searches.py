"""Searches inside others: in joblib's workers, in trials, in threads; and sessions that the user began."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB

import trainkit
from tests.conftest import eventually, session_processes
from trainkit.sklearn import TuneGridSearchCV
from trainkit.tune import Tuner, with_parameters

X, Y = (part[:150] for part in load_digits(return_X_y=True))
GRID = {"var_smoothing": [1e-9, 1e-3, 1e-1]}


def search(**arguments: Any) -> TuneGridSearchCV:
    return TuneGridSearchCV(GaussianNB(), GRID, **{"cv": 3, "n_jobs": 2, **arguments})


@pytest.fixture(scope="module")
def expected() -> Any:
    """What scikit-learn's own search comes to."""
    return GridSearchCV(GaussianNB(), GRID, cv=3).fit(X, Y)


def same(found: Any, expected: Any) -> bool:
    scores = found.cv_results_["mean_test_score"]
    return bool(np.array_equal(scores, expected.cv_results_["mean_test_score"]))


@pytest.fixture(scope="module")
def joblibs_workers() -> Iterator[None]:
    """Begun before the first test that uses them, as they stay until they are told to go."""
    Parallel(n_jobs=2)(delayed(abs)(number) for number in range(2))
    yield
    get_reusable_executor().shutdown(wait=True)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = set(session_processes())
    yield
    assert not trainkit.is_initialized()
    trainkit.shutdown()
    assert eventually(lambda: set(session_processes()) <= before)


@pytest.mark.usefixtures("joblibs_workers", "nothing_left")
class TestInJoblibsWorkers:
    @pytest.mark.slow
    def test_cross_val_score(self, expected: Any) -> None:
        scores = cross_val_score(search(), X, Y, cv=2, n_jobs=2)
        theirs = cross_val_score(GridSearchCV(GaussianNB(), GRID, cv=3), X, Y, cv=2)
        np.testing.assert_array_equal(scores, theirs)

    def test_a_search_of_scikit_learns(self) -> None:
        outer = {"estimator__priors": [None, [0.1] * 10]}
        found = GridSearchCV(search(), outer, cv=2, n_jobs=2).fit(X, Y)
        theirs = GridSearchCV(GridSearchCV(GaussianNB(), GRID, cv=3), outer, cv=2).fit(X, Y)
        assert same(found, theirs)
        assert found.best_params_ == theirs.best_params_


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("cpus", [1, 2])
def test_a_search_in_a_search_needs_no_cpu_of_its_own(cpus: int) -> None:
    outer = {"estimator__priors": [None, [0.1] * 10]}
    found = TuneGridSearchCV(search(n_jobs=None), outer, cv=2, n_jobs=cpus).fit(X, Y)
    theirs = GridSearchCV(GridSearchCV(GaussianNB(), GRID, cv=3), outer, cv=2).fit(X, Y)
    assert same(found, theirs)


def searching(config: dict[str, Any], searched: Any) -> dict[str, Any]:
    found = searched.fit(X[config["part"] :], Y[config["part"] :])
    return {"best": found.best_score_, "workers": trainkit.is_initialized()}


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_in_a_trial_of_a_tuner_and_in_a_session_of_the_users(engine: str, expected: Any) -> None:
    trainkit.init(num_cpus=1, engine=engine)
    try:
        trial = with_parameters(searching, searched=search(n_jobs=None))
        (result,) = Tuner(trial, param_space={"part": 0}).fit()
        assert result.error is None
        assert result.metrics["best"] == expected.best_score_
        assert same(search().fit(X, Y), expected)
        assert trainkit.is_initialized(), "a session that was there before stays"
    finally:
        trainkit.shutdown()


@pytest.mark.usefixtures("nothing_left")
def test_in_a_thread_that_is_not_the_main_one(expected: Any) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(search().fit(X, Y)))
    thread.start()
    thread.join(400)
    assert same(found[0], expected)
