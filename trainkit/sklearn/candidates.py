"""Candidates of a search: parameter spaces, and the sources that draw candidates from them.

A space may be written in the form of scikit-learn, tune-sklearn, scipy, hyperopt, Optuna or scikit-optimize:

    {"kernel": ["rbf", "poly"], "C": loguniform(1e-3, 1e3), "degree": (2, 5), "gamma": tune.uniform(0, 1)}

scikit-learn's `ParameterSampler` accepts lists and distributions. Searchers that learn from scores accept
domains of the tuner. This module translates spaces for both.
"""

from __future__ import annotations

import inspect
import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
from sklearn.model_selection import ParameterSampler
from sklearn.utils import check_random_state

from trainkit.errors import ConfigError, SpaceError, did_you_mean
from trainkit.tune.search import SEARCHERS
from trainkit.tune.search.base import Searcher
from trainkit.tune.search.basic_variant import BasicVariantGenerator
from trainkit.tune.space.domains import (
    Categorical,
    Domain,
    Float,
    Forbid,
    GridSearch,
    Integer,
    Normal,
    SampleFrom,
    When,
)
from trainkit.tune.space.tree import holds_leaf

PRIORS = ("uniform", "log-uniform")
MAX_LISTED = 10_000
"""Maximum number of values of a domain that is replaced by a list.

If all parameters have lists, scikit-learn repeats no candidate.
"""


class DomainDistribution:
    """Distribution with scikit-learn's method `rvs`, which draws values from a domain.

    Args:
        domain: numeric domain to draw values from.
    """

    def __init__(self, domain: Domain) -> None:
        self._domain = domain

    def rvs(self, random_state: np.random.RandomState) -> Any:
        """Draw one value."""
        return self._domain.draw(np.random.default_rng(random_state.randint(2**32, size=4, dtype=np.uint32)))


def dictionaries(distributions: Any) -> list[Mapping[str, Any]]:
    """Return the dictionaries of a parameter space as a list.

    Raises:
        SpaceError: the space is neither a dictionary nor a list of dictionaries.
    """
    found = [distributions] if isinstance(distributions, Mapping) else distributions
    if not isinstance(found, (list, tuple)) or not all(isinstance(each, Mapping) for each in found):
        raise SpaceError(
            f"param_distributions must be a dictionary or a list of dictionaries, not {distributions!r:.200}"
        )
    return list(found)


def is_declared(distributions: Any) -> bool:
    """Return True if the space has conditions, rules or computed values, which only the tuner can sample."""
    return any(_is_structure(leaf) for each in dictionaries(distributions) for leaf in each.values())


def _is_structure(leaf: Any) -> bool:
    if isinstance(leaf, Categorical):
        return any(holds_leaf(category) for category in leaf.categories)
    return isinstance(leaf, (When, Forbid, SampleFrom, GridSearch))


# --- for scikit-learn -----------------------------------------------------------------------------


def for_sampler(distributions: Any) -> list[dict[str, Any]]:
    """Return the space in a form that scikit-learn's `ParameterSampler` accepts.

    Raises:
        SpaceError: a parameter has an unknown form.
    """
    return [
        {name: _for_sampler(name, given) for name, given in each.items()}
        for each in dictionaries(distributions)
    ]


def _for_sampler(name: str, given: Any) -> Any:
    if (hasattr(given, "rvs") and not _is_dimension(given)) or (is_list(given) and not is_range(given)):
        return given
    leaf = domain_of(name, given)
    if isinstance(leaf, Categorical):
        return list(leaf.categories)
    uniform = isinstance(leaf, (Float, Integer)) and not leaf.log
    if uniform and leaf.cardinality is not None and leaf.cardinality <= MAX_LISTED:
        return leaf.values()
    return DomainDistribution(leaf)


# --- for searchers --------------------------------------------------------------------------------


