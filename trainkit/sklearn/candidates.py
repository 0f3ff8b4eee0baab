"""The searcher of a search whose candidates are known beforehand, as those of a grid are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.tune.search.base import Searcher


class CandidateList(Searcher):
    """Suggests the candidates it was given, in order, each once.

    Args:
        candidates: parameters by name; any objects, estimators too.
    """

    def __init__(self, candidates: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._candidates = candidates
        self._next = 0

    @property
    def total_samples(self) -> int | None:
        return len(self._candidates)

    @property
    def whole(self) -> bool:
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._next == len(self._candidates):
            return self.FINISHED
        self._next += 1
        return dict(self._candidates[self._next - 1])

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """What became of a candidate changes nothing."""
