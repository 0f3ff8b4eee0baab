"""Boosters that are stopped early, and refitted to what was measured."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Self

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from trainkit.errors import ConfigError
from trainkit.sklearn import TuneGridSearchCV
from trainkit.sklearn.incremental_fit import IncrementalFit

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

pytestmark = pytest.mark.usefixtures("runtime")
PRELOAD = ("trainkit.sklearn.trials", "xgboost", "lightgbm")

X, Y = load_digits(n_class=3, return_X_y=True)
X, Y = X[:120] / 16, Y[:120]
RATES = [1e-6, 0.01, 0.3, 0.6]
XGBOOST = xgboost.XGBClassifier(n_estimators=12, max_depth=1, n_jobs=1, random_state=0)
LIGHTGBM = lightgbm.LGBMClassifier(
    n_estimators=12, num_leaves=2, min_child_samples=5, n_jobs=1, verbose=-1, random_state=0
)
FOLDS = 2


def trained(estimator: Any, done: int, portions: int, X: Any = X, y: Any = Y, **params: Any) -> Any:
    """The estimator after `done` of so many portions."""
    piecewise = IncrementalFit(clone(estimator), portions, last_step=True, labels=y)
    for _ in range(done):
        piecewise.advance(lambda: (X, y, params))
    return piecewise.estimator


def in_two_calls(estimator: Any, first: int, second: int, X: Any = X, y: Any = Y) -> Any:
    """A booster trained as its documentation has it: once, and again from the model of the first time."""
    begun = clone(estimator).set_params(n_estimators=first).fit(X, y)
    model = {"xgb_model" if isinstance(estimator, xgboost.XGBModel) else "init_model": begun}
    return clone(estimator).set_params(n_estimators=second).fit(X, y, **model)


# --- portions ---------------------------------------------------------------------------------------


# row 1.38
@pytest.mark.parametrize("estimator", [XGBOOST, LIGHTGBM], ids=["xgboost", "lightgbm"])
def test_portions_are_trainings_that_go_on(estimator: Any) -> None:
    random = clone(estimator).set_params(subsample=0.5, **_often(estimator))
    ours = trained(random, 2, 3)
    assert np.array_equal(ours.predict_proba(X), in_two_calls(random, 4, 4).predict_proba(X))
    assert ours.n_estimators == 8
    assert _trees(ours) == 8 * 3  # one for each class


def test_a_number_of_trees_that_is_not_given_is_the_boosters_own() -> None:
    assert _trees(trained(xgboost.XGBRegressor(max_depth=1, n_jobs=1), 1, 50)) == 2  # of a hundred


def test_weights_reach_a_booster() -> None:
    weights = np.random.default_rng(0).uniform(0.1, 2, len(Y))
    ours = trained(XGBOOST, 3, 3, sample_weight=weights)
    assert np.array_equal(
        ours.predict_proba(X), clone(XGBOOST).fit(X, Y, sample_weight=weights).predict_proba(X)
    )


def _often(estimator: Any) -> dict[str, int]:
    return {"subsample_freq": 1} if isinstance(estimator, lightgbm.LGBMModel) else {}


def _trees(estimator: Any) -> int:
    if isinstance(estimator, lightgbm.LGBMModel):
        return int(estimator.booster_.num_trees())
    return len(estimator.get_booster().get_dump())


# --- searches ---------------------------------------------------------------------------------------


# row 1.38: boosters stopped early refit to the same score
@pytest.mark.parametrize(
    ("estimator", "in_pipeline"), [(XGBOOST, False), (LIGHTGBM, True)], ids=["xgboost", "lightgbm"]
)
def test_boosters_stopped_early_refit_to_the_same_score(estimator: Any, in_pipeline: bool) -> None:
    whole = make_pipeline(StandardScaler(), estimator) if in_pipeline else estimator
    prefix = f"{whole.steps[-1][0]}__" if in_pipeline else ""
    search = TuneGridSearchCV(
        whole, {f"{prefix}learning_rate": RATES}, early_stopping=True, max_iters=6, cv=FOLDS
    ).fit(X, Y)
    iterations = search.cv_results_["training_iteration"]
    for candidate, parameters in enumerate(search.cv_results_["params"]):
        for split, (train, test) in enumerate(StratifiedKFold(FOLDS).split(X, Y)):
            trees = int(iterations[candidate]) * 2
            at_once = clone(whole).set_params(**parameters, **{f"{prefix}n_estimators": trees})
            score = at_once.fit(X[train], Y[train]).score(X[test], Y[test])
            assert search.cv_results_[f"split{split}_test_score"][candidate] == score
    trees = int(iterations[search.best_index_]) * 2
    best = clone(whole).set_params(**search.best_params_, **{f"{prefix}n_estimators": trees}).fit(X, Y)
    assert np.array_equal(search.predict_proba(X), best.predict_proba(X))
    assert search.best_estimator_.get_params()[f"{prefix}n_estimators"] == trees


# row 1.38
@pytest.mark.parametrize("estimator", [XGBOOST, LIGHTGBM], ids=["xgboost", "lightgbm"])
def test_boosters_go_on_after_a_pause(estimator: Any) -> None:
    search = TuneGridSearchCV(
        estimator, {"learning_rate": RATES}, early_stopping="HyperBandScheduler", max_iters=4, cv=FOLDS
    ).fit(X, Y)
    iterations = search.cv_results_["training_iteration"]
    assert max(iterations) == 4
    for candidate, parameters in enumerate(search.cv_results_["params"]):
        train, test = next(StratifiedKFold(FOLDS).split(X, Y))
        trees = int(iterations[candidate]) * 3
        at_once = clone(estimator).set_params(**parameters, n_estimators=trees).fit(X[train], Y[train])
        assert search.cv_results_["split0_test_score"][candidate] == at_once.score(X[test], Y[test])


# row 1.38
def test_the_number_of_trees_cannot_be_searched() -> None:
    search = TuneGridSearchCV(LIGHTGBM, {"n_estimators": [5, 10]}, early_stopping=True, max_iters=5)
    with pytest.raises(ConfigError, match="n_estimators cannot be searched with early_stopping"):
        search.fit(X, Y)
    search = TuneGridSearchCV(LIGHTGBM, {"num_iterations": [5, 10]}, early_stopping=True, max_iters=5)
    with pytest.raises(ConfigError, match="num_iterations cannot be searched with early_stopping"):
        search.fit(X, Y)


# --- CatBoost ---------------------------------------------------------------------------------------


class CatBoost(BaseEstimator):  # type: ignore[misc]
    """Boosts stumps behind what CatBoost's documentation says of its `CatBoost`, and no more of it.

    `fit(X, y, init_model=)` goes on from another model, which stays as it is; `iterations` has other names;
    the parameters of a model that is fitted can't change.
    """

    def __init__(self, iterations: Any = None, learning_rate: Any = None, n_estimators: Any = None) -> None:
        self.iterations = iterations
        self.learning_rate = learning_rate
        self.n_estimators = n_estimators

    def set_params(self, **params: Any) -> Self:
        if hasattr(self, "trees_"):
            raise RuntimeError("You can't change params of fitted model.")
        return super().set_params(**params)  # type: ignore[no-any-return]

    def fit(self, X: Any, y: Any, init_model: Any = None) -> Self:
        self.trees_ = [] if init_model is None else list(init_model.trees_)
        self.classes_ = np.unique(y)
        for _ in range(self.iterations or self.n_estimators or 1000):
            rest = y - self._sum(X)
            self.trees_.append(DecisionTreeRegressor(max_depth=1, random_state=0).fit(X, rest))
        return self

    @property
    def tree_count_(self) -> int:
        return len(self.trees_)

    def _sum(self, X: Any) -> Any:
        rate = self.learning_rate or 0.03
        return sum((rate * tree.predict(X) for tree in self.trees_), np.zeros(len(X)))


class CatBoostClassifier(ClassifierMixin, CatBoost):
    """The same, rounded to the nearest class."""

    def predict(self, X: Any) -> Any:
        return np.clip(np.round(self._sum(X)), self.classes_[0], self.classes_[-1])


@pytest.fixture
def catboost(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that these classes say they are of."""
    monkeypatch.setattr(CatBoost, "__module__", "catboost.core")
    module = ModuleType("catboost.core")
    vars(module).update(CatBoost=CatBoost)
    monkeypatch.setitem(sys.modules, "catboost.core", module)
    return module


