"""Large arrays of estimators are the worker's own, though they come through shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomTreesEmbedding
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from tests.sklearn.scripted_estimator import Table
from trainkit.sklearn import TuneGridSearchCV

pytestmark = pytest.mark.usefixtures("runtime")

X, Y = (part[:200] for part in load_digits(return_X_y=True))
EMBEDDING = RandomTreesEmbedding(n_estimators=100, random_state=0).fit(X)


def model(frozen: Any) -> Pipeline:
    return Pipeline([("before", frozen), ("sgd", SGDClassifier(random_state=0, max_iter=3, tol=None))])


def with_module(fitted: Any) -> Any:
    """Give it what can be pickled here, but not copied by the module copy."""
    fitted.xp_ = np
    return fitted


@pytest.mark.parametrize(
    "fitted", [Table().fit(X), EMBEDDING, with_module(Table().fit(X))], ids=["table", "embedding", "module"]
)
@pytest.mark.parametrize(
    ("candidate", "stopping"),
    [(True, {}), (False, {"early_stopping": True, "max_iters": 2})],
    ids=["a candidate's, whole", "the estimator's, stopping"],
)
def test_a_fitted_step_that_writes_to_its_arrays_works_as_in_scikit_learn(
    fitted: Any, candidate: bool, stopping: dict[str, Any]
) -> None:
    frozen = FrozenEstimator(fitted)
    grid = {"before": [frozen, "passthrough"]} if candidate else {"sgd__alpha": [1e-4, 1e-2]}
    search = TuneGridSearchCV(model(frozen), grid, cv=2, n_jobs=2, error_score="raise", **stopping).fit(X, Y)
    if not stopping:
        theirs = GridSearchCV(model(frozen), grid, cv=2, error_score="raise").fit(X, Y)
        assert np.array_equal(search.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])
    assert len(search.cv_results_["params"]) == 2
