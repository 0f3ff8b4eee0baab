"""Searcher on the package bayesian-optimization: a Gaussian process over bounded parameters."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from threadpoolctl import threadpool_limits

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.core.checks import is_number, is_whole, load, require
from trainkit.tune.core.seeds import suggestion_generator, suggestion_words
from trainkit.tune.core.values import flatten
from trainkit.tune.search.base import Evaluated, evaluated_of
from trainkit.tune.search.codec import Declared
from trainkit.tune.search.modelled import LastReportSearcher
from trainkit.tune.space.domains import Categorical, Domain, Float, Integer, place_of
from trainkit.tune.space.merging import nested
from trainkit.tune.space.search_space import Space

if TYPE_CHECKING:
    from numpy.random import Generator


Place = dict[str, float]
"""Of a configuration in the model, by coordinate; most parameters have one."""


def space_of(space: Any) -> Space:
    """The user's own: bounds by name, or domains.

    Raises:
        ConfigError: it is neither.
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


# --- codes: real numbers for one parameter, whatever its domain -----------------------------------
#
# The model is told of the place where a value itself is, also of one that was rounded to.
# Source: Garrido-Merchán, Hernández-Lobato, "Dealing with categorical and integer-valued variables in
# Bayesian optimization with Gaussian processes", Neurocomputing 380 (2020), arXiv:1805.03463.


class BoundedCode(Protocol):
    """One parameter in the model.

    Attributes:
        bounds: between which the model looks, by coordinate.
    """

    bounds: dict[str, tuple[float, float]]

    def encode(self, value: Any) -> Place:
        """Where a value of the domain is."""

    def decode(self, place: Place) -> Any:
        """The value at a place, inside the domain."""


class _BoundedReal:
    """A real number by itself, or by its logarithm where its domain is logarithmic."""

    def __init__(self, name: str, domain: Float) -> None:
        self._name, self._log = name, domain.log
        self._lower, self._last = domain.lower, math.nextafter(domain.upper, domain.lower)
        low, high = domain.lower, domain.upper
        self.bounds = {name: (math.log(low), math.log(high)) if domain.log else (low, high)}

    def encode(self, value: Any) -> Place:
        low, high = self.bounds[self._name]
        return {self._name: min(max(math.log(value) if self._log else float(value), low), high)}

    def decode(self, place: Place) -> float:
        number = place[self._name]
        return min(max(math.exp(number) if self._log else number, self._lower), self._last)


class _BoundedSteps:
    """Whole numbers, and multiples of q, from 0 to 1, with half a step beyond the ends; rounded to."""

    def __init__(self, name: str, domain: Float | Integer) -> None:
        self._name, self._log, self._whole = name, domain.log, isinstance(domain, Integer)
        self._q = Fraction(repr(domain.q))
        self._first, self._last = (round(Fraction(bound) / self._q) for bound in domain.bounds)
        low, high = self._first - 0.5, self._last + 0.5
        self._low, self._high = (math.log(low), math.log(high)) if domain.log else (low, high)
        self.bounds = {name: (0.0, 1.0)}

    def encode(self, value: Any) -> Place:
        k = round(Fraction(value) / self._q)
        number = math.log(k) if self._log else k
        return {self._name: min(max((number - self._low) / (self._high - self._low), 0.0), 1.0)}

    def decode(self, place: Place) -> float:
        number = self._low + place[self._name] * (self._high - self._low)
        k = min(max(round(math.exp(number) if self._log else number), self._first), self._last)
        numerator = k * self._q.numerator
        return numerator if self._whole else numerator / self._q.denominator


class _BoundedChoice:
    """A coordinate from 0 to 1 for each value of a list; the largest says which is meant."""

    def __init__(self, name: str, domain: Categorical) -> None:
        self._name, self._categories = name, domain.categories
        self.bounds = {f"{name}[{place}]": (0.0, 1.0) for place in range(len(domain.categories))}

    def encode(self, value: Any) -> Place:
        chosen = place_of(value, self._categories)
        if chosen is None:
            raise SpaceError(f"{self._name}={value!r} is not in {self._name}'s list")
        return {each: float(place == chosen) for place, each in enumerate(self.bounds)}

    def decode(self, place: Place) -> Any:
        numbers = [place[each] for each in self.bounds]
        return self._categories[numbers.index(max(numbers))]


def code_of(name: str, domain: Domain) -> BoundedCode:
    """The code of one parameter.

    Raises:
        ConfigError: its domain has no bounds.
    """
    match domain:
        case Float(q=None):
            return _BoundedReal(name, domain)
        case Float() | Integer():
            return _BoundedSteps(name, domain)
        case Categorical():
            return _BoundedChoice(name, domain)
    raise ConfigError(
        f"{name}: BayesOptSearch searches between bounds and in lists, as tune.uniform, tune.randint and "
        f"tune.choice give them, and this is {domain}; take OptunaSearch for others"
    )


