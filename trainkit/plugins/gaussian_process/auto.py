"""The default searcher `AutoSearch`, which chooses between a Gaussian process and random search.

This module does not import NumPy, because an experiment without domains does not need it. The name
`search.GaussianProcessSearch` is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune import search
from trainkit.tune.core.checks import checked_points, require_whole
from trainkit.tune.search.base import SearcherWrapper, called
from trainkit.tune.search.basic_variant import BasicVariantGenerator
from trainkit.tune.space.domains import Categorical, Float, Integer, Normal
from trainkit.tune.space.search_space import Space

_SUPPORTED = (Categorical, Float, Integer, Normal)
"""The domains that the Gaussian process supports; other domains are classes of users."""


class AutoSearch(SearcherWrapper):
    """Searcher that learns from the results if it can; the default.

    It is `GaussianProcessSearch` if the experiment has one metric with a mode, and a space with domains and
    without a grid. Otherwise it is `BasicVariantGenerator`, which tries all combinations of a grid and draws
    the rest at random. If the experiment begins with a single sample, this sample is drawn at random; later
    samples are suggested by `GaussianProcessSearch`.

    Args:
        points_to_evaluate: complete or partial configurations to try first.
        seed: seed of all draws; None: the TuneConfig's seed.
        num_samples: number of samples when the experiment began; None: the TuneConfig's number.

    Raises:
        ConfigError: an argument is wrong.
    """

    several = True

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        num_samples: int | None = None,
    ) -> None:
        points = checked_points(points_to_evaluate)
        super().__init__(BasicVariantGenerator(points, random_state=seed))
        require_whole("num_samples", num_samples, -1, optional=True)
        self._points, self._seed, self._first_samples = points, seed, num_samples
        self._sources: list[dict[str, Any]] | None = None
        self._priors: Mapping[str, Any] = {}

    @property
    def arguments(self) -> dict[str, Any]:
        return {"points_to_evaluate": self._points, "seed": self._seed, "num_samples": self._first_samples}

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        if not (lacking := self._lacking(space, metric, mode)):
            first = num_samples if self._first_samples is None else self._first_samples
            knows = bool(self._sources or self._priors)
            learning = search.GaussianProcessSearch(points_to_evaluate=self._points, seed=self._seed)
            learning.draws_first = first == 1 and not knows
            self.searcher = learning
            self._inner = called(self.searcher)
            self._inner.set_constraints(self.constraints)
            self._inner.learn_from(self._sources, self._priors, metric, mode)
        elif self._sources or self._priors:
            raise ConfigError(f"learn_from and priors need {lacking}")
        super().begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)

    def can_learn(self, space: Space, metric: str | None, mode: str | None) -> bool:
        """Return True if the searcher learns from the results of an experiment."""
        return not self._lacking(space, metric, mode)

    def _lacking(self, space: Space, metric: str | None, mode: str | None) -> str:
        """Return what the Gaussian process lacks, with its mend; empty if nothing."""
        domains = space.domains.values()
        if space.axes:
            return "a space without a grid: use tune.choice instead of tune.grid_search"
        if not domains:
            return "a param_space with domains: replace a constant by a domain, such as tune.uniform"
        if not all(isinstance(each, _SUPPORTED) for each in domains):
            return "trainkit's own domains: replace a domain of your own, such as by tune.choice"
        has_goal = metric is not None and mode is not None and not self.objectives
        return "" if has_goal else "one metric and its mode: set them in TuneConfig"

    def learn_from(
        self, sources: Any, priors: Mapping[str, Any] | None, metric: str | None, mode: str | None
    ) -> list[dict[str, Any]] | None:
        learning = search.GaussianProcessSearch()
        learning.set_constraints(self.constraints)
        self._sources = learning.learn_from(sources, priors, metric, mode)
        self._priors = dict(priors or {})
        return self._sources

    def add_evaluated_point(self, parameters: dict[str, Any], *args: Any, **options: Any) -> None:
        raise NotImplementedError(
            "AutoSearch does not support points evaluated elsewhere: use GaussianProcessSearch"
        )