# row 1.38
@pytest.mark.parametrize(("given", "in_pipeline"), [({"iterations": 9}, False), ({"n_estimators": 9}, True)])
@pytest.mark.usefixtures("catboost")
def test_catboost_goes_on_from_the_model_of_before(given: dict[str, int], in_pipeline: bool) -> None:
    model = CatBoostClassifier(**given, learning_rate=0.3)
    ours = trained(make_pipeline(StandardScaler(), model) if in_pipeline else model, 2, 3)
    at_once = CatBoostClassifier(iterations=6, learning_rate=0.3).fit(X, Y)
    assert (ours[-1] if in_pipeline else ours).tree_count_ == 6
    assert np.array_equal(ours.predict(X), at_once.predict(X))


# row 1.38
@pytest.mark.usefixtures("catboost")
def test_catboost_takes_other_parameters_on_the_way() -> None:
    piecewise = IncrementalFit(CatBoostClassifier(4, 0.3), 2, last_step=True, labels=Y)
    piecewise.advance(lambda: (X, Y, {}))
    piecewise.change({"learning_rate": 0.1})
    piecewise.advance(lambda: (X, Y, {}))
    assert (piecewise.estimator.tree_count_, piecewise.estimator.learning_rate) == (4, 0.1)


# row 1.38
def test_catboost_itself_stopped_early_refits_to_the_same_score() -> None:
    real = pytest.importorskip("catboost")
    model = real.CatBoostClassifier(
        iterations=12, depth=2, thread_count=1, random_seed=0, verbose=False, allow_writing_files=False
    )
    search = TuneGridSearchCV(
        model, {"learning_rate": RATES}, early_stopping=True, max_iters=6, cv=FOLDS, error_score="raise"
    ).fit(X, Y)
    trees = int(search.cv_results_["training_iteration"][search.best_index_]) * 2
    assert search.best_estimator_.tree_count_ == trees
    train, test = next(StratifiedKFold(FOLDS).split(X, Y))
    best = clone(model).set_params(**search.best_params_)
    again = trained(best, trees // 2, 6, X[train], Y[train])
    assert search.cv_results_["split0_test_score"][search.best_index_] == again.score(X[test], Y[test])
