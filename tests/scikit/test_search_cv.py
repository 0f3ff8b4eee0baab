"""`TuneSearchCV` as a user meets it."""

from __future__ import annotations

import numpy as np
from scipy.stats import loguniform
from sklearn.datasets import load_iris
from sklearn.model_selection import RandomizedSearchCV
from sklearn.svm import SVC

from trainkit.sklearn import TuneSearchCV

X, Y = load_iris(return_X_y=True)


def test_random_candidates_are_those_of_scikit_learn() -> None:
    space = {"C": loguniform(1e-2, 1e2), "kernel": ["linear", "rbf"]}
    theirs = RandomizedSearchCV(SVC(), space, n_iter=4, random_state=3, cv=3).fit(X, Y)
    ours = TuneSearchCV(SVC(), space, n_trials=4, random_state=3, cv=3).fit(X, Y)
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    assert np.array_equal(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])
    assert ours.best_params_ == theirs.best_params_
