"""How a `TuneSearchCV` ends, what it tells, and what of it can be kept."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import KFold

from tests.conftest import run_python
from tests.sklearn.scripted_estimator import EndsAfter, ScriptedEstimator, data
from tests.sklearn.searches import C, X, Y, candidates, search, session  # noqa: F401 - the fixture
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.sklearn import trials as evaluation
from trainkit.tune.callbacks import Callback

# --- how it ends ----------------------------------------------------------------------------------


def test_a_stopper_ends_the_search_with_a_whole_candidate() -> None:
    found = search(n_trials=50, n_jobs=1, stopper=EndsAfter(1, ends_trials=True)).fit(X, Y)
    assert len(candidates(found)) < 50
    assert not np.isnan(found.cv_results_["split2_test_score"]).any()


# --- what is told ---------------------------------------------------------------------------------


def test_verbose(capfd: pytest.CaptureFixture[str]) -> None:
    search(verbose=0).fit(X, Y)
    assert capfd.readouterr() == ("", "")
    search(verbose=1).fit(X, Y)
    told = capfd.readouterr().out
    assert "Fitting 3 folds for each of 3 candidates, totalling 9 fits" in told
    assert "3 finished" in told


def test_the_console_calls_no_candidate_best_by_its_first_folds(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "REPORT_EVERY_S", -1.0)  # each fold by itself

    def promising(estimator: Any, X: Any, y: Any) -> float:
        first = X[0, 0] == 0
        return (1.0 if first else 0.0) if estimator.number == 1 else 0.5

    grid = {"number": [1, 2]}
    named: dict[str, Any] = {"scoring": {"promise": promising}, "refit": "promise"}
    found = TuneGridSearchCV(ScriptedEstimator(), grid, cv=KFold(3), n_jobs=1, verbose=1, **named).fit(
        *data()
    )
    assert found.best_params_ == {"number": 2}
    told = capfd.readouterr().out
    assert "best by last report: average_test_promise=0.5 at iteration 3" in told
    assert "Tuning in memory, with" in told
    assert tempfile.gettempdir() not in told, "a folder that is gone"


def test_tune_params(tmp_path: Path) -> None:
    ended: list[str] = []

    class Telling(Callback):
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ended.append(trial.trial_id)

    search().fit(X, Y, tune_params={"callbacks": [Telling()], "local_dir": tmp_path, "name": "by_fit"})
    assert len(ended) == 3
    assert len(tune.ResultGrid.from_path(tmp_path / "by_fit")) == 3
    with pytest.raises(ConfigError, match="Did you mean 'verbose'"):
        search().fit(X, Y, tune_params={"verbos": 1})


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True])
def test_a_reporter_names_the_folder_that_stays_and_no_other(
    kept: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {"local_dir": str(tmp_path), "name": "kept"} if kept else {}
    search(verbose=1, **where).fit(X, Y, tune_params={"progress_reporter": tune.CLIReporter()})
    said = capsys.readouterr().out
    assert "Number of trials: 3" in said
    named = {line for line in said.splitlines() if line.startswith("Result folder")}
    assert named == ({f"Result folder: {tmp_path}/kept"} if kept else set())


def test_an_experiment_that_is_kept_is_read_back(tmp_path: Path) -> None:
    found = search(local_dir=str(tmp_path), name="kept", loggers=["tensorboard"]).fit(X, Y)
    grid = tune.ResultGrid.from_path(tmp_path / "kept")
    assert [result.config["C"] for result in grid] == [each["C"] for each in candidates(found)]
    assert [result.metrics["average_test_score"] for result in grid] == pytest.approx(
        found.cv_results_["mean_test_score"]
    )
    assert grid.get_best_result().config == found.best_params_
    for pattern in ("params.json", "result.json", "progress.csv", "events.out.tfevents.*"):
        assert len(list(tmp_path.glob(f"kept/*/{pattern}"))) == 3


def test_the_same_name_again_does_not_fail(tmp_path: Path) -> None:
    found = [search(local_dir=str(tmp_path), name="twice").fit(X[start:], Y[start:]) for start in (0, 0, 3)]
    assert candidates(found[0]) == candidates(found[1]) == candidates(found[2])
    kept = sorted(each.name for each in tmp_path.iterdir())
    assert len(kept) == 3 and all(name.startswith("twice") for name in kept)


FRESH = """
import json, sys
from scipy.stats import loguniform
from sklearn.datasets import load_iris
from sklearn.svm import SVC
from trainkit.sklearn import TuneSearchCV

