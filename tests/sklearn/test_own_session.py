"""Where folds run: in the program, or in a session that `fit` begins and that waits for the next search."""

from __future__ import annotations

import contextlib
import math
import os
import random
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import check_scoring, f1_score, make_scorer
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from threadpoolctl import threadpool_info

import trainkit
from tests.conftest import eventually, session_processes, shared_memory
from tests.runtime.local.programs import Programs
from tests.sklearn.scripted_estimator import ScriptedEstimator, data
from trainkit import tune
from trainkit.errors import WorkerDiedError
from trainkit.plugins.pools import Pool
from trainkit.runtime import session
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV, experiment, first_folds
from trainkit.sklearn.context import SklearnContext
from trainkit.sklearn.first_folds import FirstFolds
from trainkit.sklearn.trials import EvaluationTask, may_be_here

X, Y = data()


def search(how: str) -> TuneGridSearchCV:
    return TuneGridSearchCV(ScriptedEstimator(), {"how": [how]}, cv=3, n_jobs=2, error_score="raise")


def nodes() -> set[int]:
    return {each.pid for each in psutil.Process().children()}


@pytest.mark.parametrize("how", ["fine", "raise", "kill"])
def test_it_waits_for_the_next_search_and_leaves_nothing(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, threads, own = set(session_processes()), psutil.Process().num_threads(), nodes()
    sockets = len(psutil.Process().net_connections("all"))
    if how == "fine":
        search(how).fit(X, Y)
    else:
        with pytest.raises((ValueError, WorkerDiedError)):
            search(how).fit(X, Y)
    assert not trainkit.is_initialized()
    waiting = nodes() - own
    assert waiting
    assert not shared_memory()
    search("fine").fit(X, Y)
    assert nodes() - own == waiting
    trainkit.shutdown()
    assert eventually(lambda: set(session_processes()) <= before)
    assert eventually(lambda: psutil.Process().num_threads() <= threads)
    assert eventually(lambda: len(psutil.Process().net_connections("all")) <= sockets)
    assert not shared_memory()
    assert not os.listdir(tmp_path)


def test_another_session_takes_its_place() -> None:
    own = nodes()
    search("fine").fit(X, Y)
    waiting = nodes() - own
    trainkit.init(num_cpus=1)
    try:
        assert not (nodes() - own) & waiting
        assert trainkit.cluster_resources()["CPU"] == 1
    finally:
        trainkit.shutdown()


def report(config: dict[str, Any]) -> dict[str, int]:
    return {"loss": 1}


def test_tuners_and_pools_go_on_in_it(tmp_path: Path) -> None:
    own = nodes()
    TuneGridSearchCV(ScriptedEstimator(), {"how": ["fine"]}, cv=3, n_jobs=-1).fit(X, Y)
    waiting = nodes() - own
    assert len(waiting) == 1
    try:
        for _ in range(2):
            tune.Tuner(report, run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0)).fit()
            with Pool(1) as pool:
                assert pool.map(abs, [-1]) == [1]
            assert nodes() - own == waiting
        assert trainkit.is_initialized()
    finally:
        trainkit.shutdown()
    assert eventually(lambda: nodes() == own)


def test_it_ends_when_no_search_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = nodes()
    monkeypatch.setattr(session, "PARKED_S", 0.01)
    search("fine").fit(X, Y)
    assert eventually(lambda: nodes() == own)


AT_THE_END = """
    import os, signal, sys
    from tests.sklearn.scripted_estimator import ScriptedEstimator, data
    from trainkit.sklearn import TuneGridSearchCV

    def fit():
        TuneGridSearchCV(ScriptedEstimator(), {"number": [1, 2]}, cv=3, n_jobs=2).fit(*data())

    fit()
    if sys.argv[1] == "fork":
        child = os.fork()
        fit()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    elif sys.argv[1] == "tuner":
        from trainkit import tune
        run = tune.RunConfig(storage_path=os.getcwd(), verbose=0)
        for _ in range(2):
            tune.Tuner(lambda config: {"loss": 1}, run_config=run).fit()
    elif sys.argv[1] != "exit":
        os.kill(os.getpid(), int(sys.argv[1]))
    print("over", flush=True)
"""


