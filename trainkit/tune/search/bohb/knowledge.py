"""What is known of a space: the configurations that were tried, what they came to, and the model of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trainkit.tune.search.bohb.model import BOHBConfig, Model
from trainkit.tune.search.bohb.observations import Observations
from trainkit.tune.seeds import model_generator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainkit.tune.search.bohb.kde import Column, Floats


class Knowledge:
    """Makes a model when it is asked for one, and not before: a replay asks for none.

    Args:
        columns: of the space.
        config: numbers of the model.
        seed: for what replaces parameters that are not active.

    Attributes:
        rows: of configurations, by trial.
        observations: of those trials.
    """

    def __init__(self, columns: Sequence[Column], config: BOHBConfig, seed: int) -> None:
        self.rows: dict[str, Floats] = {}
        self.observations = Observations()
        self._columns = columns
        self._config = config
        self._seed = seed
        self._made: tuple[int, Model | None] = (-1, None)
        """The last model, and of which version of the observations."""

    def model(self) -> Model | None:
        """The model of the largest budget that has enough observations; None: none has."""
        version, model = self._made
        if version != self.observations.version:
            model = self._model()
            self._made = (self.observations.version, model)
        return model

    def _model(self) -> Model | None:
        dimensions, config = len(self._columns), self._config
        found = self.observations.basis(
            lambda number, finite: config.split_sizes(number, finite, dimensions) is not None
        )
        if not dimensions or found is None:
            return None
        losses = [each.loss for each in found]
        sizes = config.split_sizes(len(losses), sum(map(math.isfinite, losses)), dimensions)
        if sizes is None:
            return None
        rows = np.stack([self.rows[each.trial_id] for each in found])
        # From how much is known, not from the suggestion: the next one after a restore has the same model.
        rng = model_generator(self._seed, len(losses))
        return Model(rows, losses, self._columns, config, sizes, rng)
