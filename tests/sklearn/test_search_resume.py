"""Ctrl-C in `fit`, and a second `fit`, which does only what is missing. # row 2.10"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import eventually, run_python
from tests.runtime.local.programs import Programs
from tests.sklearn.scripted_estimator import ScriptedEstimator, data, done
from trainkit.errors import StoreError
from trainkit.sklearn import TuneGridSearchCV
from trainkit.sklearn.outcomes import claim_folder
from trainkit.tune import ResultGrid

X, Y = data()


SEARCH = """
    import json, sys
    from tests.sklearn.scripted_estimator import ScriptedEstimator, data
    from trainkit.sklearn import TuneGridSearchCV

    folder = sys.argv[1]
    grid = [{"how": ["fine"], "number": [1, 2]}, {"how": ["wait"], "number": [3, 4]}]
    odd = ScriptedEstimator(log=f"{folder}/log", gate=f"{folder}/gate")
    search = TuneGridSearchCV(odd, grid, cv=3, n_jobs=1, **json.loads(sys.argv[2]))

    def told():
        numbers = [params["number"] for params in search.cv_results_["params"]]
        told = {"numbers": numbers, "best": search.best_params_, "score": search.best_score_}
        print(json.dumps(told | {"refitted": hasattr(search, "best_estimator_")}), flush=True)

    try:
        search.fit(*data())
    except KeyboardInterrupt:
        told()
        print("interrupted", flush=True)
    sys.stdin.readline()
    search.fit(*data())
    told()
"""


def waiting(folder: Path) -> bool:
    return (folder / "gate.waiting").exists()


def begin_and_wait(programs: Programs, script: str, **arguments: str) -> subprocess.Popen[str]:
    (programs.folder / "gate").touch()
    program = programs.begin(script, str(programs.folder), json.dumps(arguments))
    assert eventually(lambda: waiting(programs.folder) or program.poll() is not None, 300)
    return program


@pytest.mark.external
def test_ctrl_c_keeps_what_is_complete_and_a_second_fit_does_the_rest(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 2.10: SIGINT in `fit`; a second `fit` runs only the missing folds, counted."""
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "300")  # to end in order, on a busy machine too
    program = begin_and_wait(programs, SEARCH)
    program.send_signal(signal.SIGINT)
    (programs.folder / "gate").unlink()  # what runs may end in order
    out, err = program.communicate("\n", timeout=300)
    assert program.returncode == 0, err
    first, interrupted, second = out.splitlines()
    assert interrupted == "interrupted"
    assert set(json.loads(first)["numbers"]) >= {1, 2}
    assert json.loads(first)["best"] == {"how": "fine", "number": 1}
    assert not json.loads(first)["refitted"]
    assert json.loads(second)["numbers"] == [1, 2, 3, 4]
    assert json.loads(second)["refitted"]
    fits = done(programs.folder / "log")
    refit = fits.pop()
    assert refit.startswith("fine 1 30")
    assert len(fits) == len(set(fits)) == 12, fits  # each fold of each candidate once, in both fits together
    assert eventually(lambda: not programs.processes())