def for_searcher(distributions: Any, *, hyperopt: bool = False) -> dict[str, Any]:
    """Return the space as a `param_space` for the tuner: a domain for each parameter name.

    Args:
        distributions: the space in the user's form.
        hyperopt: True keeps hyperopt's expressions unchanged.

    Raises:
        SpaceError: a parameter can't be translated exactly, or the space has several dictionaries.
    """
    found = dictionaries(distributions)
    if len(found) != 1:
        raise SpaceError(
            f"param_distributions has {len(found)} dictionaries, which only search_optimization='random' "
            "supports; for other searchers, write one dictionary with conditions for dependent parameters: "
            f"{{'kernel': ['rbf', 'poly'], 'degree': tune.when({{'kernel': 'poly'}}, tune.randint(2, 6))}}"
        )
    return {
        name: given if hyperopt and is_expression(given) else _leaf_of(name, given)
        for name, given in found[0].items()
    }


def _leaf_of(name: str, given: Any) -> Any:
    if isinstance(given, When):
        return When(given.conditions, _leaf_of(name, given.content))
    if isinstance(given, (Forbid, SampleFrom, GridSearch)):
        return given
    return domain_of(name, given)


def for_hyperopt(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space with all parameters as hyperopt expressions.

    Raises:
        SpaceError: a domain has no hyperopt expression.
    """
    return {
        name: given if is_expression(given) else _expression_of(name, given) for name, given in space.items()
    }


def _expression_of(name: str, leaf: Any) -> Any:
    from hyperopt import hp  # type: ignore[import-untyped]

    match leaf:
        case Float(q=None, log=True):
            return hp.loguniform(name, math.log(leaf.lower), math.log(leaf.upper))
        case Float(q=None):
            return hp.uniform(name, leaf.lower, leaf.upper)
        case Integer(q=1, log=False):
            return hp.uniformint(name, *leaf.bounds)
        case Normal(q=None):
            return hp.normal(name, leaf.mean, leaf.sd)
        case Categorical():
            return hp.choice(name, list(leaf.categories))
    raise SpaceError(f"{name}: {leaf} can't be combined with hyperopt's expressions: use only expressions")


def domain_of(name: str, given: Any) -> Domain:
    """Return the domain with exactly the same values and distribution as the parameter that a user has given.

    Args:
        name: name of the parameter, for error messages.
        given: the parameter in the user's form: a list of values, `(low, high)` or `(low, high, prior)`, a
            frozen scipy distribution, a domain, an Optuna distribution, or a scikit-optimize dimension.

    Raises:
        SpaceError: `given` has an unknown form, or can't be translated exactly.
    """
    if isinstance(given, Domain):
        return given
    try:
        if is_range(given):
            return _of_range(given)
        if _is_dimension(given):
            return _of_skopt(given)
        if hasattr(given, "rvs"):
            return _of_scipy(given)
        if is_list(given):
            return Categorical(tuple(given))
        if type(given).__module__ == "optuna.distributions":
            return _of_optuna(given)
    except SpaceError as error:
        raise SpaceError(f"{name}: {error}") from None
    raise SpaceError(
        f"{name}={given!r:.200} is not a distribution: pass a list of one or more values, (low, high), "
        "(low, high, 'log-uniform'), a distribution of scipy.stats, or a domain like tune.loguniform(1e-4, 1)"
    )


def is_expression(given: Any) -> bool:
    """Return True for a hyperopt expression, such as `hp.uniformint("n", 1, 9)`."""
    return type(given).__module__.startswith("hyperopt.")


def is_list(given: Any) -> bool:
    """Return True for a list or an array of values."""
    return isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, (str, bytes))


def is_range(given: Any) -> bool:
    """Return True for a range: (low, high), or (low, high, prior)."""
    return (
        isinstance(given, tuple)
        and len(given) in (2, 3)
        and all(isinstance(each, numbers.Real) and not isinstance(each, bool) for each in given[:2])
        and (len(given) == 2 or isinstance(given[2], str))
    )


def _of_range(given: tuple[Any, ...]) -> Domain:
    low, high, prior = (*given, PRIORS[0])[:3]
    if prior not in PRIORS:
        raise SpaceError(f"{given!r}: the prior {prior!r} is neither 'uniform' nor 'log-uniform'")
    log = prior == PRIORS[1]
    if isinstance(low, numbers.Integral) and isinstance(high, numbers.Integral):
        return Integer(int(low), int(high) + 1, log=log)
    return Float(float(low), float(high), log=log)


def _of_scipy(given: Any) -> Domain:
    from scipy import stats  # type: ignore[import-untyped]

    kind = type(getattr(given, "dist", None))
    # The bounds are read by methods of the scipy distribution, which are correct even if it was created with
    # a location, scale or shape.
    if kind is type(stats.uniform):
        low, high = map(float, given.support())
        return Float(low, high)
    if kind is type(stats.loguniform):
        low, high = map(float, given.support())
        if math.isclose(given.median(), math.sqrt(low) * math.sqrt(high), rel_tol=1e-9):
            return Float(low, high, log=True)
    if kind is type(stats.randint):
        low, high = map(int, given.support())
        return Integer(low, high + 1)
    if kind is type(stats.norm):
        return Normal(float(given.mean()), float(given.std()))
    called = getattr(getattr(given, "dist", given), "name", type(given).__name__)
    raise SpaceError(
        f"{called} cannot be translated exactly for this searcher: use search_optimization='random', which "
        "samples any object with rvs; or replace it by a domain, or by uniform, loguniform, randint or norm "
        "of scipy.stats"
    )


def _is_dimension(given: Any) -> bool:
    """Return True for a scikit-optimize dimension, such as `Real(1e-4, 1, "log-uniform")`."""
    return type(given).__module__ == "skopt.space.space"


def _of_skopt(given: Any) -> Domain:
    kind = type(given).__name__
    if kind == "Categorical":
        if len({*given.prior_}) > 1:
            raise SpaceError(f"{given!r} has a prior, which domains of tune do not support: leave prior out")
        return Categorical(tuple(given.categories))
    if kind in ("Real", "Integer"):
        number = float if kind == "Real" else int
        return _of_range((number(given.low), number(given.high), given.prior))
    raise SpaceError(f"{given!r} is not one of scikit-optimize's Real, Integer and Categorical")


def _of_optuna(given: Any) -> Domain:
    words = type(given).__name__
    if words == "CategoricalDistribution":
        return Categorical(given.choices)
    step = given.step
    if step is not None and not math.isclose(given.low / step, round(given.low / step), abs_tol=1e-9):
        raise SpaceError(
            f"{given!r} has steps from {given.low}, which is not a multiple of the step, so no domain can "
            "represent it: use search_optimization=OptunaSearch(space=...), and param_distributions={}"
        )
    if words == "FloatDistribution":
        return Float(given.low, given.high, log=given.log, q=step)
    if words == "IntDistribution":
        return Integer(given.low, given.high + (step == 1), log=given.log, q=step)
    raise SpaceError(f"{given!r} is not one of Optuna's float, int and categorical distributions")


class CandidateList(Searcher):
    """Searcher that suggests each candidate of a list once, in order.

    Args:
        candidates: parameters of each candidate, by name; values may be any objects, even estimators.
    """

    def __init__(self, candidates: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.candidates = candidates
        self._next = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy of the list with the same candidate objects, because `best_params_` must contain
        these objects.
        """
        other = type(self)(self.candidates)
        other._next = self._next
        return other

    @property
    def total_samples(self) -> int | None:
        return len(self.candidates)

    @property
    def whole(self) -> bool:
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._next == len(self.candidates):
            return self.FINISHED
        self._next += 1
        return dict(self.candidates[self._next - 1])

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Ignore the outcome of a candidate."""

    def learn_from(self, *given: object) -> NoReturn:
        raise ConfigError(
            "learn_from and priors are not supported here: use TuneSearchCV(search_optimization='auto')"
        )


class CandidateSource(NamedTuple):
    """Source of the candidates of a search: a searcher and its parameter space.

    Attributes:
        searcher: the searcher that suggests candidates.
        space: `param_space` for the tuner; None if the searcher has its own space.
        num_samples: number of candidates to request; -1: all candidates that the searcher suggests.
        learns: True if suggestions depend on the scores of earlier candidates.
        seed: seed of all random numbers; None: a random seed.
    """

    searcher: Searcher
    space: Mapping[str, Any] | None = None
    num_samples: int = -1
    learns: bool = False
    seed: int | None = None

    @property
    def total(self) -> int | None:
        """Number of candidates; None if unknown."""
        return self.searcher.total_samples if self.known_beforehand else None

    @property
    def known_beforehand(self) -> bool:
        """True if all candidates are known in advance, as a list that may contain duplicates."""
        return isinstance(self.searcher, CandidateList)


RANDOM = "random"
BOHB = "bohb"
LEARNING = {
    "auto": "AutoSearch",
    "bayesian": "BayesOptSearch",
    BOHB: "TuneBOHB",
    "hyperopt": "HyperOptSearch",
    "optuna": "OptunaSearch",
}
"""Class names of the searchers that learn from scores, by their names in tune-sklearn."""


def search_of(
    optimization: Any,
    distributions: Any,
    n_trials: int,
    random_state: Any,
    arguments: Mapping[str, Any] | None,
) -> CandidateSource:
    """Return a source of `n_trials` candidates.

    Args:
        optimization: name of a searcher, in upper or lower case, or a searcher object.
        distributions: the space in the user's form.
        n_trials: number of candidates.
        random_state: scikit-learn's argument. Each search advances a `RandomState`, so that the next search
            draws different candidates.
        arguments: arguments of the searcher's constructor.

    Raises:
        ConfigError: an argument is wrong, or the searcher can't search this space.
        MissingDependencyError: the searcher's package is not installed.
    """
    if isinstance(optimization, Searcher):
        if arguments:
            raise ConfigError(
                f"search_kwargs={dict(arguments)!r} require search_optimization to be a name, not an "
                f"existing {type(optimization).__name__}: pass them to its constructor"
            )
        learns = not isinstance(optimization, BasicVariantGenerator)
        space: Mapping[str, Any] | None = for_searcher(distributions)
        if getattr(optimization, "_space", None) is not None:
            if space:
                warnings.warn(
                    f"search_optimization: this {type(optimization).__name__} has its own space, "
                    f"which replaces param_distributions: pass param_distributions={{}}, or make the "
                    "searcher without a space",
                    stacklevel=4,
                )
            space = None
        return CandidateSource(optimization, space, n_trials, learns, seed_of(random_state))
    name = str(optimization).lower()
    if name == RANDOM:
        if arguments:
            raise ConfigError(f"search_kwargs={dict(arguments)!r}: the random search takes no arguments")
        return _random(distributions, n_trials, random_state)
    if name not in LEARNING:
        names = [RANDOM, *LEARNING]
        raise ConfigError(
            f"search_optimization={optimization!r} is not one of {', '.join(names)}, nor a searcher such as "
            f"trainkit.tune.search.OptunaSearch().{did_you_mean(name, names)}"
        )
    cls: Any = SEARCHERS.find(LEARNING[name])
    given, seed = dict(arguments or {}), seed_of(random_state)
    # The searcher "bayesian" has a fixed default seed. Other searchers use the tuner's seed.
    if name == "bayesian":
        given.setdefault("random_state", seed)
    taken = inspect.signature(cls).parameters
    unknown = sorted(given.keys() - taken.keys())
    if unknown:
        raise ConfigError(
            f"search_kwargs: {LEARNING[name]} has no arguments {', '.join(unknown)}, only {', '.join(taken)}"
        )
    if name == "hyperopt":
        space = for_searcher(distributions, hyperopt=True)
        if any(map(is_expression, space.values())):
            return CandidateSource(cls(space=for_hyperopt(space), **given), None, n_trials, True, seed)
    return CandidateSource(cls(**given), for_searcher(distributions), n_trials, True, seed)


def _random(distributions: Any, n_trials: int, random_state: Any) -> CandidateSource:
    if is_declared(distributions):
        space = for_searcher(distributions)
        return CandidateSource(BasicVariantGenerator(), space, n_trials, False, seed_of(random_state))
    sampler = ParameterSampler(for_sampler(distributions), n_trials, random_state=random_state)
    # `list` draws all candidates at once, which advances the random generator exactly as in
    # RandomizedSearchCV.
    seed = random_state if isinstance(random_state, numbers.Integral) else None
    return CandidateSource(CandidateList(list(sampler)), None, -1, False, None if seed is None else int(seed))


def seed_of(random_state: Any) -> int:
    """Return the seed of a search; for None, draw a seed from NumPy's global generator, like scikit-learn."""
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
