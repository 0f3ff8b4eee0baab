"""Searcher that uses Ax, with Gaussian processes from BoTorch."""

from __future__ import annotations

import ast
import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from threadpoolctl import threadpool_limits

from trainkit.errors import ConfigError
from trainkit.plugins.searchers.unit_space import Place, UnitSearcher, UnitSpace
from trainkit.tune.core.checks import is_number, require_one_of
from trainkit.tune.core.metrics import lookup

if TYPE_CHECKING:
    from numpy.random import Generator

MOST_DRAWS = 10_000
"""Maximum number of random configurations to try until one meets the parameter constraints."""

ROUNDING = 1e-8
"""Amount by which a weighted sum may exceed its bound because of rounding, as in Ax."""


class AxSearch(UnitSearcher):
    """Search with Ax: M. Olson et al., "Ax: A Platform for Adaptive Experimentation" (AutoML 2025).

    The model is a Gaussian process with priors that suit many parameters. The next configuration has the
    largest noisy expected improvement. The model also considers the configurations of running trials. A
    suggestion takes about a second. For the other arguments, see `UnitSearcher`.

    Args:
        method: "fast"; or "quality", which also models the uncertainty of the model's parameters and is
            slower.
        parameter_constraints: constraints on configurations, such as "x1 + x2 <= 2.0" or "x3 >= x4". Each
            constraint is a linear inequality between `tune.uniform` parameters. Random configurations also
            meet the constraints.
        outcome_constraints: constraints on reported metrics, such as "l2norm <= 1.25". The model predicts
            these metrics. If a trial has not reported all of these metrics, the model ignores the trial.
    """

    _module, _extra = "ax", "ax"

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 10,
        seed: int | None = None,
        method: Literal["fast", "quality"] = "fast",
        parameter_constraints: Sequence[str] | None = None,
        outcome_constraints: Sequence[str] | None = None,
    ) -> None:
        self._on_parameters = [Inequality.parsed(each) for each in parameter_constraints or ()]
        self._on_outcomes = [Inequality.parsed(each) for each in outcome_constraints or ()]
        self._measured = sorted({name for bound in self._on_outcomes for name in bound.factors})
        self._outcomes: dict[str, dict[str, float]] = {}
        super().__init__(space, metric, mode, points_to_evaluate, n_initial_points, seed)
        require_one_of("method", method, ("fast", "quality"))
        self._method: Literal["fast", "quality"] = method

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            **super().arguments,
            "method": self._method,
            "parameter_constraints": [bound.text for bound in self._on_parameters],
            "outcome_constraints": [bound.text for bound in self._on_outcomes],
        }

    def _begin_model(self, form: UnitSpace) -> None:
        codes = form.codes
        for bound in self._on_parameters:
            for name in bound.factors:
                if name not in codes or codes[name].ends is None:
                    raise ConfigError(
                        f"the parameter constraint {bound.text!r} names {name!r}, which is not a "
                        f"tune.uniform parameter: use only {sorted(codes)} in constraints"
                    )
        self._bounds = [
            bound.over({name: ends for name in bound.factors if (ends := codes[name].ends) is not None})
            for bound in self._on_parameters
        ]

    def _random(self, rng: Generator) -> Place:
        for _ in range(MOST_DRAWS):
            place = super()._random(rng)
            if self._keeps(place):
                return place
        raise ConfigError(
            f"none of {MOST_DRAWS} random configurations satisfies the parameter constraints "
            f"{[bound.text for bound in self._on_parameters]}: relax the constraints"
        )

    def _keeps(self, place: Place) -> bool:
        whole = self.form.whole(place)
        return all(bound.holds(whole) for bound in self._bounds)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._hear(trial_id, result)
        super().on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._hear(trial_id, result or {})
        super().on_trial_complete(trial_id, result, error)

    def _hear(self, trial_id: str, result: Mapping[str, Any]) -> None:
        for name in self._measured:
            value = lookup(result, name)
            if is_number(value) and math.isfinite(value):
                self._outcomes.setdefault(trial_id, {})[name] = float(value)

    def _asked(self, seed: int) -> Mapping[str, Any]:
        self._load()
        from ax.api.client import Client
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        # Ax does not accept all names of parameters, so it receives names that are made from the parameters'
        # positions.
        names = {name: f"p{place}" for place, name in enumerate(self.form.codes)}
        parameters: dict[str, Any] = self.form.each(
            lambda name: RangeParameterConfig(name=names[name], parameter_type="float", bounds=(0.0, 1.0)),
            lambda name, size: ChoiceParameterConfig(
                name=names[name], parameter_type="int", values=list(range(size)), is_ordered=False
            ),
        )

        def renamed(place: Place) -> dict[str, Any]:
            return {names[name]: value for name, value in self.form.whole(place).items()}

        with warnings.catch_warnings(), threadpool_limits(1), _quiet():
            # The warnings are hidden, because Ax itself repeats a fit that fails.
            warnings.simplefilter("ignore")
            client = Client(random_seed=seed)
            client.configure_experiment(
                name="trainkit",
                parameters=list(parameters.values()),
                parameter_constraints=[bound.written(names) for bound in self._bounds],
            )
            metrics = {name: f"m{place}" for place, name in enumerate(self._measured)}
            client.configure_optimization(
                objective="-loss",
                outcome_constraints=[bound.written(metrics) for bound in self._on_outcomes],
            )
            client.configure_generation_strategy(
                method=self._method,
                initialization_budget=1,
                initialization_random_seed=seed,
                initialize_with_center=False,
            )
            for trial_id, (place, loss) in self._known.items():
                outcomes = self._outcomes.get(trial_id, {})
                known = loss is None or (math.isfinite(loss) and len(outcomes) == len(metrics))
                if not known or not self._keeps(place):
                    continue
                number = client.attach_trial(renamed(place))
                if loss is not None:
                    told = {metrics[name]: value for name, value in outcomes.items()}
                    client.complete_trial(number, raw_data={"loss": loss, **told})
            (suggested,) = client.get_next_trials(max_trials=1).values()
        return {name: suggested[short] for name, short in names.items()}