@pytest.mark.external
def test_a_driver_that_is_killed_leaves_no_process_and_no_file(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = programs.folder / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setenv("TRAINKIT_LOG_DIR", str(programs.folder / "logs"))  # these stay
    program = begin_and_wait(programs, SEARCH)
    assert list(scratch.glob("trainkit-sklearn-*"))
    program.kill()
    program.communicate(timeout=300)
    assert eventually(lambda: not programs.processes())
    assert eventually(lambda: not list(scratch.iterdir())), list(scratch.iterdir())


@pytest.mark.external
def test_a_search_with_a_name_goes_on_after_its_driver_was_killed(programs: Programs) -> None:
    kept = {"name": "odd", "local_dir": str(programs.folder / "kept")}
    program = begin_and_wait(programs, SEARCH, **kept)
    # The third candidate waits, and its process may be ahead of the driver, which writes down what is done.
    assert eventually(lambda: ResultGrid.from_path(programs.folder / "kept" / "odd").num_terminated == 2)
    program.kill()
    program.communicate(timeout=300)
    assert eventually(lambda: not programs.processes())
    (programs.folder / "gate").unlink()
    before = done(programs.folder / "log")
    program = programs.begin(SEARCH, str(programs.folder), json.dumps(kept))
    out, err = program.communicate("\n", timeout=300)
    assert program.returncode == 0, err
    assert json.loads(out.splitlines()[0])["numbers"] == [1, 2, 3, 4]
    fits = [line for line in done(programs.folder / "log") if line.split()[2] != "30"]
    assert before
    # The fold at which it was killed is begun anew; and the search that was finished is measured again by
    # the second `fit` of the script.
    assert len(fits) == 24
    assert len(set(fits)) == 12
    assert sorted(folder.name for folder in (programs.folder / "kept").iterdir()) == ["odd", "odd_2", "odd_3"]


REFITTED = """
    import sys
    from tests.sklearn.scripted_estimator import ScriptedEstimator, data
    from trainkit.sklearn import TuneGridSearchCV, TuneHalvingGridSearchCV

    folder, kind = sys.argv[1:]
    odd = ScriptedEstimator(log=f"{folder}/log", gate=f"{folder}/gate")
    grid = {"how": ["refit"], "number": [1, 2, 3, 4]}
    kept = {"cv": 3, "n_jobs": 1, "name": "odd", "local_dir": f"{folder}/kept"}
    if kind == "grid":
        search = TuneGridSearchCV(odd, grid, **kept)
    else:
        search = TuneHalvingGridSearchCV(odd, grid, min_resources=15, random_state=0, **kept)
    print(search.fit(*data()).best_params_["number"])
"""


@pytest.mark.external
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("grid", signal.SIGKILL),
        ("grid", signal.SIGTERM),
        ("halving", signal.SIGKILL),
        ("halving", signal.SIGINT),
    ],
)
def test_a_search_that_ends_in_the_fit_on_all_data_repeats_only_that(
    programs: Programs, number: signal.Signals, kind: str
) -> None:
    (programs.folder / "gate").touch()
    program = programs.begin(REFITTED, str(programs.folder), kind)
    assert eventually(lambda: waiting(programs.folder) or program.poll() is not None, 300)
    program.send_signal(number)
    program.communicate(timeout=300)
    assert eventually(lambda: not programs.processes())
    folds = done(programs.folder / "log")
    (programs.folder / "gate").unlink()
    for anew in (False, True):
        program = programs.begin(REFITTED, str(programs.folder), kind)
        _, err = program.communicate(timeout=300)
        assert program.returncode == 0, err
        more = done(programs.folder / "log")[len(folds) :]
        assert sorted(more) == sorted([*folds * anew, next(each for each in more if " 30 " in each)])
        (programs.folder / "log").write_text("".join(f"{each}\n" for each in folds))


