"""Grid and random search: every combination of the grid, `num_samples` times, the rest drawn at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_whole
from trainkit.tune.search.base import Searcher
from trainkit.tune.seeds import suggestion_generator
from trainkit.tune.variants import Path, Space


class BasicVariantGenerator(Searcher):
    """Suggest grid and random configurations.

    Args:
        points_to_evaluate: configurations, or parts of them, to try first; each counts as one of
            `num_samples`, and what it leaves open is drawn, or tried in all combinations of the grid.
        random_state: seed for the draws; None: the TuneConfig's.

    Raises:
        ConfigError: `points_to_evaluate` is not a list of dictionaries.
    """

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        *,
        random_state: int | None = None,
    ) -> None:
        super().__init__()
        points = list(points_to_evaluate or [])
        if not all(isinstance(point, Mapping) for point in points):
            raise ConfigError(f"points_to_evaluate={points_to_evaluate!r}: give a list of dictionaries")
        if random_state is not None and not (is_whole(random_state) and random_state >= 0):
            raise ConfigError(f"random_state={random_state!r}: give a whole number of 0 or more")
        self.points_to_evaluate = [dict(point) for point in points]
        self.random_state = random_state
        self._presets: list[dict[Path, Any]] = []
        self._next = 0

    @property
    def arguments(self) -> dict[str, Any]:
        return {"points_to_evaluate": self.points_to_evaluate, "random_state": self.random_state}

    def set_search_properties(
        self, metric: str | None, mode: str | None, space: Space, *, num_samples: int, seed: int
    ) -> None:
        seed = seed if self.random_state is None else self.random_state
        super().set_search_properties(metric, mode, space, num_samples=num_samples, seed=seed)
        self._presets = [space.preset(point) for point in self.points_to_evaluate]
        # Where the configurations of each point begin, and after the last, where the free ones do.
        self._starts = [0]
        for preset in self._presets:
            self._starts.append(self._starts[-1] + space.grid_size(preset))

    @property
    def total_samples(self) -> int | None:
        if self.num_samples == -1:
            return None
        free = max(0, self.num_samples - len(self._presets))
        return self._starts[-1] + free * self.space.grid_size()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        del trial_id
        total = self.total_samples
        if total is not None and self._next >= total:
            return self.FINISHED
        index, self._next = self._next, self._next + 1
        return self.configuration(index)

    def replay(self, trial_id: str, config: dict[str, Any]) -> None:
        del trial_id, config
        self._next += 1

    def configuration(self, index: int) -> dict[str, Any]:
        """Return suggestion `index`; it depends on the space, the points, the seed and `index` alone."""
        rng = suggestion_generator(self.seed, index)
        for place, preset in enumerate(self._presets):
            if index < self._starts[place + 1]:
                return self.space.configuration(index - self._starts[place], rng, preset)
        return self.space.configuration((index - self._starts[-1]) % self.space.grid_size(), rng)
