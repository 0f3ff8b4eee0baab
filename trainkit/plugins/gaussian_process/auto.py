"""The searcher `AutoSearch`, which chooses between `GaussianProcessSearch` and random search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.plugins.gaussian_process.search import GaussianProcessSearch
from trainkit.tune.search.base import SearcherWrapper, called
from trainkit.tune.search.basic_variant import BasicVariantGenerator
from trainkit.tune.space.search_space import Space


class AutoSearch(SearcherWrapper):
    """Searcher that learns from the results if it can.

    It is `GaussianProcessSearch` if the experiment has one metric, several samples, and a space with domains
    and without a grid. Otherwise it is `BasicVariantGenerator`, which tries all combinations of a grid and
    draws the rest at random.

    Args:
        points_to_evaluate: complete or partial configurations to try first.
        seed: seed of all draws; None: the TuneConfig's seed.

    Raises:
        ConfigError: an argument is wrong.
    """

    several = True

    def __init__(
        self, points_to_evaluate: Sequence[Mapping[str, Any]] | None = None, seed: int | None = None
    ) -> None:
        super().__init__(BasicVariantGenerator(points_to_evaluate, random_state=seed))
        self._points, self._seed = points_to_evaluate, seed

    @property
    def arguments(self) -> dict[str, Any]:
        return {"points_to_evaluate": self._points, "seed": self._seed}

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        learns = metric is not None and num_samples != 1 and bool(space.domains) and not space.axes
        if learns and not self.objectives:
            self.searcher = GaussianProcessSearch(points_to_evaluate=self._points, seed=self._seed)
            self._inner = called(self.searcher)
        super().begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)

    def add_evaluated_point(self, parameters: dict[str, Any], *args: Any, **options: Any) -> None:
        raise NotImplementedError(
            "AutoSearch does not support points evaluated elsewhere: use GaussianProcessSearch"
        )
