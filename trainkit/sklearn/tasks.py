"""The tasks that a search consists of, as scikit-learn's callbacks are told of them.

    fit ─┬─ search ─┬─ candidate-split-evaluation     in a worker each
         │          └─ ...
         └─ refit-with-best-params

Names, numbers and order are those of scikit-learn's `GridSearchCV`; before scikit-learn 1.9 there are no
callbacks, and nobody is told.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainkit.sklearn.internals import HAS_CALLBACKS


@dataclass(frozen=True)
class FoldTasks:
    """What a worker needs to tell of the folds that it evaluates.

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


class FitTasks:
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
    def searching(self, evaluations: int | None) -> Iterator[FoldTasks | None]:
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
        yield FoldTasks(self._search, context) if has_callbacks(self._search) else None
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
    """Whether anybody is to be told: of the search, or of the estimator in it or one of its parts."""
    return any(
        getattr(each, "_skl_callbacks", None) for each in (search, *search.get_params(deep=True).values())
    )
