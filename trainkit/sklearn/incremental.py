"""Rules of incremental training, in which an estimator is trained in portions.

The methods are tried in tune-sklearn's order:

    XGBoost, LightGBM, CatBoost     each portion adds trees to the model of earlier portions
    partial_fit                     each portion is one call: a pass over the data
    warm_start with max_iter        each portion is a fit of some iterations, which continues the last fit
    warm_start with n_estimators    each portion adds members to the ensemble

Except for `partial_fit`, a parameter of the estimator gives the size of a complete training. `max_iters` is
the number of portions: with n_estimators=100 and max_iters=10, reports come after 10, 20, ... 100 trees.

With resource="n_samples" any estimator can be trained in portions: each portion is a new fit on more samples.

Source: tune-sklearn 0.5.0, README and docstring of `TuneSearchCV` (`max_iters`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from trainkit.errors import ConfigError

COUNTED_BY = "training_iteration"
"""Name of the metric with the number of portions trained so far."""


class MethodKind(StrEnum):
    """Kind of method that trains a portion."""

    XGBOOST = "xgboost"
    LIGHTGBM = "lightgbm"
    CATBOOST = "catboost"
    PARTIAL_FIT = "partial_fit"
    WARM_START_ITER = "warm_start with max_iter"
    WARM_START_ENSEMBLE = "warm_start with n_estimators"


@dataclass(frozen=True)
class IncrementalMethod:
    """Method by which an estimator is trained in portions.

    Attributes:
        kind: see `MethodKind`.
        resource: parameter whose value is divided into portions; None if each portion is one call of
            `partial_fit`.
        synonyms: further names of this parameter.
        default: value of the parameter `resource` if an estimator's value is None or missing.
        running_total: True if the parameter's value counts from the start of training, not from the last call
            of `fit`.
    """

    kind: MethodKind
    resource: str | None = None
    synonyms: frozenset[str] = frozenset()
    default: int | None = None
    running_total: bool = True

    def maximum(self, parameters: Mapping[str, Any], portions: int) -> int:
        """Return the size of a complete training, such as the number of trees, for these parameters.

        Raises:
            ConfigError: the size is not a whole number, or is smaller than the number of portions.
        """
        if self.resource is None:
            return portions
        value = parameters.get(self.resource)
        value = self.default if value is None else value
        if not isinstance(value, Integral) or value < portions:
            raise ConfigError(
                f"{self.resource}={value!r} cannot be divided into max_iters={portions} portions: set "
                f"{self.resource} to at least {portions}, or reduce max_iters"
            )
        return int(value)


def end_of(portion: int, maximum: int, portions: int) -> int:
    """Return the size of the training up to the end of a portion. Portions differ in size by at most 1.

    Args:
        portion: number of the portion, from 1; 0 for the start.
        maximum: size of a complete training.
        portions: number of portions.
    """
    return portion * maximum // portions


def to_report(reports: Sequence[int], done: int) -> int:
    """Return the number of portions to train until the next report; 1 after the last report in `reports`.

    Args:
        reports: numbers of the portions that end with a report, ascending.
        done: number of finished portions.
    """
    following = bisect_right(reports, done)
    return reports[following] - done if following < len(reports) else 1


def portions_at(reports: Sequence[int], count: int) -> int:
    """Return the number of portions that a candidate has trained at its report number `count`.

    Args:
        reports: numbers of the portions that end with a report, ascending. Each portion after the last number
            ends with a report too.
        count: number of the report, from 1.
    """
    return reports[count - 1] if count <= len(reports) else reports[-1] + count - len(reports)


def growing_order(labels: np.ndarray | None, count: int, random: np.random.RandomState) -> np.ndarray:
    """Return an order of samples in which the first n samples, for every n, represent all samples.

    Args:
        labels: class labels, of shape (count,). The first n samples have about the same proportions of
            classes as all samples, and contain all classes if n is at least the number of classes. None: no
            classes.
        count: number of samples.
        random: random generator that draws the order.

    Returns:
        The indices of the samples in this order, of shape (count,).
    """
    order: np.ndarray = random.permutation(count)
    if labels is None:
        return order
    _, classes, sizes = np.unique(labels[order], return_inverse=True, return_counts=True)
    by_class = np.argsort(classes, kind="stable")
    ranks = np.empty(count)
    ranks[by_class] = np.concatenate([np.arange(size) / size for size in sizes])
    return order[np.argsort(ranks, kind="stable")]


_LIGHTGBM_TREES = frozenset(
    "num_iterations num_iteration n_iter num_tree num_trees num_round num_rounds nrounds "
    "num_boost_round max_iter".split()
)
"""Source: LightGBM documentation, Parameters, aliases of num_iterations."""
_CATBOOST_TREES = ("iterations", "n_estimators", "num_trees", "num_boost_round")
"""Source: CatBoost documentation, Training parameters, iterations and its aliases."""
_STOPS_ITSELF = ("early_stopping_rounds", "early_stopping_round", "od_wait", "od_pval")
DECISIVE = frozenset({"solver", "early_stopping", *_STOPS_ITSELF})
"""Parameters that decide, in addition to the resource, if an estimator can be trained in portions."""


def incremental_method(estimator: Any) -> IncrementalMethod:
    """Return the method that trains this estimator, with its parameters, in portions.

    Raises:
        ConfigError: the estimator can't be trained in portions, or a parameter contradicts the method.
    """
    parameters = estimator.get_params(deep=False)
    name = type(estimator).__name__
    booster = _booster_of(estimator, parameters)
    if booster is not None:
        _refuse_own_stop(name, parameters, _STOPS_ITSELF)
        return booster
    if callable(getattr(estimator, "partial_fit", None)):
        if descends(estimator, "sklearn", "BaseSGD", "BaseMultilayerPerceptron"):
            _refuse_own_stop(name, parameters, ("early_stopping",))
        return IncrementalMethod(MethodKind.PARTIAL_FIT)
    if "warm_start" in parameters:
        if descends(estimator, "sklearn", "BaseHistGradientBoosting"):
            return IncrementalMethod(MethodKind.WARM_START_ITER, "max_iter")
        if "max_iter" in parameters and not descends(
            estimator, "sklearn", "BaseEnsemble", "BaseDecisionTree"
        ):
            _refuse_cold_start(name, estimator, parameters)
            return IncrementalMethod(MethodKind.WARM_START_ITER, "max_iter", running_total=False)
        if "n_estimators" in parameters:
            return IncrementalMethod(MethodKind.WARM_START_ENSEMBLE, "n_estimators")
    raise ConfigError(
        f"early_stopping: {name} can't be trained a portion at a time, because it has no partial_fit "
        "and no warm_start with max_iter or n_estimators, and is not a model of XGBoost, LightGBM or "
        "CatBoost: set resource='n_samples', so that each portion is a fit on more samples, or "
        "early_stopping=None, or use an estimator that trains in portions, such as SGDClassifier"
    )


def trained_step(estimator: Any, *, last_step: bool) -> Any:
    """Return the estimator to train in portions: `estimator` itself, or the last step of a pipeline.

    Args:
        estimator: an estimator or a pipeline.
        last_step: train only the last step of a pipeline.

    Raises:
        ConfigError: the pipeline has no estimator as its last step.
    """
    if not isinstance(estimator, Pipeline):
        return estimator
    if not last_step:
        if hasattr(estimator, "partial_fit") or "warm_start" in estimator.get_params(deep=False):
            return estimator  # for a pipeline of the user's own class, the whole pipeline is trained
        raise ConfigError(
            "early_stopping: a whole Pipeline can't train in portions: set pipeline_auto_early_stop=True to "
            "train only its last step in portions, or early_stopping=None"
        )
    name, step = estimator.steps[-1]
    if step is None or isinstance(step, str):
        raise ConfigError(
            f"early_stopping trains the last step of a pipeline in portions, but {name!r} is {step!r}: end "
            "the pipeline with an estimator, or set early_stopping=None"
        )
    return step


def require_free(way: IncrementalMethod, searched: Collection[str], prefix: str = "") -> None:
    """Raise ConfigError if the search varies parameters that early stopping sets itself.

    Args:
        way: method of training.
        searched: names of the parameters that differ between candidates.
        prefix: prefix of the trained step's parameter names, such as "sgd__".

    Raises:
        ConfigError: the search varies the resource or `warm_start`.
    """
    if way.resource is None:
        return
    own = {way.resource, *way.synonyms}
    if way.kind in (MethodKind.WARM_START_ITER, MethodKind.WARM_START_ENSEMBLE):
        own.add("warm_start")
    for name in sorted(own):
        if f"{prefix}{name}" in searched:
            raise ConfigError(
                f"{prefix}{name} cannot be searched with early_stopping, which trains {way.resource} in "
                f"portions and finds how many are enough: remove {prefix}{name} from the search and set it "
                "on the estimator as the maximum for all candidates, or set early_stopping=None"
            )


def _booster_of(estimator: Any, parameters: Mapping[str, Any]) -> IncrementalMethod | None:
    name = type(estimator).__name__
    if descends(estimator, "xgboost", "XGBRFClassifier", "XGBRFRegressor"):
        raise ConfigError(
            f"early_stopping: {name} builds its whole forest at once: set early_stopping=None, or use "
            f"{name.replace('RF', '')}"
        )
    if descends(estimator, "xgboost", "XGBModel"):
        return IncrementalMethod(MethodKind.XGBOOST, "n_estimators", default=100)
    if descends(estimator, "lightgbm", "LGBMModel"):
        _refuse_synonyms(name, parameters, "n_estimators", _LIGHTGBM_TREES)
        return IncrementalMethod(MethodKind.LIGHTGBM, "n_estimators", _LIGHTGBM_TREES, default=100)
    if descends(estimator, "catboost", "CatBoost"):
        given = [each for each in _CATBOOST_TREES if parameters.get(each) is not None]
        resource = given[0] if given else "iterations"
        return IncrementalMethod(
            MethodKind.CATBOOST, resource, frozenset(_CATBOOST_TREES) - {resource}, default=1000
        )
    return None


def _refuse_synonyms(
    name: str, parameters: Mapping[str, Any], resource: str, synonyms: Collection[str]
) -> None:
    for synonym in sorted(synonyms):
        if parameters.get(synonym) is not None:
            raise ConfigError(
                f"{name}({synonym}={parameters[synonym]!r}) overrides {resource}, which "
                f"early_stopping divides: set {resource}={parameters[synonym]!r} instead"
            )


def _refuse_own_stop(name: str, parameters: Mapping[str, Any], words: Collection[str]) -> None:
    for word in words:
        if parameters.get(word) not in (None, False):
            raise ConfigError(
                f"{name}({word}={parameters[word]!r}) may end its training early, which conflicts "
                "with early_stopping of the search: leave one of the two out"
            )


def _refuse_cold_start(name: str, estimator: Any, parameters: Mapping[str, Any]) -> None:
    if descends(estimator, "sklearn", "LogisticRegression") and parameters.get("solver") == "liblinear":
        raise ConfigError(
            f"early_stopping: {name}(solver='liblinear') restarts its training with each fit, even "
            "with warm_start: use solver='lbfgs' or 'saga', or set early_stopping=None"
        )


def descends(estimator: Any, package: str, *names: str) -> bool:
    """Return True if the estimator's class is, or extends, one of the given classes of the package.

    This function does not import the package.
    """
    return any(
        base.__name__ in names and base.__module__.partition(".")[0] == package
        for base in type(estimator).__mro__
    )
