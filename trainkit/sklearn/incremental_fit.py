"""Incremental training of an estimator, or of the last step of a pipeline."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import joblib
import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.multiclass import unique_labels

from trainkit.errors import ConfigError
from trainkit.sklearn.incremental import (
    MethodKind,
    descends,
    end_of,
    incremental_method,
    require_free,
    trained_step,
)


def train_passes(estimator: Any, passes: int, *data: Any, **params: Any) -> None:
    """Train an estimator for further passes over the data.

    scikit-learn's linear models with stochastic gradient descent run all passes of `fit` in one C loop, but
    only one pass per `partial_fit`. With thousands of samples, a call of `partial_fit` spends most of its
    time outside of this loop. For these models, this function therefore runs several passes at once, like
    their method `fit`. If the estimator is unfitted, the result equals `fit` with `max_iter=passes` and
    `tol=None`, bit for bit. For other estimators the result equals calls of `partial_fit`.

    Args:
        estimator: an estimator with `partial_fit`; trained in place.
        passes: number of passes, 1 or more.
        data: X, and y for an estimator that needs labels.
        params: further arguments of `partial_fit`.
    """
    if passes > 1 and _loops(estimator):
        _train_at_once(estimator, passes, *data, **params)
        return
    for _ in range(passes):
        estimator.partial_fit(*data, **params)


def _loops(estimator: Any) -> bool:
    """Return True if `partial_fit` belongs to scikit-learn's own linear models, not to a subclass."""
    if not descends(estimator, "sklearn", "BaseSGD"):
        return False
    return getattr(type(estimator).partial_fit, "__module__", "").startswith("sklearn.linear_model.")


def _train_at_once(estimator: Any, passes: int, *data: Any, **params: Any) -> None:
    usual = estimator.tol
    estimator.tol = None  # a tolerance could end the loop early
    # In all these classes, `fit` and `partial_fit` call `_partial_fit` and pass the number of passes as a
    # keyword argument.
    estimator._partial_fit = functools.partial(_with_passes, estimator._partial_fit, passes)
    try:
        estimator.partial_fit(*data, **params)
    finally:
        del estimator._partial_fit
        estimator.tol = usual


def _with_passes(call: Any, passes: int, *args: Any, max_iter: int, **kwargs: Any) -> Any:
    del max_iter
    return call(*args, max_iter=passes, **kwargs)


Data: TypeAlias = tuple[Any, Any, dict[str, Any]]
"""Arguments of `fit`: X, y (may be None), and further arguments by name."""


