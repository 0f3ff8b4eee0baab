"""What searchers share that learn from results, over the experiment's space or over one of their own."""

from __future__ import annotations

from typing import Any

from trainkit.tune.search.base import Searcher


class ModelledSearcher(Searcher):
    """Base of searchers with a model of the results.

    A subclass keeps the space that its constructor was given as `_space`; None: the experiment's.
    """

    _space: Any = None

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        return self._space is None

    @property
    def hears_again(self) -> bool:
        return True

    @property
    def whole(self) -> bool:
        return self._space is None
