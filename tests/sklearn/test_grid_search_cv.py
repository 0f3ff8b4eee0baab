"""`TuneGridSearchCV`: how a grid may be written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, ParameterGrid
from sklearn.svm import SVC

from trainkit import tune
from trainkit.sklearn import TuneGridSearchCV

X, Y = load_iris(return_X_y=True)


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ({"C": tune.grid_search([1, 2]), "kernel": ["linear"]}, {"C": [1, 2], "kernel": ["linear"]}),
        ([{"C": tune.grid_search([1, 2])}, {"gamma": np.array([0.1])}], [{"C": [1, 2]}, {"gamma": [0.1]}]),
    ],
)
def test_a_grid_may_be_written_with_grid_search(written: Any, plain: Any) -> None:  # row 1.8
    search = TuneGridSearchCV(SVC(), written, cv=2).fit(X, Y)
    assert search.cv_results_["params"] == list(ParameterGrid(plain))


@pytest.mark.parametrize("grid", [3, [3], {"C": 3}, {"C": "linear"}, {"C": []}])
def test_what_is_no_grid_is_refused_as_by_scikit_learn(grid: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        GridSearchCV(SVC(), grid).fit(X, Y)
    with pytest.raises(type(theirs.value)) as ours:
        TuneGridSearchCV(SVC(), grid).fit(X, Y)
    assert str(ours.value).replace("TuneGrid", "Grid") == str(theirs.value)
