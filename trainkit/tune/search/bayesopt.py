"""Searcher on the package bayesian-optimization: a Gaussian process over bounded parameters."""

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


# The model is told of the place where a value itself is, also of one that was rounded to.
# Source: Garrido-Merchán, Hernández-Lobato, "Dealing with categorical and integer-valued variables in
# Bayesian optimization with Gaussian processes", Neurocomputing 380 (2020), arXiv:1805.03463.


class Coordinates:
    """One parameter in the model.

    A real number is a coordinate by itself, or by its logarithm where its domain is logarithmic. Steps are
    between 0 and 1, and rounded to. A list has a coordinate for each value, of which the largest counts.

    Attributes:
        bounds: between which the model looks, by coordinate.
    """

    def __init__(self, name: str, domain: Domain) -> None:
        if isinstance(domain, Normal):
            raise ConfigError(
                f"{name}: BayesOptSearch searches between bounds and in lists, as tune.uniform, tune.randint "
                f"and tune.choice give them, and this is {domain}; take OptunaSearch for others"
            )
        self._name, self.code = name, code_of(name, domain, "BayesOptSearch")
        self.bounds: dict[str, tuple[float, float]] = {name: (0.0, 1.0)}
        if isinstance(self.code, ChoiceCode):
            self.bounds = {f"{name}[{place}]": (0.0, 1.0) for place in range(len(self.code.categories))}
        elif isinstance(self.code, RealCode):
            low, high = self.code.ends
            self.bounds = {name: (math.log(low), math.log(high)) if self.code.log else (low, high)}

    def encode(self, value: Any) -> Place:
        """Return where a value of the domain is."""
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
        """Return the value at a place, inside the domain."""
        code = self.code
        if isinstance(code, ChoiceCode):
            numbers = [place[each] for each in self.bounds]
            return code.decode(numbers.index(max(numbers)))
        number = place[self._name]
        if isinstance(code, RealCode):
            return code.decode(math.exp(number) if code.log else number)
        return code.from_unit(number)


class Box(Declared[Coordinates]):
    """Parameters between bounds and in lists, which all configurations have.

    Raises:
        ConfigError: one has no bounds, or depends on another.
    """

    def __init__(self, space: Space, *, own: bool) -> None:
        super().__init__(space, Coordinates, searcher="BayesOptSearch", own=own)
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
        """Return what tells a place from others: steps exactly, as many lie close, else `digits`."""
        return [
            [code.decode(place)]
            if isinstance(code.code, StepCode)
            else [round(place[each], digits) for each in code.bounds]
            for code in self.codes.values()
        ]

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        _, open_ = super().fixed(point)
        return self.declared.point(point), open_  # as it is: the exponential of a logarithm may be another

    def configuration(self, place: Place, fixed: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """The configuration at a place of the model, with what is fixed; `sample_from` draws from `rng`."""

        def ask(name: str, domain: Domain) -> Any:
            return fixed[name] if name in fixed else self.codes[name].decode(place)

        return self.declared.walk(ask, rng)


_UTILITY = {"kind": "ucb", "kappa": 2.576, "xi": 0.0, "kappa_decay": 1.0, "kappa_decay_delay": 0}
_KINDS = ("ucb", "ei", "poi")


class _AllTried(str):
    """`Searcher.FINISHED`, with the end of a sentence on what would make it go on."""

    __slots__ = ()
    how_to_repeat = " that was not tried; its skip_duplicate=False tries some again"


class BayesOptSearch(RefittedSearcher[Box]):
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
        return _AllTried(self.FINISHED)

    def _untried(self, trial_id: str) -> dict[str, Any] | str:
        """One of the configurations that are left of finitely many."""
        for config in self.alternatives(trial_id):
            place = self.form.known_by(config)
            if place is not None and not self._was_tried(place):
                self._note(trial_id, place)
                return config
        return _AllTried(self.FINISHED)

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
        told = self._losses()
        if n >= self._random_search_steps and told:
            # The package prints each place that comes twice, however silent it was asked to be.
            silence = contextlib.nullcontext() if self._verbose else contextlib.redirect_stdout(io.StringIO())
            # Of small matrices: more threads take the CPUs of the trials, and are slower.
            with silence, warnings.catch_warnings(), threadpool_limits(1):
                warnings.simplefilter("ignore")  # of scikit-learn's, on kernels at the end of their bounds
                worst = max(loss for _, loss in told)
                for place, loss in self._known.values():
                    if loss is None:  # it runs: as if nothing good were there, so that others go elsewhere
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
        f"utility_kwargs={given!r}: it may have {', '.join(_UTILITY)}",
    )
    utility = {**_UTILITY, **given}
    require_one_of("utility_kwargs: kind", utility["kind"], _KINDS)
    for name in ("kappa", "xi", "kappa_decay", "kappa_decay_delay"):
        require_number(f"utility_kwargs: {name}", utility[name], "a number of 0 or more", least=0)
    return utility
