"""What suggests the candidates of a search: a list, where they are known beforehand, as a grid is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

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

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The candidates stay the objects that they are: `best_params_` is to hold what was given."""
        other = type(self)(self._candidates)
        other._next = self._next
        return other

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


class Search(NamedTuple):
    """What suggests the candidates of a search, from what.

    Attributes:
        searcher: that suggests.
        space: for the tuner, as `param_space`; None: the searcher knows it.
        num_samples: how many suggestions; -1: as many as it has.
        learns: True if what it suggests depends on the scores.
        seed: of everything random; None: draws one.
    """

    searcher: Searcher
    space: Mapping[str, Any] | None = None
    num_samples: int = -1
    learns: bool = False
    seed: int | None = None

    @property
    def total(self) -> int | None:
        """How many candidates there will be; None: that isn't known."""
        return self.searcher.total_samples if self.known_beforehand else None

    @property
    def known_beforehand(self) -> bool:
        """True if the candidates are a list, which may hold one twice."""
        return isinstance(self.searcher, CandidateList)