class IncrementalFit:
    """Incremental training of an estimator, with the same results as calls of scikit-learn's methods.

    The transformers of a pipeline are fitted once, for the first portion, and the transformed data is kept.

    Args:
        estimator: unfitted estimator with its parameters; trained in place.
        portions: number of portions of a complete training.
        last_step: train only the last step of a pipeline in portions.
        labels: labels of all samples, including later data; None for an estimator without labels.
        searched: names of the parameters that differ between candidates.

    Raises:
        ConfigError: the estimator can't be trained in portions.
    """

    def __init__(
        self, estimator: Any, portions: int, *, last_step: bool, labels: Any, searched: Collection[str] = ()
    ) -> None:
        self.estimator = estimator
        self.done = 0
        """Number of portions trained so far."""
        self._portions = portions
        self._labels = labels
        self._inside = isinstance(estimator, Pipeline) and last_step
        self._trained = trained_step(estimator, last_step=last_step)
        self._prefix = f"{estimator.steps[-1][0]}__" if self._inside else ""
        self._way = incremental_method(self._trained)
        require_free(self._way, searched, self._prefix)
        parameters = self._trained.get_params(deep=False)
        self._maximum = self._way.maximum(parameters, portions)
        # `warm_start` and `max_iter` are changed while a portion is trained, and restored afterwards.
        self._usual = {name: parameters[name] for name in ("warm_start", "max_iter") if name in parameters}
        self._prototype = clone(self._trained) if self._way.kind is MethodKind.CATBOOST else None
        self._data: Data | None = None
        self._again: bool | None = None

    @property
    def trained(self) -> Any:
        """The step that is trained in portions, or the estimator itself."""
        return self._trained

    @property
    def transforms(self) -> bool:
        """True if a pipeline has transformers before the trained step."""
        return self._inside and any(
            step not in (None, "passthrough") for _, step in self.estimator.steps[:-1]
        )

    def advance(self, load: Callable[[], Data], portions: int = 1) -> None:
        """Train further portions, in as few calls of the estimator as possible.

        Args:
            load: function that returns the training data, equal at every call; it is called only if needed.
            portions: number of portions, at most the number of remaining portions.
        """
        X, y, params = self._prepared(load)
        portion = self.done + portions
        end = end_of(portion, self._maximum, self._portions)
        size = end - end_of(self.done, self._maximum, self._portions)
        self._train(X, y, params, end, size)
        self.done = portion

    def change(self, parameters: Mapping[str, Any]) -> None:
        """Change parameters for the rest of the training, as in population based training.

        Raises:
            ConfigError: a parameter does not belong to the trained step.
        """
        for name in parameters:
            if not name.startswith(self._prefix):
                raise ConfigError(
                    f"{name} cannot change during training, because the transformers of the pipeline "
                    f"are fitted once: mutate parameters that begin with {self._prefix!r}"
                )
        own = {name.removeprefix(self._prefix): value for name, value in parameters.items()}
        if self._prototype is not None:
            self._prototype.set_params(**own)  # CatBoost can't change a fitted model
        else:
            self._trained.set_params(**own)

    # --- data -------------------------------------------------------------------------------------

    def _prepared(self, load: Callable[[], Data]) -> Data:
        if not self._inside:
            return load()
        if self._data is not None:
            return self._data
        data = self._transformed(*load())
        if self.transforms:  # without transformers, `load` returns the data again
            self._data = data
        return data

    def _transformed(self, X: Any, y: Any, params: dict[str, Any]) -> Data:
        """Fit the transformers; return the arguments that the pipeline passes to its last step."""
        catcher = _Catcher(self._trained)
        self._end_with(catcher)
        try:
            self.estimator.fit(X, *_labels(y), **params)
        finally:
            self._end_with(self._trained)
        return catcher.caught

    def _end_with(self, step: Any) -> None:
        pipeline = self.estimator
        pipeline.steps = [*pipeline.steps[:-1], (pipeline.steps[-1][0], step)]

    # --- training ---------------------------------------------------------------------------------

    def _train(self, X: Any, y: Any, params: Mapping[str, Any], end: int, size: int) -> None:
        way, trained, first = self._way, self._trained, self.done == 0
        labels = _labels(y)
        match way.kind:
            case MethodKind.PARTIAL_FIT:
                train_passes(trained, size, X, *labels, **self._classes(params), **params)
            case MethodKind.XGBOOST:
                trained.set_params(n_estimators=size)
                trained.fit(X, *labels, xgb_model=None if first else trained.get_booster(), **params)
                trained.set_params(n_estimators=end)
            case MethodKind.LIGHTGBM:
                trained.set_params(n_estimators=size)
                trained.fit(X, *labels, init_model=None if first else trained.booster_, **params)
                trained.set_params(n_estimators=end)
            case MethodKind.CATBOOST:
                model = clone(self._prototype).set_params(**{str(way.resource): size})
                model.fit(X, *labels, init_model=None if first else trained, **params)
                self._replace(model)
            case MethodKind.WARM_START_ITER | MethodKind.WARM_START_ENSEMBLE:
                amount = end if way.running_total else size
                trained.set_params(warm_start=True, **{str(way.resource): amount})
                with _without_expected(lambda message: self._is_expected(message, amount)):
                    trained.fit(X, *labels, **params)
                trained.set_params(**self._usual | ({str(way.resource): end} if way.running_total else {}))

    def _replace(self, model: Any) -> None:
        self._trained = model
        if self._inside:
            self._end_with(model)
        else:
            self.estimator = model

    def _classes(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return all classes as an argument, for a `partial_fit` that needs them in its first call."""
        return {} if "classes" in params else self._all_classes

    @functools.cached_property
    def _all_classes(self) -> dict[str, Any]:
        wanted = inspect.signature(self._trained.partial_fit).parameters
        if "classes" not in wanted or self._labels is None:
            return {}
        if descends(self._trained, "sklearn", "_MultiOutputEstimator"):
            return {"classes": [np.unique(column) for column in np.asarray(self._labels).T]}
        return {"classes": unique_labels(self._labels)}

    def _is_expected(self, warning: warnings.WarningMessage, amount: int) -> bool:
        """Return True if the warning is caused only by the division into portions."""
        if issubclass(warning.category, ConvergenceWarning):
            iterations = getattr(self._trained, "n_iter_", None)
            ended_by_limit = iterations is not None and np.max(iterations) >= amount
            return ended_by_limit and self.done + 1 < self._portions
        # A forest warns that class weights may change with the data. The data never changes between portions,
        # so the warning is ignored.
        return str(warning.message).startswith("class_weight presets")

    # --- checkpoints ------------------------------------------------------------------------------

    def state(self, load: Callable[[], Data]) -> dict[str, Any]:
        """Return the state for `resume`, with the transformed data only if it can't be computed again.

        Args:
            load: see `advance`.
        """
        data = self._data
        if data is not None and self._can_transform_again(load, data[0]):
            data = (None, *data[1:])
        names = ("estimator", "done", "_trained", "_prototype", "_again")
        return {name: getattr(self, name) for name in names} | {"data": data}

    def resume(self, state: Mapping[str, Any], load: Callable[[], Data]) -> None:
        """Continue from the state of a different `IncrementalFit` with equal arguments.

        Args:
            state: result of the other object's method `state`.
            load: see `advance`.
        """
        rest = dict(state)
        data = rest.pop("data")
        vars(self).update(rest)
        if data is not None and data[0] is None:
            data = (self.estimator[:-1].transform(load()[0]), *data[1:])
        self._data = data

    def _can_transform_again(self, load: Callable[[], Data], transformed: Any) -> bool:
        """Return True if the fitted transformers reproduce the transformed data, bit for bit."""
        if self._again is None:
            again = self.estimator[:-1].transform(load()[0])
            self._again = joblib.hash(again) == joblib.hash(transformed)
        return self._again


class RepeatedFit:
    """Training in which each portion starts from the beginning, on more samples than the previous portion.

    Args:
        estimator: unfitted estimator with its parameters.
    """

    transforms = False

    def __init__(self, estimator: Any) -> None:
        self.estimator = self.trained = estimator
        self.done = 0
        """Number of portions trained so far."""

    def advance(self, load: Callable[[], Data], portions: int = 1) -> None:
        """Train a clone on the samples that belong to the trained portions.

        Args:
            load: function that returns the training data; it is called after `done` was increased.
            portions: number of portions, at most the number of remaining portions.
        """
        self.done += portions
        X, y, params = load()
        # A clone is trained, so that the estimator itself stays unfitted after a failure. The estimator may
        # later be trained again from the model of a different candidate.
        self.estimator = self.trained = clone(self.estimator).fit(X, *_labels(y), **params)

    def change(self, parameters: Mapping[str, Any]) -> None:
        """Change parameters for the following portions, as in population based training."""
        self.estimator.set_params(**parameters)

    def state(self, load: Callable[[], Data]) -> dict[str, Any]:
        """Return the state for `resume`."""
        return vars(self).copy()

    def resume(self, state: Mapping[str, Any], load: Callable[[], Data]) -> None:
        """Continue from the state of a different `RepeatedFit`."""
        vars(self).update(state)


@dataclass(frozen=True)
class Portions:
    """Portions into which a training is divided.

    Attributes:
        reports: numbers of the portions that end with a report, ascending; the last number is the number of
            all portions.
        last_step: train only the last step of a pipeline in portions.
        of_samples: True if each portion is a new fit on more samples.
    """

    reports: Sequence[int]
    last_step: bool = True
    of_samples: bool = False

    def begin(
        self, estimator: Any, *, labels: Any = None, searched: Collection[str] = ()
    ) -> IncrementalFit | RepeatedFit:
        """Return the training of an unfitted estimator; for arguments and errors see `IncrementalFit`."""
        if self.of_samples:
            return RepeatedFit(estimator)
        return IncrementalFit(
            estimator, self.reports[-1], last_step=self.last_step, labels=labels, searched=searched
        )


class _Catcher(BaseEstimator):  # type: ignore[misc]
    """Last step of a pipeline that records the arguments of its `fit`."""

    def __init__(self, step: Any) -> None:
        self.step = step

    def fit(self, X: Any, y: Any = None, **params: Any) -> _Catcher:
        """Record the arguments."""
        self.caught: Data = X, y, params
        return self

    def get_metadata_routing(self) -> Any:
        """Return the metadata routing of the step that this object stands in for."""
        return get_routing_for_object(self.step)


def _labels(y: Any) -> tuple[Any, ...]:
    """Return `(y,)`, or `()` if the estimator learns without labels."""
    return () if y is None else (y,)


@contextmanager
def _without_expected(is_expected: Callable[[warnings.WarningMessage], bool]) -> Iterator[None]:
    """Withhold warnings until the end of the block. At the end, issue the unexpected warnings."""
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        for each in caught:
            if not is_expected(each):
                warnings.warn_explicit(
                    each.message, each.category, each.filename, each.lineno, source=each.source
                )