@pytest.mark.usefixtures("runtime")
class TestInThisProcess:
    """One interrupted search, then what the second `fit` does anew."""

    @pytest.fixture
    def search(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneGridSearchCV:
        monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "300")  # to end in order, on a busy machine too
        gate = tmp_path / "gate"
        gate.touch()
        grid = [{"how": ["fine"], "number": [1, 2]}, {"how": ["wait"], "number": [3, 4]}]
        odd = ScriptedEstimator(log=str(tmp_path / "log"), gate=str(gate))
        search = TuneGridSearchCV(odd, grid, cv=3, n_jobs=1, refit=False)

        def interrupt() -> None:
            assert eventually(lambda: waiting(tmp_path), 60)
            os.kill(os.getpid(), signal.SIGINT)
            gate.unlink()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the search ended before")  # if one was cut off
            search.fit(X, Y)
        thread.join()
        return search

    def new_fits(self, search: TuneGridSearchCV, X: Any, y: Any) -> list[str]:
        log = Path(search.estimator.log)
        before = len(done(log))
        search.fit(X, y)
        return done(log)[before:]

    def test_the_same_data_needs_only_the_missing_folds(
        self, search: TuneGridSearchCV, tmp_path: Path
    ) -> None:
        before = done(tmp_path / "log")
        assert len(before) >= 6
        missing = self.new_fits(search, X.copy(), Y.copy())
        assert len(before) + len(missing) == len({*before, *missing}) == 12
        assert search.cv_results_["split2_test_score"].shape == (4,)
        assert len(self.new_fits(search, X, Y)) == 12, "a search that has ended is not gone on with"

    @pytest.mark.parametrize("change", ["X", "y", "estimator", "cv", "scoring"])
    def test_other_data_or_parameters_need_everything_anew(
        self, search: TuneGridSearchCV, change: str
    ) -> None:
        features, target = X, Y
        if change == "X":
            features = X + 1.0
        elif change == "y":
            target = 1 - Y
        elif change == "estimator":
            search.estimator.gate = "elsewhere"
        elif change == "cv":
            search.cv = 4
        else:
            search.scoring = "f1"
        assert len(self.new_fits(search, features, target)) == 4 * (4 if change == "cv" else 3)

    def test_candidates_that_are_new_are_done_and_those_known_are_not(self, search: TuneGridSearchCV) -> None:
        search.param_grid = {"how": ["fine"], "number": [2, 7]}
        assert {line.split()[1] for line in self.new_fits(search, X, Y)} == {"7"}


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("others", [["raise"], ["raise", "fine"]])
def test_a_search_with_a_name_evaluates_anew_what_failed(others: list[str], tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    gate.touch()
    odd = ScriptedEstimator(log=str(log), gate=str(gate))
    kept = {"name": "odd", "local_dir": str(tmp_path / "kept")}
    search = TuneGridSearchCV(
        odd, {"how": others}, cv=3, n_jobs=1, refit=lambda _: others.index("raise"), **kept
    )
    with pytest.raises(ValueError, match=r"will not do|fits failed"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, Y)
    gate.unlink()
    search.fit(X, Y)
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()
    assert len(done(log)) == 3 * len(others) + 1, "what succeeded is known"


# --- the pure part --------------------------------------------------------------------------------


_OWN_CLASS = """
from sklearn.tree import DecisionTreeClassifier
from trainkit.sklearn.outcomes import digest

def helped(x):
    return x + OFFSET

OFFSET = 2

class Slow(DecisionTreeClassifier):
    def fit(self, X, y):
        return super().fit(helped(X), y)

print(digest({"estimator": Slow(max_depth=3)}, "it"))
"""


@pytest.mark.external
def test_a_class_of_the_program_itself_is_known_again() -> None:
    def told(program: str) -> str:
        return run_python("-c", program).stdout

    assert told(_OWN_CLASS) == told(_OWN_CLASS) != told(_OWN_CLASS.replace("OFFSET = 2", "OFFSET = 3"))


def test_names_are_counted(tmp_path: Path) -> None:
    for expected in ("search", "search_2", "search_3"):
        with claim_folder(tmp_path / "new", "search") as name:
            assert name == expected
            assert (tmp_path / "new" / name).stat().st_mode & 0o777 == 0o700
            (tmp_path / "new" / name / "experiment.sqlite").touch()


def test_a_name_is_given_once_to_those_that_begin_at_the_same_time(tmp_path: Path) -> None:
    with claim_folder(tmp_path, "search") as first, claim_folder(tmp_path, "search") as second:
        assert (first, second) == ("search", "search_2")
    assert not list(tmp_path.iterdir()), "nothing came of them"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StoreError, match="search cannot be created"),
        claim_folder(tmp_path / "file", "search"),
    ):
        pass
