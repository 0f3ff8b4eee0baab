"""The package bayesian-optimization as a searcher: a Gaussian process over what lies between bounds."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from trainkit.tune.checks import is_number, is_whole, require
from trainkit.tune.optional import load
from trainkit.tune.search.bayesopt.space import Box, Place, space_of
from trainkit.tune.search.evaluated import Evaluated, evaluated_of
from trainkit.tune.search.last_report import LastReportSearcher
from trainkit.tune.seeds import suggestion_generator, suggestion_words

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
