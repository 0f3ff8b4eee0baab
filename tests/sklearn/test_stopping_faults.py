"""Candidates that fail while they are trained by portions, and searches that end before they do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDClassifier

from tests.sklearn.by_hand import X, Y
from tests.sklearn.scripted_estimator import EndsAfter
from trainkit.sklearn import TuneGridSearchCV

pytestmark = pytest.mark.usefixtures("runtime")


# --- failures ---------------------------------------------------------------------------------------


class Passes(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns nothing, one call after another."""

    def __init__(self, bad: bool = False) -> None:
        self.bad = bad

    def fit(self, X: Any, y: Any) -> Self:
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        self.calls_ = getattr(self, "calls_", 0) + 1
        self.classes_ = np.arange(10)
        if self.bad and self.calls_ == 3:
            self.fail()
        return self

    def fail(self) -> None:
        raise FloatingPointError("overflow in the third portion")

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X), dtype=int)


class CountedScorer:
    """Notes who pickles it."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __getstate__(self) -> dict[str, Any]:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return vars(self)

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        return 0.5


def stopping(estimator: Any, bad: list[bool], how: Any = "fifo", **arguments: Any) -> TuneGridSearchCV:
    arguments = {"early_stopping": how, "max_iters": 5, "cv": 2, **arguments}
    return TuneGridSearchCV(estimator, {"bad": bad}, **arguments)


def test_a_search_that_cannot_be_gone_on_with_is_not_read_for_it(tmp_path: Path) -> None:
    counts = []
    for stopper in (None, EndsAfter(1)):
        log = tmp_path / f"log_{len(counts)}"
        search = stopping(Passes(), [False], True, max_iters=3, scoring=CountedScorer(log), stopper=stopper)
        search.set_params(refit=False).fit(X, Y)
        counts.append(log.read_text().splitlines().count(str(os.getpid())))
    assert counts[0] == counts[1] > 0


class Dies(Passes):
    """Ends its process."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Lingers(Passes):
    """Takes its time for each portion, or for ever."""

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        time.sleep(600 if self.bad else 0)
        return super().partial_fit(X, y, classes)


# row 1.38
def test_a_candidate_that_fails_on_the_way_gets_the_error_score() -> None:
    search = stopping(Passes(), [True, False], error_score=-1.0)
    with pytest.warns(FitFailedWarning, match="overflow in the third portion"):
        search.fit(X, Y)
    assert list(search.cv_results_["mean_test_score"]) == [-1.0, pytest.approx(0.1, abs=0.05)]
    assert list(search.cv_results_["training_iteration"]) == [3, 5]
    assert search.best_params_ == {"bad": False}


def test_the_error_itself_leaves_fit_where_it_is_to() -> None:
    search = stopping(Passes(), [True, False], error_score="raise")
    with pytest.raises(FloatingPointError, match="third portion"):
        search.fit(X, Y)


def test_a_candidate_whose_process_dies_has_failed_with_all_that_it_had_reached() -> None:
    search = stopping(Dies(), [True, False], error_score=2.0)
    with pytest.warns(FitFailedWarning, match="SIGKILL"):
        search.fit(X, Y)
    assert search.cv_results_["mean_test_score"][0] == 2.0
    assert list(search.cv_results_["training_iteration"]) == [2, 5]


def test_when_the_search_ends_what_was_reported_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "0.5")
    search = stopping(Lingers(), [False, True], max_iters=10_000, stopper=EndsAfter(3))
    with pytest.warns(
        UserWarning, match=r"1 candidate was incomplete .* a second fit starts from the beginning"
    ):
        search.fit(X, Y)
    assert search.cv_results_["params"] == [{"bad": False}]
    done = search.cv_results_["training_iteration"][0]
    assert 3 <= done < 10_000
    assert search.best_estimator_.calls_ == done


def test_a_parameter_that_is_out_of_range_fails_its_candidate_alone() -> None:
    model = SGDClassifier(penalty="elasticnet", random_state=0)
    settings: dict[str, Any] = {"early_stopping": True, "max_iters": 2, "cv": 2, "error_score": np.nan}
    search = TuneGridSearchCV(model, {"l1_ratio": [0.9, 1.2]}, **settings)
    with pytest.warns(FitFailedWarning, match="l1_ratio"):
        search.fit(X, Y)
    assert np.isnan(search.cv_results_["mean_test_score"][1])
    assert search.best_index_ == 0
