"""BOHB's searcher."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import is_number, is_whole, require
from trainkit.tune.core.seeds import suggestion_generator
from trainkit.tune.core.values import lookup
from trainkit.tune.schedulers.base import Decision, score_of
from trainkit.tune.search.base import Evaluated
from trainkit.tune.search.bohb.model import BOHBConfig, Encoding
from trainkit.tune.search.bohb.observations import Knowledge, Observations, budget_of
from trainkit.tune.search.modelled import ModelledSearcher
from trainkit.tune.space.search_space import Path, Space

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.search.bohb.model import Floats


class TuneBOHB(ModelledSearcher[Encoding]):
    """Suggest configurations by BOHB's model, from what trials came to on the largest budget known enough.

    With probability 1/3 a configuration is random. Otherwise the observations of the largest budget that has
    at least d + 3, for d parameters, are split into the best 15 %, d + 1 at least, and the others. A kernel
    density is put over either part, and of 64 candidates near good configurations the one is suggested whose
    densities have the largest ratio of good to bad.

    A budget is a level at which the scheduler judges trials; every such result counts once, whatever is
    decided on the trial. `HyperBandForBOHB` is made for it, `ASHAScheduler` serves too. Where the scheduler
    judges at no level, as FIFO, trials are observed at their end. NaN, infinite values and failures are worst
    of all.

    Source: Falkner, Klein, Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML
    2018, arXiv:1807.01774, Algorithm 2.

    Args:
        space: domains as in `param_space`; None: `param_space`. With a space here, `param_space` may only
            hold constants, which every configuration gets.
        bohb_config: numbers of the model, by HpBandSter's names: `min_points_in_model` (None, d + 1),
            `top_n_percent` (15), `num_samples` (64), `random_fraction` (1/3), `bandwidth_factor` (3),
            `min_bandwidth` (0.05, where HpBandSter has 1e-3, with which a search narrows too early); and
            `split`, "paper" or "hpbandster".
        metric: what to optimise; None: as in the TuneConfig.
        mode: the same.
        points_to_evaluate: configurations, or parts of them, to try first; they count for `num_samples`, and
            what they leave open is drawn.
        seed: None: the TuneConfig's.
        max_concurrent: trials at once, paused ones not counted; 0: as many as fit.

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
                f"space={space!r}: TuneBOHB takes no ConfigurationSpace; give tune's domains by name, such "
                "as {'lr': tune.loguniform(1e-4, 1), 'momentum': tune.when({'optimizer': 'sgd'}, "
                "tune.uniform(0, 1))}"
            )
        require(
            is_whole(max_concurrent) and max_concurrent >= 0,
            f"max_concurrent={max_concurrent!r}: give 1 or more, or 0 for as many as fit",
        )
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
        # Trials that are none of the space have no row in it, and nothing to tell about it.
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
        # What is known of the configuration is known by the trial that had it.
        del self._known.rows[trial_id]
        self._running.discard(trial_id)

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        replayed = super().replay(trial_id, config, same_space=same_space)
        if replayed is not None:
            self._running.add(trial_id)  # one of another space too
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
        """Less is better; NaN and infinities of either sign are worst; None: the metric is missing."""
        value = lookup(result, self.metric or "")
        return -score_of(value, self.mode) if is_number(value) else None

    def on_pause(self, trial_id: str) -> None:
        self._running.discard(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self._running.add(trial_id)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        self._max_concurrent = 0  # the one around limits instead, as in Ray
        return False

    # --- what is known from elsewhere -------------------------------------------------------------

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        """Tell of a configuration that was evaluated elsewhere, in full; call it before the search begins.

        Its value counts on the largest budget. One that failed or was pruned counts as worst there, and
        intermediate values are not looked at: of which budget they are is not known.
        """
        super().add_evaluated_point(parameters, value, error, pruned, intermediate_values)

    def _learn(self, name: str, known: Floats, evaluated: Evaluated) -> None:
        value = math.nan if evaluated.error or evaluated.pruned else evaluated.value
        self._known.rows[name] = known
        self._observations.evaluate(name, -score_of(value, self.mode))