@dataclass(frozen=True)
class Inequality:
    """Linear inequality: a weighted sum of parameters or metrics must be at most `most`.

    Attributes:
        text: inequality as the user wrote it.
        factors: weight of each parameter or metric in the sum.
        most: upper bound of the sum.
    """

    text: str
    factors: Mapping[str, float]
    most: float

    @classmethod
    def parsed(cls, text: str) -> Inequality:
        """Parse a text such as "x1 + 2 * x2 <= 3" into an inequality.

        Raises:
            ConfigError: the text is not a linear inequality.
        """
        try:
            tree = ast.parse(text, mode="eval").body
            if not (isinstance(tree, ast.Compare) and isinstance(tree.ops[0], ast.LtE | ast.GtE)):
                raise ValueError("it has no <= or >=")
            (right,) = tree.comparators
            left, right = (tree.left, right) if isinstance(tree.ops[0], ast.LtE) else (right, tree.left)
            sums = _sum(ast.BinOp(left, ast.Sub(), right))
        except (SyntaxError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the constraint {text!r} cannot be parsed ({error}): write an inequality of a sum "
                "and a bound, such as 'x1 + 2 * x2 <= 3.0'"
            ) from error
        most = -sums.pop("", 0.0)
        return cls(text, sums, most)

    def over(self, ends: Mapping[str, tuple[float, float]]) -> Inequality:
        """Convert to an inequality over encoded values: 0 and 1 are the values in `ends`."""
        factors = {name: factor * (ends[name][1] - ends[name][0]) for name, factor in self.factors.items()}
        least = sum(factor * ends[name][0] for name, factor in self.factors.items())
        return Inequality(self.text, factors, self.most - least)

    def holds(self, values: Mapping[str, float]) -> bool:
        """Return True if `values` satisfy the inequality."""
        return sum(factor * values[name] for name, factor in self.factors.items()) <= self.most + ROUNDING

    def written(self, names: Mapping[str, str]) -> str:
        """Return the inequality as Ax expects it; `names` maps the names in it to the names that Ax knows."""
        parts = [f"{factor!r} * {names[name]}" for name, factor in self.factors.items()]
        return f"{' + '.join(parts)} <= {self.most!r}"


def _sum(tree: ast.expr) -> dict[str, float]:
    """Return the factor of each name in the expression `tree`; the constant term has the name ""."""
    match tree:
        case ast.Constant(value=int() | float() as value):
            return {"": float(value)}
        case ast.Name(id=name):
            return {name: 1.0}
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return {name: -factor for name, factor in _sum(part).items()}
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            total = _sum(left)
            for name, factor in _sum(right).items():
                total[name] = total.get(name, 0.0) + (factor if isinstance(op, ast.Add) else -factor)
            return total
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _sum(left), _sum(right)
            if {""} not in (set(one), set(other)):
                raise ValueError("it multiplies parameters")
            number, rest = (one[""], other) if set(one) == {""} else (other[""], one)
            return {name: number * factor for name, factor in rest.items()}
    raise ValueError("it has other operations than sums and factors")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # Each logger of Ax has its own level, but all of them use the handlers of the logger "ax". So the levels
    # of these handlers are raised.
    before = [(handler, handler.level) for handler in logging.getLogger("ax").handlers]
    for handler, _ in before:
        handler.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for handler, level in before:
            handler.setLevel(level)
