"""What the tests of `TuneSearchCV` search, in one session of this process."""

from __future__ import annotations

from typing import Any

from scipy import stats
from sklearn.datasets import load_iris
from sklearn.svm import SVC

from tests.conftest import session_fixture
from trainkit.sklearn import TuneSearchCV

X, Y = load_iris(return_X_y=True)
LEARNING = ["bayesian", "bohb", "hyperopt", "optuna"]
C = {"C": stats.loguniform(1e-2, 1e2)}


session = session_fixture(engine="inline", num_cpus=2)


def search(space: Any = C, **given: Any) -> TuneSearchCV:
    return TuneSearchCV(SVC(), space, **{"n_trials": 3, "cv": 3, "random_state": 1, **given})


def candidates(found: Any) -> list[dict[str, Any]]:
    return list(found.cv_results_["params"])
