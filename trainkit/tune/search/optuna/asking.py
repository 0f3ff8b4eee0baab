"""What else a space holds that is known by asking: Optuna's distributions, or a function of its trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from trainkit.tune.search.alternatives import DRAWS, MAX_LISTED
from trainkit.tune.search.optuna.saying import quiet

if TYPE_CHECKING:
    from numpy.random import Generator
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

Params = tuple[dict[str, Any], "dict[str, BaseDistribution]"]
"""What Optuna knows of a trial: the value and the distribution of each parameter."""

Found = Iterator[tuple[dict[str, Any], Params]]
"""Configurations, each with what Optuna knows it by."""


def alternatives(suggest: Callable[[Trial], dict[str, Any]], rng: Generator) -> Found:
    """Yield configurations drawn at random, and of a small space then all.

    Args:
        suggest: the configuration that a trial of Optuna's comes to, by what it is asked for.
        rng: all randomness.
    """
    from optuna.samplers import RandomSampler

    small = True
    for config, params in islice(_asked(suggest, RandomSampler(int(rng.integers(2**31)))), DRAWS):
        small = small and all(map(_is_small, params[1].values()))
        yield config, params
    if small:
        yield from islice(_listed(suggest, rng), MAX_LISTED)


def _asked(suggest: Callable[[Trial], dict[str, Any]], sampler: BaseSampler) -> Found:
    """One after the other, in a study of their own."""
    import optuna

    with quiet():
        study = optuna.create_study(sampler=sampler)
    while True:
        trial = study.ask()
        yield suggest(trial), (trial.params, trial.distributions)


def _listed(suggest: Callable[[Trial], dict[str, Any]], rng: Generator) -> Found:
    wheels = _Wheels(rng)
    for found in _asked(suggest, cast("BaseSampler", wheels)):
        yield found
        if not wheels.turn():
            return


class _Wheels:
    """As a sampler of Optuna's: answers like a counter, whose last wheel turns first, until all was there.

    A wheel is what one question may be answered, in a random order. What is asked after it may depend on the
    answer, so the wheels behind one that turns are found anew. Optuna's own BruteForceSampler can't tell
    values of a list apart that have no hash, such as the layers of a network, [64] and [64, 32].
    """

    def __init__(self, rng: Generator) -> None:
        self._rng = rng
        self._wheels: list[list[Any]] = []
        """What is left of each, the present answer last."""
        self._asked = 0

    def before_trial(self, study: Any, trial: Any) -> None:
        self._asked = 0

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, distribution: Any) -> Any:
        if self._asked == len(self._wheels):
            values = _values(distribution)
            self._wheels.append([values[place] for place in self._rng.permutation(len(values))])
        self._asked += 1
        return self._wheels[self._asked - 1][-1]

    def turn(self) -> bool:
        """Go on to the next combination; False if all have been there."""
        while self._wheels:
            self._wheels[-1].pop()
            if self._wheels[-1]:
                return True
            del self._wheels[-1]
        return False


def _values(distribution: Any) -> list[Any]:
    """All that a small one has, as `_is_small` says."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    low, high, step = distribution.low, distribution.high, distribution.step
    if isinstance(distribution, IntDistribution):
        return list(range(low, high + 1, step))
    # As its samplers round to them, so that what they suggest is one of these to the last digit.
    return [min(place * step + low, high) for place in range(round((high - low) / step) + 1)]


def _is_small(distribution: Any) -> bool:
    from optuna.distributions import CategoricalDistribution

    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices) <= MAX_LISTED
    step = distribution.step
    return step is not None and (distribution.high - distribution.low) / step < MAX_LISTED
