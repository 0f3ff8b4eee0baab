"""What early stopping refuses before anything runs, and what it warns of."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from tests.sklearn.by_hand import SGD, X, Y
from trainkit.errors import ConfigError
from trainkit.sklearn import TuneGridSearchCV
from trainkit.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.usefixtures("runtime")


# --- what is refused --------------------------------------------------------------------------------


def refused(estimator: Any, grid: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TuneGridSearchCV(estimator, grid, **{"max_iters": 5, "cv": 2, **settings}).fit(X, Y)


SCALED, SCALED_SGD = (make_pipeline(StandardScaler(), each) for each in (SVC(), SGD))
FOREST, SMALL = RandomForestClassifier(), RandomForestClassifier(n_estimators=3)


# row 1.38
@pytest.mark.parametrize(
    ("estimator", "grid", "settings", "words"),
    [
        (SVC(), {"C": [1]}, {}, "SVC can't be trained a portion at a time"),
        (SCALED, {"svc__C": [1]}, {}, "SVC can't be trained a portion at a time"),
        (SCALED_SGD, {}, {"pipeline_auto_early_stop": False}, "pipeline_auto_early_stop=True"),
        (FOREST, {"n_estimators": [10]}, {}, "n_estimators cannot be searched.*remove n_estimators from the"),
        (SMALL, [{"max_depth": [1]}], {}, "n_estimators=3 cannot be divided into max_iters=5"),
    ],
)
def test_an_estimator_that_cannot_be_stopped_is_refused(
    estimator: Any, grid: Any, settings: dict[str, Any], words: str
) -> None:
    refused(estimator, grid, {"early_stopping": True, **settings}, words)


# row 1.38
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nobody", "early_stopping='nobody' is not one of asha"),
        ("Ahsa", "Did you mean 'asha'"),
        (3, "early_stopping must be True"),
        (
            ASHAScheduler(metric="loss", mode="max"),
            r"ASHAScheduler\(metric='loss'\) contradicts the search, whose metric is 'average_test_score'",
        ),
        (
            ASHAScheduler(mode="min"),
            r"ASHAScheduler\(mode='min'\) contradicts the search, whose mode is 'max'",
        ),
        (
            ASHAScheduler(time_attr="epoch"),
            "needs a count that candidates don't report: use time_attr='training_iteration'",
        ),
        (
            ASHAScheduler(grace_period=20),
            "makes no decision before training_iteration=20, but max_iters=5",
        ),
        ("pareto", "ParetoScheduler compares several metrics"),
        (
            "PopulationBasedTraining",
            r"PopulationBasedTraining\(time_attr='training_iteration', perturbation_interval=1, "
            r"hyperparam_mutations=\{'alpha': .*has nothing to explore",
        ),
    ],
)
def test_what_cannot_stop_candidates_is_refused(how: Any, words: str) -> None:
    refused(SGD, {"alpha": [1]}, {"early_stopping": how}, words)


# row 1.38
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_iters": 0}, "max_iters must be a positive integer, not 0"),
        (
            {"scoring": ["accuracy", "f1_macro"], "refit": False},
            "refit=False names none of the scorers 'accuracy', 'f1_macro', but early_stopping needs one",
        ),
    ],
)
def test_other_arguments_are_refused_with_it(settings: dict[str, Any], words: str) -> None:
    refused(SGD, {"alpha": [1]}, {"early_stopping": True, **settings}, words)


# row 1.38
def test_one_report_is_no_early_stopping() -> None:
    search = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, early_stopping=True, cv=2)
    with pytest.warns(UserWarning, match="max_iters=1 stops no candidate.*set max_iters to") as told:
        search.fit(X, Y)
    assert {warning.filename for warning in told} == {__file__}
    assert list(search.cv_results_["training_iteration"]) == [1]


# row 1.38
def test_many_reports_without_early_stopping_are_none() -> None:
    search = TuneGridSearchCV(SGD, {"alpha": [1e-3]}, max_iters=5, cv=2)
    with pytest.warns(UserWarning, match="max_iters=5 has no effect without early_stopping"):
        search.fit(X, Y)
    assert "training_iteration" not in search.cv_results_
