"""What holds around a search reaches its folds: configuration, warnings, metadata and callbacks."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn import config_context
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from tests.conftest import eventually
from tests.sklearn.recorder import Recorder
from trainkit.errors import ConfigError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV

pytestmark = pytest.mark.usefixtures("runtime")

X, Y = load_iris(return_X_y=True)
BOTH = {"C": [0.1, 10.0]}


# --- what holds around fit ------------------------------------------------------------------------


def test_scikit_learns_configuration_reaches_the_folds() -> None:
    def frames(estimator: Any, X: Any) -> bool:
        from sklearn import get_config

        return hasattr(StandardScaler().fit_transform(X), "iloc") and get_config()["working_memory"] == 77

    search = TuneGridSearchCV(Recorder(frames), {}, cv=2)
    assert search.fit(X, Y).best_score_ == 0.0
    with config_context(transform_output="pandas", working_memory=77):
        assert search.fit(X, Y).best_score_ == 1.0


def test_filters_of_warnings_reach_the_folds() -> None:
    def warned(estimator: Any, X: Any) -> float:
        warnings.warn("of no use", DeprecationWarning, stacklevel=1)
        return 1.0

    search = TuneGridSearchCV(Recorder(warned), {}, cv=2, error_score="raise")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="OF NO", category=DeprecationWarning)
        assert search.fit(X, Y).best_score_ == 1.0
    with warnings.catch_warnings(), pytest.raises(DeprecationWarning, match="of no use"):
        warnings.simplefilter("error", DeprecationWarning)
        search.set_params(verbose=0).fit(X[::-1], Y[::-1])


def test_what_is_printed_of_each_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not pytest's capture: what another thread writes while that is read may be lost.
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    TuneGridSearchCV(SVC(), BOTH, cv=2, verbose=10).fit(X, Y)
    assert "Fitting 2 folds for each of 2 candidates, totalling 4 fits" in out.getvalue()
    for line in (
        "[CV 1/2; 1/2] START C=0.1",
        "[CV 2/2; 2/2] END",
        "score=",
    ):  # what workers print comes later
        assert eventually(lambda line=line: line in out.getvalue()), out.getvalue()


# --- metadata -------------------------------------------------------------------------------------

GROUPS = np.arange(150) % 5
WEIGHTS = np.random.default_rng(0).uniform(size=150)


def test_nothing_of_its_own_is_asked_for_by_a_search_around_it() -> None:
    assert not hasattr(TuneGridSearchCV, "set_fit_request")
    assert not hasattr(TuneSearchCV, "set_fit_request")


@pytest.fixture
def routing() -> Iterator[None]:
    with config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_metadata_goes_where_it_is_requested() -> None:
    def searched(kind: Any, **fit: Any) -> Any:
        estimator = LogisticRegression(max_iter=300).set_fit_request(sample_weight=True)
        scorer = get_scorer("accuracy").set_score_request(sample_weight=True)
        other = get_scorer("accuracy").set_score_request(sample_weight=False)
        search = kind(estimator, BOTH, scoring={"a": scorer, "b": other}, refit="a", cv=GroupKFold(3))
        return search.fit(X, Y, **fit)

    given = {"sample_weight": WEIGHTS, "groups": GROUPS}
    ours, theirs = searched(TuneGridSearchCV, **given), searched(GridSearchCV, **given)
    for key in ("split0_test_a", "mean_test_a", "mean_test_b"):
        np.testing.assert_array_equal(ours.cv_results_[key], theirs.cv_results_[key])
    assert ours.score(X, Y, sample_weight=WEIGHTS) == theirs.score(X, Y, sample_weight=WEIGHTS)
    with pytest.raises(TypeError, match="unexpected argument"):
        searched(TuneGridSearchCV, wrong=WEIGHTS)


# --- callbacks ------------------------------------------------------------------------------------

recording = pytest.importorskip(
    "sklearn.callback.tests._utils", reason="scikit-learn before 1.9 has no callbacks"
)


@pytest.mark.parametrize("refit", [True, False])
def test_callbacks_are_told_of_every_task(refit: bool) -> None:
    def told(kind: Any) -> list[tuple[str, str, int]]:
        callbacks = [recording.RecordingCallback(), recording.RecordingAutoPropagatedCallback()]
        search = kind(recording.MaxIterEstimator(), {"max_iter": [1, 2]}, cv=2, scoring="r2", refit=refit)
        search.set_callbacks(*callbacks).fit(X[:, :2], Y, sample_weight=WEIGHTS)
        return sorted(
            (record["name"], record["context"].task_name, record["context"].task_id)
            for callback in callbacks
            for record in callback.record
        )

    assert told(TuneGridSearchCV) == told(GridSearchCV)


def test_callbacks_that_early_stopping_would_leave_out_are_refused() -> None:
    search = TuneGridSearchCV(SGDClassifier(), {"alpha": [0.1]}, early_stopping=True, max_iters=3)
    with pytest.raises(ConfigError, match="callbacks cannot observe"):
        search.set_callbacks(recording.RecordingCallback()).fit(X, Y)
