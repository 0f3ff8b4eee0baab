"""A session that `fit` begins: it ends with the fit, whatever becomes of that, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

import trainkit
from tests.conftest import eventually, session_processes, shared_memory
from tests.sklearn.scripted_estimator import ScriptedEstimator, data
from trainkit.errors import WorkerDiedError
from trainkit.sklearn import TuneGridSearchCV

X, Y = data()


def search(how: str) -> TuneGridSearchCV:
    return TuneGridSearchCV(ScriptedEstimator(), {"how": [how]}, cv=3, n_jobs=2, error_score="raise")


@pytest.mark.parametrize("how", ["fine", "raise", "kill"])
def test_it_ends_with_the_fit(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, threads = set(session_processes()), psutil.Process().num_threads()
    sockets = len(psutil.Process().net_connections("all"))
    if how == "fine":
        search(how).fit(X, Y)
    else:
        with pytest.raises((ValueError, WorkerDiedError)):
            search(how).fit(X, Y)
    assert not trainkit.is_initialized()
    assert eventually(lambda: set(session_processes()) <= before)
    assert eventually(lambda: psutil.Process().num_threads() <= threads)
    assert eventually(lambda: len(psutil.Process().net_connections("all")) <= sockets)
    assert not shared_memory()
    assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_two_threads_share_it_and_the_last_one_ends_it() -> None:
    found: dict[str, float] = {}

    def fit(name: str) -> None:
        found[name] = search("fine").fit(X, Y).best_score_

    threads = [threading.Thread(target=fit, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(400)
    assert found == {"one": 0.5, "other": 0.5}
    assert not trainkit.is_initialized()


@pytest.mark.external
def test_importing_the_door_starts_nothing() -> None:
    code = "import trainkit.sklearn, psutil; print(len(psutil.Process().children()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


FORKED_WITH = """
import sys, trainkit
from sklearn.datasets import load_iris
from sklearn.naive_bayes import GaussianNB
from trainkit.sklearn import TuneGridSearchCV

def is_loaded():
    return "sklearn.naive_bayes" in sys.modules

def in_a_new_process(number):
    task = trainkit.remote(is_loaded).options(runtime_env={"env_vars": {"NUMBER": number}})
    return trainkit.get(task.remote())

trainkit.init(num_cpus=1)
before = in_a_new_process("1")
TuneGridSearchCV(GaussianNB(), {"var_smoothing": [1e-9]}, cv=2).fit(*load_iris(return_X_y=True))
print(before, in_a_new_process("2"))
"""


@pytest.mark.external
def test_processes_are_forked_with_the_package_of_the_estimator() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED_WITH], capture_output=True, text=True, check=False)
    assert done.stdout == "False True\n", done.stderr
