"""BOHB's searcher: configurations that are likely among good ones and unlikely among bad ones."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.checks import checked_points, is_number, is_whole, require
from trainkit.tune.schedulers.base import Decision, score_of
from trainkit.tune.search.alternatives import alternatives, leaves_open
from trainkit.tune.search.bohb.encoding import Encoding
from trainkit.tune.search.bohb.knowledge import Knowledge
from trainkit.tune.search.bohb.model import BOHBConfig
from trainkit.tune.search.bohb.observations import budget_of
from trainkit.tune.search.modelled import ModelledSearcher
from trainkit.tune.seeds import suggestion_generator
from trainkit.tune.spaces.variants import Path, Space
from trainkit.tune.values import lookup

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.search.bohb.kde import Floats


class TuneBOHB(ModelledSearcher):
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
        for name, value in (("metric", metric), ("mode", mode)):
            require(
                value is None or isinstance(value, str), f"{name}={value!r}: TuneBOHB optimises one metric"
            )
        super().__init__(metric, mode)
        if space is not None and not isinstance(space, Mapping):
            raise ConfigError(
                f"space={space!r}: TuneBOHB takes no ConfigurationSpace; give tune's domains by name, such "
                "as {'lr': tune.loguniform(1e-4, 1), 'momentum': tune.when({'optimizer': 'sgd'}, "
                "tune.uniform(0, 1))}"
            )
        require(
            seed is None or (is_whole(seed) and seed >= 0), f"seed={seed!r}: give a whole number of 0 or more"
        )
        require(
            is_whole(max_concurrent),
            f"max_concurrent={max_concurrent!r}: give 1 or more, or 0 for as many as fit",
        )
        self._config = BOHBConfig.of(bohb_config)
        self._given_config = None if bohb_config is None else dict(bohb_config)
        self._space = space
        self._searched = Space.of(space)
        self._points = checked_points(points_to_evaluate)
        self._seed = seed
        self._max_concurrent = int(max_concurrent)
        self._evaluated: list[_Evaluated] = []
        self._presets: list[dict[Path, Any]] = []
        self._number = 0
        self._rejected = (-1, 0)
        """Of which suggestion how many tries were rejected."""
        self._drawn = True
        self._running: set[str] = set()

    @property
    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "space": self._space,
            "bohb_config": self._given_config,
            "metric": self.metric,
            "mode": self.mode,
            "points_to_evaluate": self._points,
            "seed": self._seed,
            "max_concurrent": self._max_concurrent,
        }
        # Points told by add_evaluated_point no file holds: a restore then asks for the searcher.
        return {**given, "evaluated": self._evaluated} if self._evaluated else given

    def __deepcopy__(self, memo: dict[int, Any]) -> TuneBOHB:
        twin = copy.copy(self)
        memo[id(self)] = twin
        for fixed in (self._space, self._searched):
            memo[id(fixed)] = fixed
        vars(twin).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return twin

    # --- what is searched -------------------------------------------------------------------------

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        super().begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)
        require(
            isinstance(self.metric, str) and isinstance(self.mode, str),
            "TuneBOHB needs to know what to optimise: give one metric and its mode, in the TuneConfig or "
            "here",
        )
        if self._space is None:
            self._searched = space
        self._encoding = Encoding(self._searched)
        self._base = seed if self._seed is None else self._seed
        # Trials that are none of the space have no row in it, and nothing to tell about it.
        self._known = Knowledge(self._encoding.columns, self._config, self._base)
        for point in self._points:
            self._searched.point(point)  # raises for a value that the model could not know
        self._presets = [self._searched.preset(point) for point in self._points]
        for number, each in enumerate(self._evaluated):
            self._learn(f"evaluated {number}", each)

    # --- suggestions ------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._max_concurrent > 0 and len(self._running) >= self._max_concurrent:
            return None
        n = self._number
        rng = suggestion_generator(self._base, n, self._redraws)
        preset = self._presets[n] if n < len(self._presets) else None
        self._drawn = preset is None or leaves_open(self._searched, preset)
        config = self._proposed(rng) if preset is None else self._searched.configuration(0, rng, preset)
        self._note(trial_id, self._encoding.row(config))
        return config

    def _proposed(self, rng: Generator) -> dict[str, Any]:
        if rng.random() < self._config.random_fraction or (model := self._known.model()) is None:
            return self._searched.configuration(0, rng)
        ranked = model.ranked(self._encoding.snapped(model.candidates(rng)))
        for candidate in ranked:
            config = self._encoding.config(candidate, rng)
            if self._searched.forbidden_by(config) is None:
                return config
        return self._searched.configuration(0, rng)

    @property
    def _redraws(self) -> int:
        return self._rejected[1] if self._rejected[0] == self._number else 0

    def _note(self, trial_id: str, row: Floats) -> None:
        self._known.rows[trial_id] = row
        self._running.add(trial_id)
        self._number += 1

    def is_drawn(self, trial_id: str) -> bool:
        return self._drawn

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        # What is known of the configuration is known by the trial that had it.
        del self._known.rows[trial_id]
        self._running.discard(trial_id)
        self._number -= 1
        self._rejected = (self._number, self._redraws + 1)

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]]:
        return alternatives(self._searched, suggestion_generator(self._base, self._number, self._redraws))

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        row = self._row_of(config)
        if row is not None:
            self._note(trial_id, row)
        return row is not None

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        if self.take(trial_id, config):
            return config
        if same_space:
            return None
        self._running.add(trial_id)
        self._number += 1
        return config

    def _row_of(self, config: Mapping[str, Any]) -> Floats | None:
        """The row of a configuration, which may have constants besides; None: it is none of the space."""
        if not self.whole:
            config = {key: value for key, value in config.items() if key in self._searched.tree}
        try:
            return self._encoding.row(config)
        except SpaceError:  # of another space, or with an object that the store has not kept
            return None

    # --- results ----------------------------------------------------------------------------------

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._known.observations.go_on(trial_id)

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        budget, loss = budget_of(decision.reason), self._loss(result)
        if budget is not None and loss is not None and trial_id in self._known.rows:
            self._known.observations.judge(trial_id, budget, loss)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._running.discard(trial_id)
        if trial_id not in self._known.rows:
            return
        if error:
            self._known.observations.fail(trial_id)
        elif (loss := self._loss(result or {})) is not None:
            iteration = lookup(result or {}, "training_iteration")
            time = float(iteration) if is_number(iteration) else 0.0
            self._known.observations.end(trial_id, time, loss)

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
        require(
            error or pruned or isinstance(value, numbers.Real),
            f"add_evaluated_point({parameters!r}, {value!r}): give the value of the metric, a number",
        )
        self._evaluated.append(_Evaluated(dict(parameters), math.nan if error or pruned else float(value)))

    def _learn(self, name: str, evaluated: _Evaluated) -> None:
        row = self._row_of(evaluated.parameters)
        if row is None:
            raise ConfigError(
                f"the evaluated point {evaluated.parameters!r} is no configuration of the search space: give "
                "every parameter, with a value that it may have"
            )
        self._known.rows[name] = row
        self._known.observations.evaluate(name, -score_of(evaluated.value, self.mode))


@dataclass(frozen=True)
class _Evaluated:
    """A configuration and what it came to; NaN: nothing good."""

    parameters: dict[str, Any]
    value: float
