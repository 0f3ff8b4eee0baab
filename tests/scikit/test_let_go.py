"""A search lets go of X as soon as `fit` is over, without waiting for the collector, be it by an error."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.scikit.odd import Odd, data
from trainkit.errors import ConfigError, WorkerDiedError
from trainkit.sklearn import TuneGridSearchCV

PRELOAD = ("trainkit.sklearn.evaluation",)
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
    search = TuneGridSearchCV(Odd(), {"how": how}, cv=3, n_jobs=1, refit=False, **arguments)
    raised: type[BaseException] | None = None
    try:
        search.fit(X, y)
    except (ValueError, WorkerDiedError) as caught:
        raised = type(caught)
    del X
    assert raised is error
    assert gone() is None