where = json.loads(sys.argv[1])
search = TuneSearchCV(SVC(), {"C": loguniform(1e-2, 1e2)}, n_trials=2, cv=2, random_state=0, **where)
search.fit(*load_iris(return_X_y=True))
"""


@pytest.mark.parametrize("named", [True, False])
def test_files_lie_in_one_place_or_nowhere(tmp_path: Path, named: bool) -> None:
    # row 1.11
    places = {name: tmp_path / name for name in ("home", "tmp", "work", "results")}
    for place in places.values():
        place.mkdir()
    where = {"local_dir": str(places["results"]), "name": "mine"} if named else {}
    environment = {**os.environ, "HOME": str(places["home"]), "TMPDIR": str(places["tmp"])}
    environment.pop("TRAINKIT_RESULTS_DIR", None)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    run_python("-c", FRESH, json.dumps(where), cwd=places["work"], env=environment)
    left = {each for place in places.values() for each in place.rglob("*") if each.is_file()}
    inside = {each for each in left if each.is_relative_to(places["results"] / "mine")}
    assert left == inside
    assert bool(inside) == named


def test_without_abandoned_packages_every_search_runs() -> None:
    # row 1.29: none of these is loaded, whatever is searched by, by a program that has not loaded it itself
    script = (
        "import sys\n"
        "from tests.sklearn.searches import X, Y, search\n"
        "for optimization in ('random', 'bohb', 'optuna'):\n"
        "    search({'C': (0.1, 1.0)}, search_optimization=optimization).fit(X, Y)\n"
        "print(*{'ConfigSpace', 'hpbandster', 'GPy', 'skopt'} & sys.modules.keys())"
    )
    assert run_python("-c", script, cwd=Path(__file__).parents[2]).stdout.strip() == ""


@pytest.mark.parametrize("kept", [True, False])
def test_the_analysis_and_pickles(tmp_path: Path, kept: bool) -> None:
    where = {"local_dir": str(tmp_path), "name": "mine"} if kept else {}
    found = search(scoring="accuracy", **where).fit(X, Y)
    joblib.dump(found, tmp_path / "search.joblib")
    for each in (found, pickle.loads(pickle.dumps(found)), joblib.load(tmp_path / "search.joblib")):
        assert np.array_equal(each.predict(X), found.predict(X))
        analysis = each.analysis_
        assert analysis.best_config == found.best_params_
        assert analysis.default_metric == "average_test_score" and analysis.default_mode == "max"
        assert len(analysis.trials) == len(analysis.results_df) == len(analysis.trial_dataframes) == 3
        assert analysis.best_result["average_test_score"] == pytest.approx(found.best_score_)
        assert set(analysis.get_all_configs().values().__iter__().__next__()) == {"C"}
        assert analysis.runner_data()["seed"] == 1


@pytest.mark.parametrize("kept", [True, False])
def test_only_checkpoints_that_stay_are_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    stopped = TuneSearchCV(
        SGDClassifier(random_state=0),
        {"alpha": [1e-4, 1e-3]},
        n_trials=2,
        cv=3,
        early_stopping=True,
        max_iters=4,
        **({"local_dir": str(tmp_path)} if kept else {}),
    ).fit(X, Y)
    assert stopped.n_splits_ == 3
    assert bool(flushed) is kept
