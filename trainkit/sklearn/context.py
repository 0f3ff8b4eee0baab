"""Context of a fit that travels to workers: configuration, warning filters, callbacks."""

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
"""As in `warnings.filters`: action, message, category, module, line."""


@dataclass(frozen=True)
class SklearnContext:
    """scikit-learn's configuration and Python's filters of warnings, as joblib's workers are given them.

    Attributes:
        config: as `sklearn.get_config` gave it, with `enable_metadata_routing`, `transform_output` ...
        filters: the first that fits a warning decides.
    """

    config: Mapping[str, Any]
    filters: Sequence[Filter]

    @classmethod
    def here(cls) -> Self:
        """Those of this thread, now."""
        return cls(get_config(), tuple(cast("list[Filter]", warnings.filters)))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Have them hold here, until the block ends."""
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
    """Callbacks of a worker for the folds that it evaluates.

    Attributes:
        search: the estimator that is searching.
        context: of the task "search".
    """

    search: Any
    context: Any

    def told(self, candidate: int, split: int, folds: int) -> Mapping[str, Any]:
        """Return the arguments by which scikit-learn's own function tells of one fold of a candidate."""
        # A copy, as the same fold may be begun here again, after a failure.
        searching = copy.copy(self.context)
        searching._children_map = {}
        task = searching.subcontext(task_name="candidate-split-evaluation", task_id=candidate * folds + split)
        return {"caller": self.search, "callback_ctx": task}


class FitCallbacks:
    """The tasks of one `fit`, in the driver.

    Args:
        search: the estimator that is searching.
        X, y: as given to it.
        sample_weight: as given to it; None: not.
    """

    def __init__(self, search: Any, X: Any, y: Any, sample_weight: Any) -> None:
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._search = search
        self._data = {"X": X, "y": y, "metadata": metadata}
        self._root: Any = None

    def begin(self) -> None:
        """`fit` begins."""
        if HAS_CALLBACKS:
            self._root = self._search._init_callback_context(
                max_subtasks=1 + (self._search.refit is not False)
            )
            self._root.call_on_fit_task_begin(estimator=self._search, **self._data)

    @contextlib.contextmanager
    def searching(self, evaluations: int | None) -> Iterator[FoldCallbacks | None]:
        """The candidates are evaluated in this block; given is what their workers need, if anybody is told.

        Args:
            evaluations: how many folds of candidates there will be; None: that isn't known.
        """
        if self._root is None:
            yield None
            return
        context = self._root.subcontext(
            task_name="search", max_subtasks=evaluations, sequential_subtasks=False
        ).call_on_fit_task_begin(estimator=self._search)
        yield FoldCallbacks(self._search, context) if has_callbacks(self._search) else None
        context.call_on_fit_task_end(estimator=self._search)

    @contextlib.contextmanager
    def refitting(self, estimator: Any) -> Iterator[None]:
        """`estimator` is fitted on all data in this block."""
        if self._root is None:
            yield
            return
        context = self._root.subcontext(task_name="refit-with-best-params")
        with context.propagate_callback_context(estimator):
            context.call_on_fit_task_begin(estimator=self._search, **self._data)
            yield
        context.call_on_fit_task_end(estimator=self._search, **self._data)

    def end(self) -> None:
        """`fit` has come to its end."""
        if self._root is not None:
            self._root.call_on_fit_task_end(estimator=self._search, **self._data)


def has_callbacks(search: Any) -> bool:
    """Return True if the search, its estimator or a part of that has callbacks."""
    return any(
        getattr(each, "_skl_callbacks", None) for each in (search, *search.get_params(deep=True).values())
    )
