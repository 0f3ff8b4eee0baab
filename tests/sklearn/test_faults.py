"""Estimators that raise, die or never end, and Ctrl-C: what `fit` comes to, and that nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV

from tests.sklearn.scripted_estimator import EndsAfter, ScriptedEstimator, data, done
from trainkit.errors import ConfigError, WorkerDiedError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.sklearn.trials import REPORT_EVERY_S

X, Y = data()


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves anything where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.iterdir())


def search(how: list[str], **arguments: object) -> TuneGridSearchCV:
    return TuneGridSearchCV(ScriptedEstimator(), {"how": how}, **{"cv": 3, "n_jobs": 2, **arguments})


@pytest.mark.usefixtures("runtime")
class TestOneCandidate:
    def test_that_raises_has_the_error_score(self) -> None:
        with pytest.warns(FitFailedWarning, match=r"(?s)3 fits failed out of a total of 6.*will not do"):
            found = search(["fine", "raise"], error_score=-1.0).fit(X, Y)
        theirs = GridSearchCV(ScriptedEstimator(), {"how": ["fine", "raise"]}, cv=3, error_score=-1.0)
        with pytest.warns(FitFailedWarning):
            theirs.fit(X, Y)
        for split in range(3):
            key = f"split{split}_test_score"
            np.testing.assert_array_equal(found.cv_results_[key], theirs.cv_results_[key])
        assert found.best_params_ == theirs.best_params_ == {"how": "fine"}

    @pytest.mark.parametrize("return_train_score", [False, True])
    def test_that_kills_its_process_has_failed(self, return_train_score: bool) -> None:
        killing = search(["kill", "fine"], error_score=np.nan, return_train_score=return_train_score)
        with (
            pytest.warns(FitFailedWarning, match=r"(?s)3 fits failed out of a total of 6.*SIGKILL"),
            pytest.warns(UserWarning, match="non-finite"),
        ):
            killing.fit(X, Y)
        assert np.isnan(killing.cv_results_["mean_test_score"]).tolist() == [True, False]
        assert ("mean_train_score" in killing.cv_results_) is return_train_score
        assert killing.best_params_ == {"how": "fine"}
        assert killing.predict(X).shape == (30,)

    def test_that_kills_its_process_ends_the_fit_where_errors_are_to_be_raised(self) -> None:
        words = (
            r"(?s)SIGKILL.*The error occurred in fold 1 of 3, or after it, of the candidate \{'how': 'kill'\}"
        )
        with pytest.raises(WorkerDiedError, match=words):
            search(["fine", "kill"], error_score="raise").fit(X, Y)

    def test_that_kills_its_process_loses_no_fold_that_was_reported(self, tmp_path: Path) -> None:
        dying = TuneGridSearchCV(
            DiesLater(), {"log": [str(tmp_path / "log")]}, cv=3, n_jobs=1, error_score=-1.0
        )
        with pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 3"):
            dying.fit(X, Y)
        scores = [dying.cv_results_[f"split{split}_test_score"][0] for split in range(3)]
        assert scores == [0.5, -1.0, -1.0]

    def test_that_never_ends_is_left_out_when_the_time_is_up(self) -> None:
        endless = search(["fine", "sleep"], refit=True)
        budget = 1.0
        with pytest.warns(
            UserWarning, match=r"time budget.*: 1 candidate .* incomplete.*evaluates only the missing folds"
        ):
            while not hasattr(endless, "cv_results_"):  # a busy machine may need longer for the other one
                with contextlib.suppress(ConfigError):
                    endless.set_params(time_budget_s=budget).fit(X, Y)
                budget *= 4
        assert endless.cv_results_["params"] == [{"how": "fine"}]
        assert endless.best_estimator_.how == "fine"
        again = search(["fine"])
        assert again.fit(X, Y).best_score_ == 0.5


@pytest.mark.usefixtures("runtime")
class TestTheFitOnAllData:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
    def test_that_fails_leaves_the_results_and_no_estimator(self, error: type[BaseException]) -> None:
        found = search(["fine"]).fit(X, Y)
        found.set_params(estimator=FailsOnAll(error=error), param_grid={"number": [5, 6]})
        with pytest.raises(error):
            found.fit(X, Y)
        assert found.best_params_ == {"number": 5}
        assert found.cv_results_["mean_test_score"].tolist() == [0.5, 0.5]
        for name in ("best_estimator_", "refit_time_"):
            assert not hasattr(found, name), "an earlier fit's"

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
    def test_that_fails_is_all_that_a_second_fit_does(
        self, error: type[BaseException], tmp_path: Path
    ) -> None:
        once = FailsOnce(log=str(tmp_path / "log"), flag=str(tmp_path / "flag"), error=error)
        found = TuneGridSearchCV(once, {"number": [1, 2]}, cv=3, n_jobs=2)
        with pytest.raises(error):
            found.fit(X, Y)
        before = done(tmp_path / "log")
        assert found.fit(X, Y).best_estimator_.number == 1
        assert done(tmp_path / "log")[len(before) :] == before[-1:], "the fit on all data"

    def test_that_is_not_asked_for_leaves_no_earlier_estimator(self) -> None:
        found = search(["fine"]).fit(X, Y)
        found.set_params(refit=False).fit(X[:20], Y[:20])
        assert not hasattr(found, "best_estimator_")


@pytest.mark.usefixtures("runtime")
class TestAllCandidates:
    @pytest.mark.parametrize("how", ["raise", "kill"])
    def test_failing_is_an_error_and_the_search_fits_again(self, how: str) -> None:
        failing = search([how], error_score=np.nan)
        with pytest.raises(ValueError, match=r"All the 3 fits failed"):
            failing.fit(X, Y)
        failing.set_params(param_grid={"how": ["fine"]})
        assert failing.fit(X, Y).best_score_ == 0.5

    def test_that_were_not_begun_are_left_out_too_and_counted(self) -> None:
        ended = search(["fine", "sleep", "fine", "raise"], n_jobs=1, stopper=EndsAfter(1))
        with pytest.warns(UserWarning, match=r"3 candidates .* incomplete .* a second fit .* evaluates only"):
            ended.fit(X, Y)
        assert ended.cv_results_["params"] == [{"how": "fine"}]

    @pytest.mark.slow
    def test_drawn_anew_by_a_second_fit_are_not_said_to_go_on(self) -> None:
        drawn = TuneSearchCV(ScriptedEstimator(), {"how": ["sleep"]}, n_trials=1, cv=3, time_budget_s=0.3)
        with pytest.raises(ConfigError, match="a second fit samples new candidates"):
            drawn.fit(X, Y)
        drawn.set_params(random_state=0)
        with pytest.raises(
            ConfigError, match="a second fit on the same data evaluates only the missing folds"
        ):
            drawn.fit(X, Y)

    def test_cut_off_is_an_error_that_says_so(self) -> None:
        with pytest.raises(ConfigError, match=r"no candidate was evaluated on all folds .*time budget"):
            search(["sleep"], time_budget_s=0.3).fit(X, Y)


class FailsOnAll(ScriptedEstimator):
    """Raises `error` when it is fitted on all data."""

    def __init__(self, error: type[BaseException] = KeyboardInterrupt, number: int = 0) -> None:
        super().__init__(number=number)
        self.error = error

    def fit(self, X: np.ndarray, y: object) -> FailsOnAll:
        super().fit(X, y)
        if len(X) == 30:
            raise self.error
        return self


class FailsOnce(FailsOnAll):
    """Raises `error` when it is fitted on all data, unless there is the file `flag`, which it makes."""

    def __init__(
        self,
        flag: str = "",
        error: type[BaseException] = KeyboardInterrupt,
        number: int = 0,
        log: str | None = None,
    ) -> None:
        super().__init__(error, number)
        self.log = log
        self.flag = flag

    def fit(self, X: np.ndarray, y: object) -> FailsOnce:
        if len(X) == 30 and not os.path.exists(self.flag):
            Path(self.flag).touch()
            super().fit(X, y)
        else:
            ScriptedEstimator.fit(self, X, y)
        return self


class DiesLater(ScriptedEstimator):
    """Dies in its second fit, after a first that takes longer than reports wait for further folds."""

    def fit(self, X: object, y: object) -> DiesLater:
        super().fit(X, y)
        time.sleep(REPORT_EVERY_S * 1.5)
        if len(done(Path(str(self.log)))) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return self
