"""The rule `not_worth_it`, earlier experiments and priors in a scikit-learn search."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.svm import SVC

from tests.sklearn.searches import X, Y, search, session  # noqa: F401 - the fixture
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.sklearn import TuneGridSearchCV, TuneSearchCV

SPACE = {"C": tune.loguniform(1e-3, 1e3)}


def test_a_search_ends_when_more_candidates_are_not_worth_it() -> None:
    # The scores of this model are smooth, so the search ends soon, in whichever order the candidates end.
    options: Any = {"search_optimization": "auto", "stopper": "not_worth_it", "random_state": 1}
    space = {"alpha": tune.loguniform(1e-4, 1e4)}
    ended = TuneSearchCV(Ridge(), space, n_trials=60, cv=3, **options).fit(*load_diabetes(return_X_y=True))
    assert 22 <= len(ended.cv_results_["params"]) < 60


def test_candidates_that_are_drawn_at_the_start_cannot_be_judged() -> None:
    with pytest.raises(ConfigError, match=r"not_worth_it.*search_optimization"):
        search(SPACE, stopper="not_worth_it").fit(X, Y)


KNOWN = {"priors": {"C": 1.0}, "learn_from": [{"C": 0.1, "average_test_score": 0.5}]}


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("searcher", ["random", "optuna"])
def test_a_searcher_that_uses_no_knowledge_names_the_searcher_that_does(searcher: str, known: str) -> None:
    words = "support.*: use .*search_optimization='auto'"
    with pytest.raises(ConfigError, match=words):
        search(SPACE, search_optimization=searcher).fit(X, Y, tune_params={known: KNOWN[known]})


def test_candidates_of_a_grid_use_no_knowledge() -> None:
    with pytest.raises(ConfigError, match=r"use TuneSearchCV\(search_optimization='auto'\)"):
        TuneGridSearchCV(SVC(), {"C": [1, 2]}).fit(X, Y, tune_params={"priors": {"C": 1}})
