"""What the tests of `TuneSearchCV` search, in one session of this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scipy import stats
from sklearn.datasets import load_iris
from sklearn.svm import SVC

import trainkit
from trainkit.sklearn import TuneSearchCV

X, Y = load_iris(return_X_y=True)
LEARNING = ["bayesian", "bohb", "hyperopt", "optuna"]
C = {"C": stats.loguniform(1e-2, 1e2)}


@pytest.fixture(autouse=True, scope="module")
def session() -> Iterator[None]:
    """One for all tests of a module, as each would begin its own."""
    trainkit.init(engine="inline", num_cpus=2)
    yield
    trainkit.shutdown()


def search(space: Any = C, **given: Any) -> TuneSearchCV:
    return TuneSearchCV(SVC(), space, **{"n_trials": 3, "cv": 3, "random_state": 1, **given})


def candidates(found: Any) -> list[dict[str, Any]]:
    return list(found.cv_results_["params"])
