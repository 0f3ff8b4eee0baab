"""A search lets go of X as soon as `fit` is over, without waiting for the collector, be it by an error."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.sklearn.scripted_estimator import ScriptedEstimator, data
from trainkit.errors import ConfigError, WorkerDiedError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV
from trainkit.tune.search import Searcher


class Faulty(Searcher):
    """Raises where it is asked for a second candidate, or where it is told of one that has ended."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.asked = where, 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.asked += 1
        if self.where == "suggest" and self.asked == 2:
            raise RuntimeError("no luck")
        return {"how": "fine"}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if self.where == "on_trial_complete":
            raise RuntimeError("no luck")


CASES: dict[str, tuple[list[str], dict[str, Any], type[Exception] | None]] = {
    "no error": (["fine", "fine"], {}, None),
    "an estimator's error": (["raise", "fine"], {"error_score": "raise"}, ValueError),
    "a process that is killed": (["kill", "fine"], {"error_score": "raise"}, WorkerDiedError),
    "errors of all": (["raise"], {"error_score": np.nan}, ValueError),
    "none complete": (["sleep"], {"time_budget_s": 0.1}, ConfigError),
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("runtime", "no_collector")
@pytest.mark.parametrize("case", CASES)
def test_x_goes(case: str) -> None:
    how, arguments, error = CASES[case]
    X, y = data()
    gone = weakref.ref(X)
    search = TuneGridSearchCV(ScriptedEstimator(), {"how": how}, cv=3, n_jobs=1, refit=False, **arguments)
    raised: type[BaseException] | None = None
    try:
        search.fit(X, y)
    except (ValueError, WorkerDiedError) as caught:
        raised = type(caught)
    del X
    assert raised is error
    assert gone() is None


@pytest.mark.slow
@pytest.mark.usefixtures("runtime", "no_collector")
@pytest.mark.parametrize("where", ["suggest", "on_trial_complete"])
def test_x_goes_where_a_searcher_of_the_users_own_raises(where: str) -> None:
    X, y = data()
    gone = weakref.ref(X)
    search = TuneSearchCV(
        ScriptedEstimator(), {}, search_optimization=Faulty(where), n_trials=2, cv=3, n_jobs=1
    )
    said = ""
    try:
        search.fit(X, y)
    except ConfigError as caught:
        said = str(caught)
    del X
    assert f"Faulty.{where}() raised RuntimeError" in said
    assert gone() is None
