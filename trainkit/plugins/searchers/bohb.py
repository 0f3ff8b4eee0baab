"""BOHB's searcher, and the results of trials by budget that its models use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.errors import ConfigError
from trainkit.plugins.searchers.bohb_model import BOHBConfig, Encoding, Model
from trainkit.tune.core.checks import is_number, require_whole
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.seeds import model_generator, suggestion_generator
from trainkit.tune.schedulers.base import Decision, score_of
from trainkit.tune.search.base import Evaluated
from trainkit.tune.search.model_based import ModelBasedSearcher
from trainkit.tune.space.search_space import Path, Space

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.plugins.searchers.bohb_model import Column, Floats

Enough = Callable[[int, int], bool]
"""Function that returns True if the numbers of observations and of finite losses suffice for a model."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The loss of a trial; smaller losses are better, and infinity is the worst loss."""

    trial_id: str
    loss: float


def budget_of(reason: Mapping[str, Any]) -> float | None:
    """Return the budget of a scheduler's decision from its reason; None: the reason has no budget.

    The budget is the index of the level among the levels of all brackets. If the reason does not contain this
    index, the budget is the level itself.
    """
    for name in ("budget", "rung", "max_t"):
        if name in reason:
            return float(reason[name])
    return None


class Observations:
    """A collection of losses by budget.

    A trial is observed at each budget at which the scheduler judges the trial. If the scheduler judges no
    trial (as with FIFO), each trial is observed at its end. The budget of a trial is then its last training
    iteration, and the trial is compared with all trials that were trained at least as long. A failed trial
    has the worst loss at every budget that the trial did not reach. A configuration evaluated elsewhere
    counts as observed at the largest budget.
    """

    def __init__(self) -> None:
        self._judged: dict[float, dict[str, float]] = {}
        self._furthest: dict[str, float] = {}
        """Largest budget at which each trial was judged."""
        self._ended: dict[str, tuple[float, float]] = {}
        """Iteration and loss of each trial that has ended."""
        self._failed: dict[str, None] = {}
        self._evaluated: dict[str, float] = {}
        self.version = 0
        """Counter that grows with every change."""

    def judge(self, trial_id: str, budget: float, loss: float) -> None:
        """Record a trial's loss at a budget, unless the trial already has a loss at this budget."""
        losses = self._judged.setdefault(budget, {})
        if trial_id not in losses:
            losses[trial_id] = loss
            self._furthest[trial_id] = max(budget, self._furthest.get(trial_id, -math.inf))
            self.version += 1

    def end(self, trial_id: str, iteration: float, loss: float) -> None:
        """Record the end of a trial with this loss; it replaces an earlier end of the same trial."""
        if self._ended.get(trial_id) != (iteration, loss):
            self._ended[trial_id] = (iteration, loss)
            self.version += 1
        self.go_on(trial_id)

    def fail(self, trial_id: str) -> None:
        """Record a trial's final failure."""
        if trial_id not in self._failed:
            self._failed[trial_id] = None
            self.version += 1

    def go_on(self, trial_id: str) -> None:
        """Delete the recorded failure of a trial, because the trial has reported again."""
        if trial_id in self._failed:
            del self._failed[trial_id]
            self.version += 1

    def evaluate(self, trial_id: str, loss: float) -> None:
        """Record a configuration that was evaluated elsewhere with the full budget."""
        self._evaluated[trial_id] = loss
        self.version += 1

    def basis(self, enough: Enough) -> list[Observation] | None:
        """Return the observations at the largest budget that has enough observations for a model; else
        None.
        """
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
        """Return the observations of the trials that were trained longest, but only as many observations as a
        model needs.
        """
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
    """Cache of the model of the current observations; built only on request, because a replay needs no model.

    Args:
        columns: columns of the encoded space.
        config: settings of the model.
        seed: seed for values that replace inactive parameters.
        observations: observations of all trials.

    Attributes:
        rows: encoded configuration of each trial.
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
        """The last model, and the version of the observations that it was built from."""

    def model(self) -> Model | None:
        """Return the model of the largest budget with enough observations; None if no budget has enough
        observations.
        """
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
        losses = [each.loss for each in found or ()]
        sizes = config.split_sizes(len(losses), sum(map(math.isfinite, losses)), dimensions)
        if not dimensions or found is None or sizes is None:
            return None
        rows = np.stack([self.rows[each.trial_id] for each in found])
        # The seed depends on the number of observations, not on the number of suggestions, so that a restored
        # searcher builds the same model.
        rng = model_generator(self._seed, len(losses))
        return Model(rows, losses, self._columns, config, sizes, rng)


class TuneBOHB(ModelBasedSearcher[Encoding]):
    """Searcher with BOHB's model, which uses the results on the largest budget that has enough results.

    With probability 1/3, a configuration is drawn at random. All other configurations come from the model of
    the largest budget that has at least d + 3 observations, for d parameters. The observations at this budget
    are split into a good group, the best 15 % (at least d + 1), and a bad group, and a kernel density is
    estimated for each group. The searcher draws 64 candidates near good configurations, and suggests the
    candidate with the largest ratio of good to bad density. A budget is a level at which the scheduler judges
    trials. The result of a trial at a level counts once, whatever the scheduler decides about the trial.
    `HyperBandForBOHB` is made for this searcher; `ASHAScheduler` also works. If the scheduler judges at no
    level (as with FIFO), trials are observed at their end. NaN, infinite values and failures count as the
    worst result.

    Source: Falkner, Klein, Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML
    2018, arXiv:1807.01774, Algorithm 2.

    Args:
        space: dictionary with domains, as in `param_space`; None: `param_space` is searched. If `space` is
            given, `param_space` may contain only constants, which are added to every configuration.
        bohb_config: settings of the model, with HpBandSter's names: `min_points_in_model` (None, d + 1),
            `top_n_percent` (15), `num_samples` (64), `random_fraction` (1/3), `bandwidth_factor` (3),
            `min_bandwidth` (0.05; HpBandSter has 1e-3, which narrows a search too early); and
            `split`, "paper" or "hpbandster".
        metric: metric to optimise; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
        points_to_evaluate: complete or partial configurations to try first; they count toward `num_samples`,
            and missing values are drawn.
        seed: seed of all draws; None: the TuneConfig's seed.
        max_concurrent: maximum number of running trials, without paused trials; 0: as many as the resources
            allow.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        bohb_config: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        max_concurrent: int = 0,
    ) -> None:
        if space is not None and not isinstance(space, Mapping):
            raise ConfigError(
                "space must be a dictionary of tune's domains, such as {'lr': tune.loguniform(1e-4, 1), "
                "'momentum': tune.when({'optimizer': 'sgd'}, tune.uniform(0, 1))}, not "
                f"{space!r}: TuneBOHB does not support ConfigurationSpace"
            )
        require_whole("max_concurrent", max_concurrent, 0, "1 or more, or 0 for as many as fit")
        super().__init__(space, metric, mode, points_to_evaluate, seed)
        self._config = BOHBConfig.of(bohb_config)
        self._given_config = None if bohb_config is None else dict(bohb_config)
        self._max_concurrent = int(max_concurrent)
        self._running: set[str] = set()

    @property
    def arguments(self) -> dict[str, Any]:
        own = {"bohb_config": self._given_config, "max_concurrent": self._max_concurrent}
        return {**super().arguments, **own}

    def _form_of(self, space: Any, *, own: bool) -> Encoding:
        return Encoding(Space.of(space) if own else space, own=own)

    def _begin_model(self, form: Encoding) -> None:
        # Trials whose configuration is outside the space have no row, so the model does not use their
        # results.
        self._observations = Observations()
        self._known = Knowledge(form.columns, self._config, self._base, self._observations)

    # --- suggestions ------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._max_concurrent > 0 and len(self._running) >= self._max_concurrent:
            return None
        return super().suggest(trial_id)

    def _suggested(self, trial_id: str, fixed: dict[Path, Any] | None) -> dict[str, Any]:
        rng = suggestion_generator(self._base, self._number, self._redraws)
        space = self.form.declared
        config = self._proposed(rng) if fixed is None else space.configuration(0, rng, fixed)
        self._note(trial_id, self.form.row(config))
        return config

    def _proposed(self, rng: Generator) -> dict[str, Any]:
        space = self.form.declared
        if rng.random() < self._config.random_fraction or (model := self._known.model()) is None:
            return space.configuration(0, rng)
        for candidate in model.ranked(self.form.snapped(model.candidates(rng))):
            config = self.form.config(candidate, rng)
            if space.forbidden_by(config) is None:
                return config
        return space.configuration(0, rng)

    def _note(self, trial_id: str, known: Floats) -> None:
        self._known.rows[trial_id] = known
        self._running.add(trial_id)

    def _forget(self, trial_id: str, result: dict[str, Any] | None) -> None:
        # `result` is not recorded, because it belongs to an earlier trial with the same configuration, whose
        # result is already recorded.
        del self._known.rows[trial_id]
        self._running.discard(trial_id)

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        replayed = super().replay(trial_id, config, same_space=same_space)
        if replayed is not None:
            self._running.add(trial_id)  # a trial from a different space also counts as running
        return replayed

    # --- results ----------------------------------------------------------------------------------

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._observations.go_on(trial_id)

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        budget, loss = budget_of(decision.reason), self._loss(result)
        if budget is not None and loss is not None and trial_id in self._known.rows:
            self._observations.judge(trial_id, budget, loss)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._running.discard(trial_id)
        if trial_id not in self._known.rows:
            return
        if error:
            self._observations.fail(trial_id)
        elif (loss := self._loss(result or {})) is not None:
            iteration = lookup(result or {}, "training_iteration")
            time = float(iteration) if is_number(iteration) else 0.0
            self._observations.end(trial_id, time, loss)

    def _loss(self, result: Mapping[str, Any]) -> float | None:
        """Return the loss, smaller is better; infinity for NaN and infinities, None for a missing metric."""
        value = lookup(result, self.metric or "")
        return -score_of(value, self.mode) if is_number(value) else None

    def on_pause(self, trial_id: str) -> None:
        self._running.discard(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self._running.add(trial_id)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        self._max_concurrent = 0  # only the outer ConcurrencyLimiter limits the number of trials, as in Ray
        return False

    # --- results from elsewhere -------------------------------------------------------------------

    def _learn(self, name: str, known: Floats, evaluated: Evaluated) -> None:
        value = math.nan if evaluated.error or evaluated.pruned else evaluated.value
        self._known.rows[name] = known
        self._observations.evaluate(name, -score_of(value, self.mode))
