"""Searches on a Ray cluster of two nodes, both on this machine: the same code, the same results."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from tests.sklearn.scripted_estimator import ScriptedEstimator, data
from trainkit.sklearn import TuneGridSearchCV

pytestmark = pytest.mark.usefixtures("ray_cluster")
X, Y = load_iris(return_X_y=True)


def test_a_grid_has_scikit_learns_scores() -> None:
    grid = {"C": [0.1, 1, 10]}
    ours = TuneGridSearchCV(SVC(), grid, cv=3).fit(X, Y)
    theirs = GridSearchCV(SVC(), grid, cv=3).fit(X, Y)
    assert np.array_equal(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])
    assert ours.best_params_ == theirs.best_params_


def test_a_candidate_that_kills_its_process_has_failed() -> None:
    with pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 4"):
        search = TuneGridSearchCV(
            ScriptedEstimator(), {"how": ["fine", "kill"]}, cv=2, error_score=np.nan
        ).fit(*data())
    assert search.best_params_ == {"how": "fine"}
