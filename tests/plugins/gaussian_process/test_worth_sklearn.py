"""The rule `not_worth_it` as the stopper of a scikit-learn search."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sklearn.searches import X, Y, search, session  # noqa: F401 - the fixture
from trainkit import tune
from trainkit.errors import ConfigError

SPACE = {"C": tune.loguniform(1e-3, 1e3)}


def test_a_search_ends_when_more_candidates_are_not_worth_it() -> None:
    ended: Any = search(SPACE, n_trials=60, search_optimization="auto", stopper="not_worth_it").fit(X, Y)
    assert 22 <= len(ended.cv_results_["params"]) < 60


def test_candidates_that_are_drawn_at_the_start_cannot_be_judged() -> None:
    with pytest.raises(ConfigError, match=r"not_worth_it.*search_optimization"):
        search(SPACE, stopper="not_worth_it").fit(X, Y)
