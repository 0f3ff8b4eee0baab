"""The package bayesian-optimization as a searcher: a Gaussian process over what lies between bounds."""

from __future__ import annotations

import contextlib
import io
import math
import numbers
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.checks import checked_points, is_number, is_whole, require
from trainkit.tune.optional import load
from trainkit.tune.search.alternatives import alternatives, leaves_open
from trainkit.tune.search.bayesopt.space import bounds, in_model, of_model, searched_domains, space_of
from trainkit.tune.search.modelled import ModelledSearcher
from trainkit.tune.seeds import suggestion_generator, suggestion_words
from trainkit.tune.spaces.variants import Space
from trainkit.tune.values import lookup

_UTILITY = {"kind": "ucb", "kappa": 2.576, "xi": 0.0, "kappa_decay": 1.0, "kappa_decay_delay": 0}
_KINDS = ("ucb", "ei", "poi")


class BayesOptSearch(ModelledSearcher):
    """Suggest configurations by the package bayesian-optimization.

    Its model is a Gaussian process with a Matern 5/2 kernel, over real numbers: of a logarithmic domain the
    logarithms, whole numbers and steps are rounded to, and of a choice each value has a coordinate, of which
    the largest counts. Suggestion n draws with a generator that is made from the seed and
    n, from a model of all that is known then; trials that run count as the worst so far. NaN, infinite and
    failed results are left out. Trials that a scheduler has stopped or paused count by their last report.

    Args:
        space: bounds by name, as {"net/width": (0, 20)}, or domains as in `param_space`. None: `param_space`.
            With a space here, `param_space` may only hold constants, which every configuration gets.
        metric: what to optimise; None: as in the TuneConfig.
        mode: the same.
        points_to_evaluate: configurations, or parts of them, to try first; they count for `num_samples`.
        utility_kwargs: of the acquisition function: `kind`, "ucb", "ei" or "poi"; `kappa` standard deviations
            for the first, which shrink by `kappa_decay` with each suggestion after `kappa_decay_delay` of
            them; `xi`, the least improvement, for the others.
        random_state: seed of the searcher's.
        random_search_steps: suggestions that are drawn at random before the first of the model.
        verbose: 0 for silence; the package prints what it learns otherwise.
        patience: draws in a row that were tried before, after which the search ends.
        skip_duplicate: False tries a configuration again where it is suggested again.
        analysis: results to learn from: a `ResultGrid`, or a list of `Result`s.
        repeat_float_precision: digits after the point by which configurations are told apart.

    Raises:
        MissingDependencyError: bayesian-optimization is not installed.
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        utility_kwargs: Mapping[str, Any] | None = None,
        random_state: int = 42,
        random_search_steps: int = 10,
        verbose: int = 0,
        patience: int = 5,
        skip_duplicate: bool = True,
        analysis: Any = None,
        repeat_float_precision: int = 5,
    ) -> None:
        self._load()
        super().__init__(metric, mode)
        self._points = checked_points(points_to_evaluate)
        self._utility = _checked_utility(utility_kwargs or {})
        least = {"random_state": 0, "random_search_steps": 0, "verbose": 0, "patience": 1}
        least["repeat_float_precision"] = 0
        given = locals()
        for name, bound in least.items():
            require(
                is_whole(given[name]) and given[name] >= bound,
                f"{name}={given[name]!r}: give a whole number of {bound} or more",
            )
        self._space = space
        self._own = None if space is None else space_of(space)
        self._utility_kwargs = utility_kwargs
        self._random_state = random_state
        self._random_search_steps = random_search_steps
        self._verbose = verbose
        self._patience = patience
        self._skip_duplicate = bool(skip_duplicate)
        self._analysis = analysis
        self._precision = repeat_float_precision
        self._evaluated: list[tuple[dict[str, Any], float]] = []
        self._to_run: list[tuple[dict[str, Any], bool]] = []
        self._known: dict[str, tuple[dict[str, float], float | None]] = {}
        """By trial: where it is, and what it came to, more being better; None: it runs; NaN: it failed."""
        self._number = 0
        self._redraws = (-1, 0)
        """Of which suggestion how many tries were rejected."""
        self._drawn = True
        self._last: dict[str, float] = {}
        """By trial that has not ended: the metric, as reported last."""

    @staticmethod
    def _load() -> Any:
        return load("bayes_opt", "searches by BayesOptSearch", "bayesopt")

    @property
    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "space": self._space,
            "metric": self.metric,
            "mode": self.mode,
            "points_to_evaluate": self._points,
            "utility_kwargs": self._utility_kwargs,
            "random_state": self._random_state,
            "random_search_steps": self._random_search_steps,
            "verbose": self._verbose,
            "patience": self._patience,
            "skip_duplicate": self._skip_duplicate,
            "analysis": self._analysis,
            "repeat_float_precision": self._precision,
        }
        # Points told by add_evaluated_point no file holds: a restore then asks for the searcher.
        return {**given, "evaluated": self._evaluated} if self._evaluated else given

    # --- what is searched -------------------------------------------------------------------------

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        super().begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)
        require(
            self.metric is not None and self.mode is not None,
            "BayesOptSearch needs to know what to optimise: give metric and mode, in the TuneConfig or here",
        )
        self._searched = space if self._own is None else self._own
        self._domains = searched_domains(self._searched)
        for point in self._points:
            opened = leaves_open(self._searched, self._searched.preset(point))
            self._to_run.append((self._searched.point(point), opened))
        if self._analysis is not None:
            self.add_evaluated_trials(self._analysis, self.metric or "")
        for number, (point, value) in enumerate(self._evaluated):
            place = self._place(point)
            if place is None:
                raise ConfigError(
                    f"the evaluated point {point!r} is no configuration of the search space: give every "
                    "parameter, with a value that it may have"
                )
            self._known[f"evaluated {number}"] = place, None
            self._tell(f"evaluated {number}", value)

    def _place(self, config: Mapping[str, Any]) -> dict[str, float] | None:
        """Where a configuration is, in the model's coordinates; None: outside the space."""
        try:
            values = self._searched.choices(config)
        except SpaceError:
            return None
        return self._in_model(values)

    def _in_model(self, values: Mapping[str, Any]) -> dict[str, float]:
        places = (in_model(name, self._domains[name], value) for name, value in values.items())
        return {coordinate: number for place in places for coordinate, number in place.items()}

    # --- suggestions ------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        n = self._number
        fixed, self._drawn = self._to_run[n] if n < len(self._to_run) else ({}, True)
        rejected = self._redraws[1] if self._redraws[0] == n else 0
        # What the model suggests again it may do for ever: it has found the best, as far as it can see.
        for again in range(self._patience):
            redraw = rejected * self._patience + again
            place = self._suggested(n, redraw) | self._in_model(fixed)
            values = {name: of_model(name, domain, place) for name, domain in self._domains.items()}
            config = self._configuration({**values, **fixed}, n, redraw)
            place = self._place(config) or place  # as a restore will find it
            if self._drawn and self._skip_duplicate and self._was_tried(place):
                if self._searched.cardinality() is None:
                    continue
                rest = self._untried(n, redraw)
                if rest is None:
                    break
                config, place = rest
            self._known[trial_id] = place, None
            self._number += 1
            return config
        return self.FINISHED

    def _untried(self, n: int, redraw: int) -> tuple[dict[str, Any], dict[str, float]] | None:
        """One of the configurations that are left of finitely many, with its place; None: there is none."""
        for config in alternatives(self._searched, suggestion_generator(self._random_state, n, redraw)):
            place = self._place(config)
            if place is not None and not self._was_tried(place):
                return config, place
        return None

    def _configuration(self, values: Mapping[str, Any], n: int, redraw: int) -> dict[str, Any]:
        rng = suggestion_generator(self._random_state, n, redraw)
        return self._searched.walk(lambda name, domain: values[name], rng)

    def _suggested(self, n: int, redraw: int) -> dict[str, float]:
        """The place of suggestion n, by the package; of a new model each time, so nothing is carried over."""
        if not self._domains:
            return {}
        module = self._load()
        kind, xi = self._utility["kind"], self._utility["xi"]
        decays = max(0, n - self._utility["kappa_decay_delay"])
        kappa = self._utility["kappa"] * self._utility["kappa_decay"] ** decays
        acquisition = {
            "ucb": lambda: module.acquisition.UpperConfidenceBound(kappa=kappa),
            "ei": lambda: module.acquisition.ExpectedImprovement(xi=xi),
            "poi": lambda: module.acquisition.ProbabilityOfImprovement(xi=xi),
        }[kind]()
        model = module.BayesianOptimization(
            f=None,
            pbounds={
                coordinate: each
                for name, domain in self._domains.items()
                for coordinate, each in bounds(name, domain).items()
            },
            acquisition_function=acquisition,
            random_state=suggestion_words(self._random_state, n, redraw, 1)[0],
            verbose=self._verbose,
            allow_duplicate_points=True,
        )
        told = [value for _, value in self._known.values() if value is not None and not math.isnan(value)]
        if n >= self._random_search_steps and told:
            # The package prints each place that comes twice, however silent it was asked to be.
            silence = contextlib.nullcontext() if self._verbose else contextlib.redirect_stdout(io.StringIO())
            # Of small matrices: more threads take the CPUs of the trials, and are slower.
            with silence, warnings.catch_warnings(), threadpool_limits(1):
                warnings.simplefilter("ignore")  # of scikit-learn's, on kernels at the end of their bounds
                for place, value in self._known.values():
                    if value is None:  # it runs: as if nothing good were there, so that others go elsewhere
                        model.register(place, min(told))
                    elif not math.isnan(value):
                        model.register(place, value)
                suggested = model.suggest()
        else:
            suggested = model.random_sample()[0]
        return {name: float(value) for name, value in suggested.items()}

    def _was_tried(self, place: Mapping[str, float]) -> bool:
        mark = self._mark(place)
        return any(mark == self._mark(other) for other, _ in self._known.values())

    def _mark(self, place: Mapping[str, float]) -> list[tuple[str, float]]:
        return sorted((name, round(value, self._precision)) for name, value in place.items())

    def is_drawn(self, trial_id: str) -> bool:
        return self._drawn and self._skip_duplicate

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        del self._known[trial_id]
        self._number -= 1
        self._redraws = (self._number, self._redraws[1] + 1 if self._redraws[0] == self._number else 1)

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]]:
        rng = suggestion_generator(self._random_state, self._number, self._redraws[1])
        return alternatives(self._searched, rng) if self._space is None else iter(())

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        place = self._place(config)
        if place is not None:
            self._known[trial_id] = place, None
            self._number += 1
        return place is not None

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        if not self.take(trial_id, config):
            if same_space:
                return None
            self._number += 1  # it says nothing of the new space
        return config

    # --- results ----------------------------------------------------------------------------------

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        value = lookup(result, self.metric or "")
        if trial_id in self._known and is_number(value):
            self._last[trial_id] = float(value)

    def on_pause(self, trial_id: str) -> None:
        if trial_id in self._last:
            self._tell(trial_id, self._last[trial_id])

    def on_unpause(self, trial_id: str) -> None:
        if trial_id in self._last:
            self._known[trial_id] = self._known[trial_id][0], None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._last.pop(trial_id, None)
        value = lookup(result or {}, self.metric or "")
        self._tell(trial_id, float(value) if not error and is_number(value) else math.nan)

    def _tell(self, trial_id: str, value: float) -> None:
        if trial_id not in self._known:
            return  # of before a change of the space
        place, _ = self._known[trial_id]
        better = value if self.mode == "max" else -value
        self._known[trial_id] = place, better if math.isfinite(value) else math.nan

    # --- what is known from elsewhere -------------------------------------------------------------

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        require(
            error or isinstance(value, numbers.Real),
            f"add_evaluated_point({parameters!r}, {value!r}): give the value of the metric, a number",
        )
        self._evaluated.append((dict(parameters), math.nan if error else float(value)))


# --- domains --------------------------------------------------------------------------------------


def _checked_utility(given: Mapping[str, Any]) -> dict[str, Any]:
    require(
        isinstance(given, Mapping) and given.keys() <= _UTILITY.keys(),
        f"utility_kwargs={given!r}: it may have {', '.join(_UTILITY)}",
    )
    utility = {**_UTILITY, **given}
    require(
        utility["kind"] in _KINDS, f"utility_kwargs: kind={utility['kind']!r} is none of {', '.join(_KINDS)}"
    )
    for name in ("kappa", "xi", "kappa_decay", "kappa_decay_delay"):
        value = utility[name]
        require(
            is_number(value) and 0 <= value < math.inf,
            f"utility_kwargs: {name}={value!r}: give a number of 0 or more",
        )
    return utility
