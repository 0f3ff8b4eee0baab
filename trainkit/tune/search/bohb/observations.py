"""Results of the trials by budget, and the models made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.tune.core.seeds import model_generator
from trainkit.tune.search.bohb.model import BOHBConfig, Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainkit.tune.search.bohb.model import Column, Floats


Enough = Callable[[int, int], bool]
"""Says of a number of observations, and of finite ones, if they make a model."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The loss of a trial: less is better, infinite is worst."""

    trial_id: str
    loss: float


def budget_of(reason: Mapping[str, Any]) -> float | None:
    """The budget at which a scheduler has judged, from its reason; None: it was at none.

    The index of the level among those of all brackets where the scheduler gives it, otherwise the level.
    """
    for name in ("budget", "rung", "max_t"):
        if name in reason:
            return float(reason[name])
    return None


class Observations:
    """Collects losses by budget.

    Trials that a scheduler judges are observed where it judges them. Where it judges none, as FIFO, a trial
    is observed at its end, with its last training iteration for a budget: these are compared with all that
    were trained at least as long. A trial that has failed counts as worst on every budget that it has not
    reached; a configuration evaluated elsewhere as one of the largest.
    """

    def __init__(self) -> None:
        self._judged: dict[float, dict[str, float]] = {}
        self._furthest: dict[str, float] = {}
        """By trial the largest budget at which it was judged."""
        self._ended: dict[str, tuple[float, float]] = {}
        """By trial that has ended: its iteration, and its loss."""
        self._failed: dict[str, None] = {}
        self._evaluated: dict[str, float] = {}
        self.version = 0
        """Grows with every change."""

    def judge(self, trial_id: str, budget: float, loss: float) -> None:
        """A trial was judged at a budget; a second time at the same one is none."""
        losses = self._judged.setdefault(budget, {})
        if trial_id not in losses:
            losses[trial_id] = loss
            self._furthest[trial_id] = max(budget, self._furthest.get(trial_id, -math.inf))
            self.version += 1

    def end(self, trial_id: str, iteration: float, loss: float) -> None:
        """A trial has ended with this loss; one that went on since it last ended has ended here only."""
        if self._ended.get(trial_id) != (iteration, loss):
            self._ended[trial_id] = (iteration, loss)
            self.version += 1
        self.go_on(trial_id)

    def fail(self, trial_id: str) -> None:
        """A trial has failed for good."""
        if trial_id not in self._failed:
            self._failed[trial_id] = None
            self.version += 1

    def go_on(self, trial_id: str) -> None:
        """A trial that had failed has reported once more: it had not failed for good."""
        if trial_id in self._failed:
            del self._failed[trial_id]
            self.version += 1

    def evaluate(self, trial_id: str, loss: float) -> None:
        """A configuration was evaluated elsewhere, in full."""
        self._evaluated[trial_id] = loss
        self.version += 1

    def basis(self, enough: Enough) -> list[Observation] | None:
        """The observations on the largest budget that has enough of them, as they arrived; None: none has."""
        budgets = sorted(self._judged, reverse=True)
        for budget in budgets:
            losses = dict(self._evaluated) if budget == budgets[0] else {}
            losses |= self._judged[budget]
            for trial_id in self._failed:
                if self._furthest.get(trial_id, -math.inf) < budget:
                    losses[trial_id] = math.inf
            if enough(*_counts(losses)):
                return [Observation(*each) for each in losses.items()]
        return None if budgets else self._ended_basis(enough)

    def _ended_basis(self, enough: Enough) -> list[Observation] | None:
        """The longest trained, and as many of the others as it takes, the longer trained first."""
        losses = self._evaluated | dict.fromkeys(self._failed, math.inf)
        number, finite = _counts(losses)
        ended = {each: end for each, end in self._ended.items() if each not in losses}
        least = math.inf
        for at, loss in sorted(ended.values(), key=lambda end: -end[0]):
            if at < least and enough(number, finite):
                break
            least, number, finite = at, number + 1, finite + math.isfinite(loss)
        if not enough(number, finite):
            return None
        losses |= {each: loss for each, (at, loss) in ended.items() if at >= least}
        return [Observation(*each) for each in losses.items()]


def _counts(losses: Mapping[str, float]) -> tuple[int, int]:
    return len(losses), sum(map(math.isfinite, losses.values()))


class Knowledge:
    """Makes a model when it is asked for one, and not before: a replay asks for none.

    Args:
        columns: of the space.
        config: numbers of the model.
        seed: for what replaces parameters that are not active.
        observations: of the trials.

    Attributes:
        rows: of configurations, by trial.
    """

    def __init__(
        self, columns: Sequence[Column], config: BOHBConfig, seed: int, observations: Observations
    ) -> None:
        self.rows: dict[str, Floats] = {}
        self._observations = observations
        self._columns = columns
        self._config = config
        self._seed = seed
        self._made: tuple[int, Model | None] = (-1, None)
        """The last model, and of which version of the observations."""

    def model(self) -> Model | None:
        """The model of the largest budget that has enough observations; None: none has."""
        version, model = self._made
        if version != self._observations.version:
            model = self._model()
            self._made = (self._observations.version, model)
        return model

    def _model(self) -> Model | None:
        dimensions, config = len(self._columns), self._config
        found = self._observations.basis(
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
