"""Context of a fit that is sent to workers: configuration, warning filters, callbacks."""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from sklearn import config_context, get_config

from trainkit.sklearn.internals import HAS_CALLBACKS

Filter = tuple[Any, "str | re.Pattern[str] | None", type[Warning], "str | re.Pattern[str] | None", int]
"""Action, message, category, module and line, as in `warnings.filters`."""


@dataclass(frozen=True)
class SklearnContext:
    """Configuration of scikit-learn and warning filters, like those that joblib sends to its workers.

    Attributes:
        config: result of `sklearn.get_config`, such as `enable_metadata_routing` and `transform_output`.
        filters: warning filters; the first one that matches a warning decides.
    """

    config: Mapping[str, Any]
    filters: Sequence[Filter]

    @classmethod
    def current(cls) -> Self:
        """Return the current context of this thread."""
        return cls(get_config(), tuple(cast("list[Filter]", warnings.filters)))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the context in this thread until the block ends."""
        with config_context(**self.config), warnings.catch_warnings():
            warnings.resetwarnings()
            for action, message, category, module, line in self.filters:
                if message is None and module is None:
                    warnings.simplefilter(action, category, line, append=True)
                else:
                    warnings.filterwarnings(
                        action, _pattern(message), category, _pattern(module), line, append=True
                    )
            yield


def _pattern(text: str | re.Pattern[str] | None) -> str:
    if text is None:
        return ""
    return text.pattern if isinstance(text, re.Pattern) else rf"{re.escape(text)}\Z"


@dataclass(frozen=True)
class FoldCallbacks:
    """Callbacks in a worker, for the folds that it evaluates.

    Attributes:
        search: the estimator that runs the search.
        context: context of the task "search".
    """

    search: Any
    context: Any

    def arguments(self, candidate: int, split: int, folds: int) -> Mapping[str, Any]:
        """Return the arguments of `fit_and_score` that call the callbacks for one fold of a candidate."""
        # Copied, because the same fold may start again after a failure.
        searching = copy.copy(self.context)
        searching._children_map = {}
        task = searching.subcontext(task_name="candidate-split-evaluation", task_id=candidate * folds + split)
        return {"caller": self.search, "callback_ctx": task}


class FitCallbacks:
    """Callbacks of one `fit`, called in the driver.

    Args:
        search: the estimator that runs the search.
        X, y: data of the search.
        sample_weight: weights of the samples; None for none.
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
            evaluations: number of folds of all candidates; None if unknown.

        Yields:
            None if there are no callbacks.
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
