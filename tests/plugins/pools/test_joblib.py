"""joblib's backend on the runtime's tasks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest

import trainkit
from tests.conftest import session_fixture
from trainkit.plugins.pools import register_trainkit

joblib = pytest.importorskip("joblib")


session = session_fixture(num_cpus=2)


def double(x):
    return 2 * x


def note_pid(folder):
    (folder / str(os.getpid())).touch()


def count_cpus():
    return trainkit.get_runtime_context().get_assigned_resources()["CPU"]


def test_joblib_runs_on_the_backend() -> None:
    register_trainkit()
    array = numpy.arange(200_000.0)
    with joblib.parallel_config(backend="trainkit", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(double)(x) for x in range(500)) == [2 * x for x in range(500)]
        pids = joblib.Parallel()(joblib.delayed(os.getpid)() for _ in range(4))
        assert os.getpid() not in pids
        assert joblib.Parallel()(joblib.delayed(numpy.sum)(array) for _ in range(4)) == [array.sum()] * 4
        found = joblib.Parallel(return_as="generator")(joblib.delayed(double)(x) for x in range(5))
        assert list(found) == [0, 2, 4, 6, 8]
        with pytest.raises(ValueError, match="invalid literal"):
            joblib.Parallel()(joblib.delayed(int)(x) for x in ["1", "x", "2"])
        assert joblib.Parallel()(joblib.delayed(double)(x) for x in range(3)) == [0, 2, 4]


def test_options_may_be_given_as_to_rays_backend() -> None:
    register_trainkit()
    wanted = {"num_cpus": 1, "env": {"GIVEN": "1", "OMP_NUM_THREADS": "3"}}
    with joblib.parallel_config(backend="trainkit", n_jobs=2, ray_remote_args=wanted, num_cpus=2):
        found = joblib.Parallel()(joblib.delayed(os.getenv)(name) for name in wanted["env"])
        cpus = joblib.Parallel()(joblib.delayed(count_cpus)() for _ in range(2))
    assert found == ["1", "3"]
    assert cpus == [2, 2], "an option given by name goes before"


def test_an_initializer_of_one_joblib_call_is_not_that_of_the_next(tmp_path: Path) -> None:
    register_trainkit()
    calls = [joblib.delayed(os.getpid)() for _ in range(4)]
    with joblib.parallel_config(backend="trainkit", n_jobs=2):
        joblib.Parallel(initializer=note_pid, initargs=(tmp_path,))(calls)
        there = list(tmp_path.iterdir())
        for path in there:
            path.unlink()
        joblib.Parallel()(calls)
    assert there
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_scikit_learn_gives_the_same_scores() -> None:
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    register_trainkit()
    X, y = load_iris(return_X_y=True)
    plain = cross_val_score(LogisticRegression(max_iter=500), X, y)
    with joblib.parallel_config(backend="trainkit", n_jobs=2):
        assert (cross_val_score(LogisticRegression(max_iter=500), X, y) == plain).all()
