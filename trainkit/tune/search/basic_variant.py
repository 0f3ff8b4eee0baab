"""Grid search and random search."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.core.checks import arguments_of, checked_points, checked_seed, require_whole
from trainkit.tune.core.seeds import suggestion_generator
from trainkit.tune.search.base import Searcher
from trainkit.tune.search.encoded_space import alternatives, leaves_open
from trainkit.tune.space.configurations import fingerprint
from trainkit.tune.space.search_space import Path, Space, choices_of
from trainkit.tune.space.serialization import holds_opaque

CONSTANT_DRAWS = 1000
"""Maximum number of repeated draws for a grid with constant draws. If no draw is new, the search ends."""


class BasicVariantGenerator(Searcher):
    """Searcher that suggests all combinations of a grid, and random values for domains.

    Args:
        points_to_evaluate: complete or partial configurations to try first; each point counts as one of
            `num_samples`. Missing values are drawn at random; missing values of a grid are tried in all
            combinations.
        max_concurrent: maximum number of concurrent trials; 0: as many as the resources allow.
        constant_grid_search: True draws the other values once for all combinations of the grid, False once
            for each combination.
        random_state: seed for the draws; None: the TuneConfig's seed.

    Raises:
        ConfigError: `points_to_evaluate` is not a list of dictionaries, or a number is out of range.
    """

    several = True

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: int | None = None,
    ) -> None:
        super().__init__()
        self.points_to_evaluate = checked_points(points_to_evaluate)
        require_whole("max_concurrent", max_concurrent, 0, "1 or more, or 0 for as many as fit")
        self.max_concurrent = int(max_concurrent)
        self.constant_grid_search = bool(constant_grid_search)
        self.random_state = checked_seed("random_state", random_state)
        self._presets: list[dict[Path, Any]] = []
        self._combinations = 1
        """Number of combinations of the grid."""
        self._next = 0
        self._draw = -1
        self._redraws = 0
        """Number of rejected attempts at draw number `_draw`."""
        self._drawn = False
        self._spent: set[int] = set()
        """Indexes of the grid's combinations for which no new configuration was found."""
        self._covered: Counter[int] = Counter()
        """Number of earlier trials with each combination of the grid, counted by a restore."""
        self._foreign = 0
        """Number of earlier trials that are not in the grid, because the space has changed."""
        self._ranks: dict[bytes, int] | None = None
        self._live: set[str] = set()

    @property
    def arguments(self) -> dict[str, Any]:
        return arguments_of(self)

    @property
    def hears_again(self) -> bool:
        return True

    @property
    def whole(self) -> bool:
        return True

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        seed = seed if self.random_state is None else self.random_state
        super().begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)
        self._combinations = space.grid_size()
        self._presets = [space.preset(point) for point in self.points_to_evaluate]
        self._leaves_open = [leaves_open(space, preset) for preset in self._presets]
        # Entry i is the index of the first suggestion that completes the user's point i. The last entry
        # is the number of suggestions that complete the user's points.
        self._starts = list(itertools.accumulate(map(space.grid_size, self._presets), initial=0))

    @property
    def total_samples(self) -> int | None:
        number = self.num_samples
        if number == -1:
            return None
        free = max(0, number - len(self._presets))
        return self._foreign + self._starts[-1] + free * self._combinations

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._spent or self._covered:
            self._pass_what_was_tried()
        total = self.total_samples
        if len(self._spent) == self._combinations or (
            total is not None and self._next >= total - self._foreign
        ):
            return self.FINISHED
        if self.max_concurrent and len(self._live) >= self.max_concurrent:
            return None
        self._live.add(trial_id)
        index, self._next = self._next, self._next + 1
        sample, combination, _ = self._place(index)
        draw = sample if self.constant_grid_search else index
        if draw != self._draw:
            self._draw, self._redraws = draw, 0
        # With constant_grid_search, only the first combination of a grid draws values, and later combinations
        # reuse these values.
        self._drawn = not (self.constant_grid_search and combination) and (
            self._leaves_open[sample] if sample < len(self._presets) else bool(self.space.domains)
        )
        return self.configuration(index, self._redraws)

    def is_drawn(self, trial_id: str) -> bool:
        return self._drawn

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        self._live.discard(trial_id)
        self._next -= 1
        self._redraws += 1

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]]:
        if self.constant_grid_search:  # all combinations of the grid need the same draw
            for _ in range(CONSTANT_DRAWS):
                self._redraws += 1
                yield self.configuration(self._next, self._redraws)
            return
        _, combination, preset = self._place(self._next)
        rng = suggestion_generator(self.seed, self._next, self._redraws)
        yield from alternatives(self.space, rng, combination, preset)

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        self._live.add(trial_id)
        self._next += 1
        return True

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        # With constant draws, later combinations of a grid depend on the number of redraws. Only a repeated
        # call of `suggest` counts redraws, so a restore can't skip this suggestion.
        if same_space and (self._presets or self.constant_grid_search or holds_opaque(config)):
            return None
        if self.space.axes and not self._presets:
            self._cover(config)
        else:
            self._next += 1
        self._live.add(trial_id)
        return config

    def _cover(self, config: dict[str, Any]) -> None:
        """Count `config` as a trial of its combination of the grid; in a changed space, the combination may
        have a new index.
        """
        if self._ranks is None:
            sizes = range(self.space.grid_size())
            self._ranks = {self._axes_of(self.space.grid_values(rank)): rank for rank in sizes}
        try:
            chosen = choices_of(self.space.tree, config, self.space.conditions)
            rank = self._ranks.get(self._axes_of(chosen))
        except SpaceError:  # the restore uses a different space than the earlier run
            rank = None
        if rank is None:  # a rule of the new space may also forbid the combination
            self._foreign += 1
        else:
            self._covered[rank] += 1

    def _axes_of(self, values: Mapping[Path, Any]) -> bytes:
        return fingerprint({repr(path): value for path, value in values.items() if path in self.space.axes})

    def give_up(self, trial_id: str) -> bool:
        sample, combination, _ = self._place(self._next)
        if sample >= len(self._presets):
            self._spent |= set(range(self.space.grid_size())) if self.constant_grid_search else {combination}
        self._next += 1
        return True

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._live.discard(trial_id)

    def configuration(self, index: int, redraw: int = 0) -> dict[str, Any]:
        """Return suggestion number `index`, which depends only on the searcher's arguments, space, points and
        seed.
        """
        sample, combination, preset = self._place(index)
        rng = suggestion_generator(self.seed, sample if self.constant_grid_search else index, redraw)
        return self.space.configuration(combination, rng, preset)

    def _place(self, index: int) -> tuple[int, int, dict[Path, Any]]:
        """Return the sample's index, the grid combination's index and the preset values of a suggestion."""
        for sample, preset in enumerate(self._presets):
            if index < self._starts[sample + 1]:
                return sample, index - self._starts[sample], preset
        sample, combination = divmod(index - self._starts[-1], self._combinations)
        return sample + len(self._presets), combination, {}

    def _pass_what_was_tried(self) -> None:
        while (self._spent or self._covered) and len(self._spent) < self.space.grid_size():
            sample, combination, _ = self._place(self._next)
            if sample < len(self._presets):
                return
            if combination not in self._spent:
                if combination not in self._covered:
                    return
                self._covered -= Counter([combination])  # `-=` also removes counts of 0
            self._next += 1
