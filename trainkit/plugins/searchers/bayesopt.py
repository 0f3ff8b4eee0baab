"""Searcher that uses the package bayesian-optimization: a Gaussian process over bounded parameters."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import (
    is_number,
    load,
    require,
    require_number,
    require_one_of,
    require_whole,
)
from trainkit.tune.core.metrics import flatten
from trainkit.tune.core.seeds import suggestion_generator, suggestion_words
from trainkit.tune.search.base import Evaluated, evaluated_of
from trainkit.tune.search.encoded_space import Declared
from trainkit.tune.search.model_based import RefittedSearcher
from trainkit.tune.space.configurations import nested
from trainkit.tune.space.domains import Domain, Float, Normal
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.transforms import ChoiceCode, RealCode, StepCode, code_of

if TYPE_CHECKING:
    from numpy.random import Generator


Place = dict[str, float]
"""Coordinates of a configuration in the model, by name; most parameters have a single coordinate."""


def space_of(space: Any) -> Space:
    """Return the search space for `space`, which contains domains, or a pair of bounds for each name.

    Raises:
        ConfigError: `space` contains neither bounds nor domains.
    """
    require(
        isinstance(space, Mapping) and bool(space),
        f"space={space!r}: give bounds by name, such as {{'x': (0, 1)}}, or domains",
    )
    tree = {}
    for name, value in flatten(space).items():
        is_range = isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_number, value))
        tree[name] = Float(float(value[0]), float(value[1])) if is_range else value
    return Space.of(nested(tree))


# The model receives the position of the value that the trial uses, after any rounding. Source:
# Garrido-Merchán, Hernández-Lobato, "Dealing with categorical and integer-valued variables in Bayesian
# optimization with Gaussian processes", Neurocomputing 380 (2020), arXiv:1805.03463.


class Coordinates:
    """Coordinates of one parameter in the model.

    A real number has one coordinate: its value, or its logarithm if the domain is logarithmic. The values of
    a quantized domain are mapped to steps between 0 and 1, and coordinates are rounded to the steps. A list
    of values has one coordinate for each value; the value with the largest coordinate is used.

    Attributes:
        bounds: limits of each coordinate.
    """

    def __init__(self, name: str, domain: Domain) -> None:
        if isinstance(domain, Normal):
            raise ConfigError(
                f"{name}: BayesOptSearch supports bounds and lists, such as tune.uniform, "
                f"tune.randint and tune.choice, not {domain}; use OptunaSearch for other domains"
            )
        self._name, self.code = name, code_of(name, domain, "BayesOptSearch")
        self.bounds: dict[str, tuple[float, float]] = {name: (0.0, 1.0)}
        if isinstance(self.code, ChoiceCode):
            self.bounds = {f"{name}[{place}]": (0.0, 1.0) for place in range(len(self.code.categories))}
        elif isinstance(self.code, RealCode):
            low, high = self.code.ends
            self.bounds = {name: (math.log(low), math.log(high)) if self.code.log else (low, high)}

    def encode(self, value: Any) -> Place:
        """Convert a value of the domain to coordinates."""
        code = self.code
        if isinstance(code, ChoiceCode):
            chosen = code.encode(value)
            return {each: float(place == chosen) for place, each in enumerate(self.bounds)}
        if isinstance(code, RealCode):
            number = math.log(value) if code.log else float(value)
        else:
            number = code.to_unit(value)
        low, high = self.bounds[self._name]
        return {self._name: min(max(number, low), high)}

    def decode(self, place: Place) -> Any:
        """Convert coordinates to a value of the domain."""
        code = self.code
        if isinstance(code, ChoiceCode):
            numbers = [place[each] for each in self.bounds]
            return code.decode(numbers.index(max(numbers)))
        number = place[self._name]
        if isinstance(code, RealCode):
            return code.decode(math.exp(number) if code.log else number)
        return code.from_unit(number)


class Box(Declared[Coordinates]):
    """Search space in which all parameters are bounded numbers or lists of values, without conditions.

    Raises:
        ConfigError: a parameter has no bounds, or is conditional.
    """

    def __init__(self, space: Space, *, own: bool) -> None:
        super().__init__(space, Coordinates, searcher="BayesOptSearch", own=own)
        for each in space.parameters:
            if each.is_conditional:
                raise ConfigError(
                    f"{each.name}: BayesOptSearch needs the same parameters in every trial, but this "
                    "parameter has a condition; use OptunaSearch"
                )

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Limits of all coordinates of the model."""
        return {name: each for code in self.codes.values() for name, each in code.bounds.items()}

    def encoded(self, values: Mapping[str, Any]) -> Place:
        return {name: each for code in super().encoded(values).values() for name, each in code.items()}

    def mark(self, place: Place, digits: int) -> list[list[float]]:
        """Return a key to compare coordinates: quantized values, or numbers rounded to `digits`."""
        return [
            [code.decode(place)]
            if isinstance(code.code, StepCode)
            else [round(place[each], digits) for each in code.bounds]
            for code in self.codes.values()
        ]

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        _, open_ = super().fixed(point)
        # The value that the user gave is used unchanged, because encoding may change a value: exp(log(x)) may
        # differ from x.
        return self.declared.point(point), open_

    def configuration(self, place: Place, fixed: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """Convert coordinates to a configuration with the values in `fixed`; `sample_from` uses `rng`."""

        def ask(name: str, domain: Domain) -> Any:
            return fixed[name] if name in fixed else self.codes[name].decode(place)

        return self.declared.walk(ask, rng)


_UTILITY = {"kind": "ucb", "kappa": 2.576, "xi": 0.0, "kappa_decay": 1.0, "kappa_decay_delay": 0}
_KINDS = ("ucb", "ei", "poi")


class _AllTried(str):
    """`Searcher.FINISHED`, with text for a message that says how to continue the search."""

    __slots__ = ()
    how_to_repeat = " that was not tried; its skip_duplicate=False tries some again"


class BayesOptSearch(RefittedSearcher[Box]):
    """Search with the package bayesian-optimization.

    The model is a Gaussian process with a Matern 5/2 kernel over real numbers. Parameters with logarithmic
    domains are represented by their logarithms. Values of integer and quantized domains are rounded. A list
    of values has one coordinate for each value; the value with the largest coordinate is used. Suggestion n
    uses a random generator made from the seed and n, and a model of all results known at that time. Running
    trials count as the worst result so far. Results that are NaN or infinite, and results of failed trials,
    are left out. If a scheduler stops or pauses a trial, its last report is its result.

    Args:
        space: bounds for each name, such as {"net/width": (0, 20)}, or domains as in `param_space`. None:
            `param_space`. If `space` is given, `param_space` may contain only constants, which are added to
            every configuration.
        metric: name of the reported value to optimise; None: the metric of the TuneConfig.
        mode: "min" or "max"; None: the mode of the TuneConfig.
        points_to_evaluate: complete or partial configurations to try first; they count towards `num_samples`.
        utility_kwargs: settings of the acquisition function. `kind`: "ucb", "ei" or "poi". `kappa`: number of
            standard deviations for "ucb"; after `kappa_decay_delay` suggestions, it is multiplied by
            `kappa_decay` at each suggestion. `xi`: minimum improvement for "ei" and "poi".
        random_state: seed of the random numbers; None: the seed of the TuneConfig.
        random_search_steps: number of random suggestions before the model makes its first suggestion.
        verbose: 0: no output; above 0: the package prints its progress.
        patience: number of repeated suggestions in a row after which the search ends.
        skip_duplicate: True: a configuration is tried only once. False: a configuration that is suggested
            again is tried again.
        analysis: results to learn from: a `ResultGrid`, or a list of `Result`s.
        repeat_float_precision: number of decimals to which real numbers (in logarithmic domains, their
            logarithms) are rounded when configurations are compared.

    Raises:
        MissingDependencyError: bayesian-optimization is not installed.
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        utility_kwargs: Mapping[str, Any] | None = None,
        random_state: int | None = 42,
        random_search_steps: int = 10,
        verbose: int = 0,
        patience: int = 5,
        skip_duplicate: bool = True,
        analysis: Any = None,
        repeat_float_precision: int = 5,
    ) -> None:
        self._load()
        least = {"random_search_steps": 0, "verbose": 0, "patience": 1, "repeat_float_precision": 0}
        given = locals()
        for name, bound in least.items():
            require_whole(name, given[name], bound)
        super().__init__(space, metric, mode, points_to_evaluate, random_state, "random_state")
        self._utility = _checked_utility(utility_kwargs or {})
        self._utility_kwargs = utility_kwargs
        self._random_search_steps = random_search_steps
        self._verbose = verbose
        self._patience = patience
        self._skip_duplicate = bool(skip_duplicate)
        self._analysis = analysis
        self._precision = repeat_float_precision
        self._from_analysis: list[Evaluated] = []

    @staticmethod
    def _load() -> Any:
        return load("bayes_opt", "searches by BayesOptSearch", "bayesopt")

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            **super().arguments,
            "utility_kwargs": self._utility_kwargs,
            "random_search_steps": self._random_search_steps,
            "verbose": self._verbose,
            "patience": self._patience,
            "skip_duplicate": self._skip_duplicate,
            "analysis": self._analysis,
            "repeat_float_precision": self._precision,
        }

    def _form_of(self, space: Any, *, own: bool) -> Box:
        return Box(space_of(space) if own else space, own=own)

    def _begin_model(self, form: Box) -> None:
        if self._analysis is not None:
            self._from_analysis = evaluated_of(self._analysis, self.metric or "")

    def _evaluated_to_learn(self) -> list[Evaluated]:
        return [*self._evaluated, *self._from_analysis]

    # --- suggestions ------------------------------------------------------------------------------

    def _suggested(self, trial_id: str, fixed: dict[str, Any] | None) -> dict[str, Any] | str:
        form, given = self.form, fixed or {}
        # The model may suggest the same configuration forever, because it considers this configuration the
        # best. Therefore, the number of repeated suggestions is limited.
        for again in range(self._patience):
            redraw = self._redraws * self._patience + again
            rng = suggestion_generator(self._base, self._number, redraw)
            config = form.configuration(self._asked(redraw), given, rng)
            # The encoding is computed from the configuration, because a restored search also computes it from
            # the configuration.
            place = form.encoded(form.choices(config))
            if not self.is_drawn(trial_id) or not self._was_tried(place):
                self._note(trial_id, place)
                return config
            if form.declared.cardinality() is not None:
                return self._untried(trial_id)
        return _AllTried(self.FINISHED)

    def _untried(self, trial_id: str) -> dict[str, Any] | str:
        for config in self.alternatives(trial_id):
            place = self.form.known_by(config)
            if place is not None and not self._was_tried(place):
                self._note(trial_id, place)
                return config
        return _AllTried(self.FINISHED)

    def _asked(self, redraw: int) -> Place:
        """Return the package's suggestion, from a new model, so that no state remains between suggestions."""
        if not self.form.bounds:
            return {}
        module, n = self._load(), self._number
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
            pbounds=self.form.bounds,
            acquisition_function=acquisition,
            random_state=suggestion_words(self._base, n, redraw, 1)[0],
            verbose=self._verbose,
            allow_duplicate_points=True,
        )
        told = self._losses()
        if n >= self._random_search_steps and told:
            # The package's output is discarded, because the package prints a line when coordinates repeat,
            # even with verbose=0.
            silence = contextlib.nullcontext() if self._verbose else contextlib.redirect_stdout(io.StringIO())
            # The matrices are small, so more threads would be slower, and would take CPUs from the trials.
            with silence, warnings.catch_warnings(), threadpool_limits(1):
                # Scikit-learn warns of kernels at the end of their bounds.
                warnings.simplefilter("ignore")
                worst = max(loss for _, loss in told)
                for place, loss in self._known.values():
                    # A running trial counts as the worst result, so that the model suggests other
                    # configurations.
                    if loss is None:
                        model.register(place, -worst)
                    elif not math.isnan(loss):
                        model.register(place, -loss)
                suggested = model.suggest()
        else:
            suggested = model.random_sample()[0]
        return {name: float(value) for name, value in suggested.items()}

    def _was_tried(self, place: Place) -> bool:
        mark = self.form.mark(place, self._precision)
        return any(mark == self.form.mark(other, self._precision) for other, _ in self._known.values())

    def is_drawn(self, trial_id: str) -> bool:
        return super().is_drawn(trial_id) and self._skip_duplicate


def _checked_utility(given: Mapping[str, Any]) -> dict[str, Any]:
    require(
        isinstance(given, Mapping) and given.keys() <= _UTILITY.keys(),
        f"utility_kwargs={given!r} may only contain {', '.join(_UTILITY)}",
    )
    utility = {**_UTILITY, **given}
    require_one_of("utility_kwargs: kind", utility["kind"], _KINDS)
    for name in ("kappa", "xi", "kappa_decay", "kappa_decay_delay"):
        require_number(f"utility_kwargs: {name}", utility[name], "a number of 0 or more", least=0)
    return utility