@pytest.mark.external
@pytest.mark.parametrize("how", ["exit", "fork", "tuner", "15", "9"])
def test_nothing_of_it_outlives_the_program(how: str, programs: Programs) -> None:
    program = programs.begin(AT_THE_END, how)
    out, err = program.communicate(timeout=400)
    assert out == ("" if how.isdigit() else "over\n"), err
    assert eventually(lambda: not programs.processes())


READY_TO_SEARCH = """
    import trainkit
    from trainkit.sklearn import TuneGridSearchCV

    trainkit.init(num_cpus=1)
    input()
"""


@pytest.mark.external
def test_a_session_imports_what_searches_need_before_the_first_of_them(programs: Programs) -> None:
    def has_scikit_learn(pid: int) -> bool:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            return "/sklearn/" in Path(f"/proc/{pid}/maps").read_text()
        return False

    program = programs.begin(READY_TO_SEARCH)
    assert eventually(lambda: any(map(has_scikit_learn, programs.processes())))
    _, err = program.communicate("\n", timeout=120)
    assert program.returncode == 0, err


# --- small searches, in the program itself --------------------------------------------------------

IRIS = load_iris(return_X_y=True)
FOREST = {"n_estimators": [2, 3]}


def program() -> list[Any]:
    """What a fit in the program could change."""
    numpys = np.random.get_state()
    threads = [pool["num_threads"] for pool in threadpool_info()]
    return [random.getstate(), str(numpys), list(warnings.filters), threads]


def test_a_small_search_runs_in_the_program_and_leaves_nothing_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_folds, "START_AFTER_S", math.inf)  # on a busy machine too
    estimator, grid = LogisticRegression(max_iter=1000), {"C": [0.1, 1.0]}
    theirs = GridSearchCV(estimator, grid, cv=3).fit(*IRIS)
    own, before = nodes(), program()
    ours = TuneGridSearchCV(estimator, grid, cv=3).fit(*IRIS)
    assert program() == before
    assert nodes() == own
    assert {result.metrics["pid"] for result in ours.analysis_.trials} == {os.getpid()}
    np.testing.assert_array_equal(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])


def test_a_search_that_is_done_in_the_program_waits_for_no_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answered = tmp_path / "answered"

    def answer_late() -> None:
        time.sleep(30)
        answered.touch()

    monkeypatch.setattr(first_folds, "START_AFTER_S", 0.0)
    monkeypatch.setattr(experiment, "_is_there", answer_late)
    own = nodes()
    try:
        ours = TuneGridSearchCV(RandomForestClassifier(random_state=0), {"max_depth": [1, 2]}, cv=3).fit(
            *IRIS
        )
        assert nodes() - own, "no session was begun"
        assert not answered.exists()
        assert {result.metrics["pid"] for result in ours.analysis_.trials} == {os.getpid()}
    finally:
        trainkit.shutdown()


@pytest.mark.parametrize("most_s", [0.0, 0.02, math.inf])
def test_scores_are_the_same_wherever_folds_run(monkeypatch: pytest.MonkeyPatch, most_s: float) -> None:
    def scores(**settings: Any) -> list[float]:
        search = TuneSearchCV(RandomForestClassifier(), FOREST, n_trials=2, random_state=3, cv=3, **settings)
        return list(search.fit(*IRIS).cv_results_["mean_test_score"])

    in_workers = scores(time_budget_s=3600)
    for name in ("START_AFTER_S", "HAND_OVER_S", "MOST_S"):
        monkeypatch.setattr(first_folds, name, most_s)
    assert scores() == in_workers


