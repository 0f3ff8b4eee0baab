"""Private names of scikit-learn that the searches use, differences between its versions, and its callbacks.

With these private names, the searches run scikit-learn's own code, not a copy of it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sklearn import base
from sklearn.metrics import _scorer
from sklearn.model_selection import _search, _search_successive_halving, _validation
from sklearn.utils import _metadata_requests, metaestimators, validation

fit_context = base._fit_context
BaseScorer = _scorer._BaseScorer
MultimetricScorer = _scorer._MultimetricScorer
PassthroughScorer = _scorer._PassthroughScorer
BaseSearchCV = _search.BaseSearchCV
HalvingGridSearchCV = _search_successive_halving.HalvingGridSearchCV
HalvingRandomSearchCV = _search_successive_halving.HalvingRandomSearchCV
fit_and_score = _validation._fit_and_score
insert_error_scores = _validation._insert_error_scores
score = _validation._score
warn_or_raise_about_fit_failures = _validation._warn_or_raise_about_fit_failures
routing_enabled = _metadata_requests._routing_enabled
safe_split = metaestimators._safe_split
check_method_params = validation._check_method_params

HAS_CALLBACKS = "callback_ctx" in inspect.signature(fit_and_score).parameters
"""True since scikit-learn 1.9, whose `fit` supports callbacks."""


@dataclass(frozen=True)
class FoldCallbacks:
    """Callbacks in a worker, for the folds that the worker evaluates.

    Attributes:
        search: the estimator that runs the search.
        context: scikit-learn's callback context of the task "search".
    """

    search: Any
    context: Any

    def arguments(self, candidate: int, split: int, folds: int) -> Mapping[str, Any]:
        """Return the arguments of `fit_and_score` that invoke the callbacks for one fold of a candidate."""
        # The callback context is copied, because the same fold may start again after a failure.
        searching = copy.copy(self.context)
        searching._children_map = {}
        task = searching.subcontext(task_name="candidate-split-evaluation", task_id=candidate * folds + split)
        return {"caller": self.search, "callback_ctx": task}


class FitCallbacks:
    """Callbacks of one `fit`, called in the driver.

    Args:
        search: the estimator that runs the search.
        X, y: data of the search.
        sample_weight: weights of the samples; None: no weights.
    """

    def __init__(self, search: Any, X: Any, y: Any, sample_weight: Any) -> None:
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._search = search
        self._data = {"X": X, "y": y, "metadata": metadata}
        self.root: Any = None
        """Context of the whole `fit`; None if this version of scikit-learn has no callbacks."""

    def begin(self) -> None:
        """Call the callbacks at the beginning of `fit`."""
        if HAS_CALLBACKS:
            self.root = self._search._init_callback_context(
                max_subtasks=1 + (self._search.refit is not False)
            )
            self.root.call_on_fit_task_begin(estimator=self._search, **self._data)

    @contextlib.contextmanager
    def searching(self, evaluations: int | None) -> Iterator[FoldCallbacks | None]:
        """Call the callbacks around the evaluation of the candidates; yield the callbacks for the workers.

        Args:
            evaluations: total number of folds of all candidates; None if unknown.

        Yields:
            The callbacks for the workers; None if the search has no callbacks.
        """
        if self.root is None:
            yield None
            return
        context = self.root.subcontext(
            task_name="search", max_subtasks=evaluations, sequential_subtasks=False
        ).call_on_fit_task_begin(estimator=self._search)
        yield self.folds_within(context)
        context.call_on_fit_task_end(estimator=self._search)

    def folds_within(self, context: Any) -> FoldCallbacks | None:
        """Return the workers' callbacks for a round with this `context`; None if there are no callbacks."""
        if context is None or not has_callbacks(self._search):
            return None
        return FoldCallbacks(self._search, context)

    @contextlib.contextmanager
    def refitting(self, estimator: Any) -> Iterator[None]:
        """Call the callbacks around the fit of `estimator` on all data."""
        if self.root is None:
            yield
            return
        context = self.root.subcontext(task_name="refit-with-best-params")
        with context.propagate_callback_context(estimator):
            context.call_on_fit_task_begin(estimator=self._search, **self._data)
            yield
        context.call_on_fit_task_end(estimator=self._search, **self._data)

    def end(self) -> None:
        """Call the callbacks at the end of `fit`."""
        if self.root is not None:
            self.root.call_on_fit_task_end(estimator=self._search, **self._data)


def has_callbacks(search: Any) -> bool:
    """Return True if the search, its estimator or a part of the estimator has callbacks."""
    return any(
        getattr(each, "_skl_callbacks", None) for each in (search, *search.get_params(deep=True).values())
    )
