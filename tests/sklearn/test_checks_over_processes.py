"""Those of scikit-learn's checks that are about what a worker is sent, with workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils import estimator_checks as checks

from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV

pytestmark = pytest.mark.usefixtures("runtime")

SEARCHES = [
    TuneGridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, cv=2, n_jobs=1),
    TuneSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, n_trials=2, cv=2, n_jobs=1, random_state=0),
]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
@pytest.mark.parametrize(
    "check",
    [
        checks.check_readonly_memmap_input,
        checks.check_f_contiguous_array_estimator,
        checks.check_fit_idempotent,
        checks.check_dict_unchanged,
        checks.check_estimators_pickle,
    ],
    ids=lambda check: check.__name__,
)
def test_checks_hold_over_processes(search: Any, check: Callable[[str, Any], None]) -> None:
    check(type(search).__name__, clone(search))