SMALL = """
    import math, os
    from sklearn.datasets import load_iris
    from sklearn.tree import DecisionTreeClassifier
    from trainkit.sklearn import TuneGridSearchCV, first_folds

    first_folds.START_AFTER_S = math.inf  # on a busy machine too
    for _ in range(20):
        search = TuneGridSearchCV(DecisionTreeClassifier(), {"max_depth": [1, 2]}, cv=3)
        search.fit(*load_iris(return_X_y=True))
        assert {result.metrics["pid"] for result in search.analysis_.trials} == {os.getpid()}
"""


@pytest.mark.external
def test_programs_run_small_searches_at_the_same_time_and_leave_no_file(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scratch := programs.folder / "scratch").mkdir()
    (scratch / "search").touch()  # a program's own, in which no folder can be made
    monkeypatch.setenv("TMPDIR", str(scratch))
    for program in [programs.begin(SMALL), programs.begin(SMALL)]:
        _, err = program.communicate(timeout=300)
        assert program.returncode == 0, err
    assert os.listdir(scratch) == ["search"]


def task_of(estimator: Any, **changes: Any) -> EvaluationTask:
    X, y = IRIS
    splits = list(KFold(2).split(X))
    scorer = check_scoring(estimator)
    task = EvaluationTask(
        estimator, X, y, splits, scorer, {}, {}, False, math.nan, 0, SklearnContext.current()
    )
    return replace(task, **changes)


def test_only_code_of_scikit_learn_runs_in_the_program() -> None:
    linear, own = LogisticRegression(), ScriptedEstimator()
    assert may_be_here(task_of(linear), [{"C": 1.0}])
    assert may_be_here(
        task_of(make_pipeline(StandardScaler(), linear)), [{"logisticregression": GaussianNB()}]
    )
    assert may_be_here(task_of(linear, scorer=make_scorer(f1_score, average="micro")), [{}])
    for task, parameters in [
        (task_of(own), {}),
        (task_of(linear), {"C": own}),
        (task_of(make_pipeline(own, linear)), {}),
        (task_of(make_pipeline(FunctionTransformer(lambda X: X), linear)), {}),
        (task_of(linear, scorer=lambda estimator, X, y: 1.0), {}),
        (task_of(linear, scorer=make_scorer(lambda y, predicted: 1.0)), {}),
        (task_of(RandomForestClassifier(n_jobs=2)), {}),
        (task_of(linear, X=np.zeros((1 << 11, 1 << 11))), {}),
        (task_of(make_pipeline(CountVectorizer(tokenizer=str.split), linear)), {}),
        (task_of(linear, X=iter(())), {}),
    ]:
        assert not may_be_here(task, [parameters]), (task.estimator, parameters)


def long_folds(gate: Path) -> FirstFolds:
    gate.touch()
    return FirstFolds(task_of(ScriptedEstimator("wait", gate=str(gate))), [{}], None)


def test_the_program_is_as_before_once_the_fold_that_is_left_has_ended(tmp_path: Path) -> None:
    before = program()
    first = long_folds(tmp_path / "gate")
    with first.running():
        assert not first.suffice(2, there=False)
        assert not first.stop()
        (tmp_path / "gate").unlink()
    assert first.left == 1
    assert program() == before
    assert not first.in_use.locked()
    assert "trainkit-first-folds" not in [each.name for each in threading.enumerate()]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), None])
def test_nothing_waits_for_a_fold_after_an_interrupt(interrupt: BaseException | None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first = long_folds(gate)
    before = program()
    with contextlib.suppress(KeyboardInterrupt), first.running():
        assert not first.suffice(2, there=False)
        if interrupt is not None:
            raise interrupt
        first.leave()
    assert program() == before
    assert gate.exists()
    other = long_folds(gate)
    with other.running():
        assert not other.suffice(2, there=False)
    assert other.left == 2, "the fold that was left is still under way"
    gate.unlink()
    assert eventually(lambda: not first.in_use.locked())