class Box(Declared[BoundedCode]):
    """Parameters between bounds and in lists, which all configurations have.

    Raises:
        ConfigError: one has no bounds, or depends on another.
    """

    def __init__(self, space: Space, *, own: bool) -> None:
        super().__init__(space, code_of, searcher="BayesOptSearch", own=own)
        for each in space.parameters:
            if each.is_conditional:
                raise ConfigError(
                    f"{each.name}: BayesOptSearch needs the same parameters in every trial, and this one has "
                    "a condition; take OptunaSearch"
                )

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Of the model, by coordinate."""
        return {name: each for code in self.codes.values() for name, each in code.bounds.items()}

    def encoded(self, values: Mapping[str, Any]) -> Place:
        return {name: each for code in super().encoded(values).values() for name, each in code.items()}

    def mark(self, place: Place, digits: int) -> list[list[float]]:
        """What a place is told apart from others by: steps exactly, as many lie close; else `digits`."""
        return [
            [code.decode(place)]
            if isinstance(code, _BoundedSteps)
            else [round(place[each], digits) for each in code.bounds]
            for code in self.codes.values()
        ]

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        _, open_ = super().fixed(point)
        return self.declared.point(point), open_  # as it is: the exponential of a logarithm may be another

    def configuration(self, place: Place, fixed: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """The configuration at a place of the model, with what is fixed; `sample_from` draws from `rng`."""

        def ask(name: str, domain: Domain) -> Any:
            del domain
            return fixed[name] if name in fixed else self.codes[name].decode(place)

        return self.declared.walk(ask, rng)


_UTILITY = {"kind": "ucb", "kappa": 2.576, "xi": 0.0, "kappa_decay": 1.0, "kappa_decay_delay": 0}
_KINDS = ("ucb", "ei", "poi")


class BayesOptSearch(LastReportSearcher[Box]):
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
        random_state: seed for the draws; None: the TuneConfig's.
        random_search_steps: suggestions that are drawn at random before the first of the model.
        verbose: 0 for silence; the package prints what it learns otherwise.
        patience: draws in a row that were tried before, after which the search ends.
        skip_duplicate: False tries a configuration again where it is suggested again.
        analysis: results to learn from: a `ResultGrid`, or a list of `Result`s.
        repeat_float_precision: digits after the point by which real numbers are told apart, or logarithms of
            a logarithmic domain's.

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
            require(
                is_whole(given[name]) and given[name] >= bound,
                f"{name}={given[name]!r}: give a whole number of {bound} or more",
            )
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
        self._known: dict[str, tuple[Place, float | None]] = {}
        """By trial: where it is, and what it came to, more being better; None: it runs; NaN: it failed."""

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
        # What the model suggests again it may do for ever: it has found the best, as far as it can see.
        for again in range(self._patience):
            redraw = self._redraws * self._patience + again
            rng = suggestion_generator(self._base, self._number, redraw)
            config = form.configuration(self._asked(redraw), given, rng)
            place = form.encoded(form.choices(config))  # as a restore will find it
            if not self.is_drawn(trial_id) or not self._was_tried(place):
                self._note(trial_id, place)
                return config
            if form.declared.cardinality() is not None:
                return self._untried(trial_id)
        return self.FINISHED

    def _untried(self, trial_id: str) -> dict[str, Any] | str:
        """One of the configurations that are left of finitely many."""
        for config in self.alternatives(trial_id):
            place = self.form.known_by(config)
            if place is not None and not self._was_tried(place):
                self._note(trial_id, place)
                return config
        return self.FINISHED

    def _asked(self, redraw: int) -> Place:
        """The place of a suggestion, by the package; of a new model each time, so nothing is carried over."""
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

    def _was_tried(self, place: Place) -> bool:
        mark = self.form.mark(place, self._precision)
        return any(mark == self.form.mark(other, self._precision) for other, _ in self._known.values())

    def is_drawn(self, trial_id: str) -> bool:
        return super().is_drawn(trial_id) and self._skip_duplicate

    def _note(self, trial_id: str, known: Place) -> None:
        self._known[trial_id] = known, None

    def _forget(self, trial_id: str, result: dict[str, Any] | None) -> None:
        del self._known[trial_id]

    # --- results ----------------------------------------------------------------------------------

    def _tell(self, trial_id: str, value: float | None) -> None:
        place, _ = self._known[trial_id]
        if value is None or not math.isfinite(value):
            value = math.nan
        self._known[trial_id] = place, value if self.mode == "max" else -value

    def _runs(self, trial_id: str) -> None:
        place, _ = self._known[trial_id]
        self._known[trial_id] = place, None


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
