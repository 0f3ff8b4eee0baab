"""Sources of candidates: a list known beforehand, or a searcher of the tuner."""

from __future__ import annotations

import inspect
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.model_selection import ParameterSampler
from sklearn.utils import check_random_state

from trainkit.errors import ConfigError, did_you_mean
from trainkit.sklearn import spaces
from trainkit.tune.search import SEARCHERS
from trainkit.tune.search.base import Searcher
from trainkit.tune.search.basic_variant import BasicVariantGenerator


class CandidateList(Searcher):
    """Searcher that suggests given candidates in order, each once.

    Args:
        candidates: parameters by name; any objects, estimators too.
    """

    def __init__(self, candidates: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._candidates = candidates
        self._next = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy with the same candidates: `best_params_` holds the objects that were given."""
        other = type(self)(self._candidates)
        other._next = self._next
        return other

    @property
    def total_samples(self) -> int | None:
        return len(self._candidates)

    @property
    def whole(self) -> bool:
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._next == len(self._candidates):
            return self.FINISHED
        self._next += 1
        return dict(self._candidates[self._next - 1])

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Ignore the outcome of a candidate."""


class CandidateSource(NamedTuple):
    """Source of the candidates of a search, with their space.

    Attributes:
        searcher: that suggests.
        space: for the tuner, as `param_space`; None: the searcher knows it.
        num_samples: how many suggestions; -1: as many as it has.
        learns: True if what it suggests depends on the scores.
        seed: of everything random; None: draws one.
    """

    searcher: Searcher
    space: Mapping[str, Any] | None = None
    num_samples: int = -1
    learns: bool = False
    seed: int | None = None

    @property
    def total(self) -> int | None:
        """Number of candidates; None if it is not known."""
        return self.searcher.total_samples if self.known_beforehand else None

    @property
    def known_beforehand(self) -> bool:
        """True if the candidates are a list, in which one may stand twice."""
        return isinstance(self.searcher, CandidateList)


RANDOM = "random"
BOHB = "bohb"
LEARNING = {
    "bayesian": "BayesOptSearch",
    BOHB: "TuneBOHB",
    "hyperopt": "HyperOptSearch",
    "optuna": "OptunaSearch",
}
"""Searchers that learn, by the names of tune-sklearn."""


def search_of(
    optimization: Any,
    distributions: Any,
    n_trials: int,
    random_state: Any,
    arguments: Mapping[str, Any] | None,
) -> CandidateSource:
    """Return a source of `n_trials` candidates.

    Args:
        optimization: a name, in any case, or a searcher.
        distributions: the space, as a user writes it.
        n_trials: candidates.
        random_state: as scikit-learn takes it; a `RandomState` goes on, so another search differs.
        arguments: of the searcher's constructor.

    Raises:
        ConfigError: an argument is wrong, or the searcher can't search this space.
        MissingDependencyError: the searcher's package is not installed.
    """
    if isinstance(optimization, Searcher):
        if arguments:
            raise ConfigError(
                f"search_kwargs={dict(arguments)!r} are for a searcher that is named: this one, a "
                f"{type(optimization).__name__}, is made already; give them to its constructor"
            )
        learns = not isinstance(optimization, BasicVariantGenerator)
        space: Mapping[str, Any] | None = spaces.for_searcher(distributions)
        if getattr(optimization, "_space", None) is not None:
            if space:
                warnings.warn(
                    f"search_optimization: this {type(optimization).__name__} was made with a space of its "
                    "own, which is searched; param_distributions is not. Give it param_distributions={}, or "
                    "make it without a space",
                    stacklevel=4,
                )
            space = None
        return CandidateSource(optimization, space, n_trials, learns, seed_of(random_state))
    name = str(optimization).lower()
    if name == RANDOM:
        if arguments:
            raise ConfigError(f"search_kwargs={dict(arguments)!r}: the random search takes none")
        return _random(distributions, n_trials, random_state)
    if name not in LEARNING:
        names = [RANDOM, *LEARNING]
        raise ConfigError(
            f"search_optimization={optimization!r} is none of {', '.join(names)}, nor a searcher such as "
            f"trainkit.tune.search.OptunaSearch().{did_you_mean(name, names)}"
        )
    cls: Any = SEARCHERS.find(LEARNING[name])
    given, seed = dict(arguments or {}), seed_of(random_state)
    if name == "bayesian":  # it has a seed by default; the others take the tuner's
        given.setdefault("random_state", seed)
    taken = inspect.signature(cls).parameters
    unknown = sorted(given.keys() - taken.keys())
    if unknown:
        raise ConfigError(
            f"search_kwargs: {LEARNING[name]} takes no {', '.join(unknown)}; it takes {', '.join(taken)}"
        )
    if name == "hyperopt":
        space = spaces.for_searcher(distributions, hyperopt=True)
        if any(map(spaces.is_expression, space.values())):
            return CandidateSource(cls(space=spaces.for_hyperopt(space), **given), None, n_trials, True, seed)
    return CandidateSource(cls(**given), spaces.for_searcher(distributions), n_trials, True, seed)


def _random(distributions: Any, n_trials: int, random_state: Any) -> CandidateSource:
    if spaces.is_declared(distributions):
        space = spaces.for_searcher(distributions)
        return CandidateSource(BasicVariantGenerator(), space, n_trials, False, seed_of(random_state))
    sampler = ParameterSampler(spaces.for_sampler(distributions), n_trials, random_state=random_state)
    # A generator is advanced by exactly the draws of the candidates, as in RandomizedSearchCV.
    seed = random_state if isinstance(random_state, numbers.Integral) else None
    return CandidateSource(CandidateList(list(sampler)), None, -1, False, None if seed is None else int(seed))


def seed_of(random_state: Any) -> int:
    """Return the seed of a search; None draws it from NumPy's global generator, as in scikit-learn."""
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
