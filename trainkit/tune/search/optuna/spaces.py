"""Spaces for Optuna: our domains, its distributions, or a function of its trial."""

from __future__ import annotations

import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Protocol, cast

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.core.values import flatten, holds_opaque
from trainkit.tune.search.alternatives import DRAWS, MAX_LISTED
from trainkit.tune.search.codec import Declared, Form
from trainkit.tune.search.optuna.samplers import quiet
from trainkit.tune.space.domains import Categorical, Domain, Float, Integer, Normal, place_of
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.tree import everything, holds_leaf

if TYPE_CHECKING:
    from numpy.random import Generator
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial


QUANTILES = 2**20
"""Steps in which the quantiles of a normal distribution are searched; counted, so a value gives its step."""

_PLAIN = (str, int, float, bool, type(None))


class OptunaCoder(ABC):
    """Asks a trial for one parameter.

    Attributes:
        name: of the parameter.
        distribution: Optuna's.
        exact: True if `encode` gives what `ask` was answered.
    """

    exact = True

    def __init__(self, name: str, distribution: BaseDistribution) -> None:
        self.name = name
        self.distribution = distribution

    @abstractmethod
    def ask(self, trial: Trial) -> Any:
        """The value that `trial` suggests."""

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """What Optuna knows `value` by."""


class _OptunaReal(OptunaCoder):
    def __init__(self, name: str, domain: Float) -> None:
        from optuna.distributions import FloatDistribution

        super().__init__(name, FloatDistribution(domain.lower, domain.upper, log=domain.log))
        self._domain = domain
        self._last = math.nextafter(domain.upper, domain.lower)

    def ask(self, trial: Trial) -> float:
        domain = self._domain
        return min(trial.suggest_float(self.name, domain.lower, domain.upper, log=domain.log), self._last)

    def encode(self, value: Any) -> float:
        return float(value)


class _OptunaSteps(OptunaCoder):
    """Multiples of q, as Optuna's whole numbers: exact, and with a logarithm too."""

    def __init__(self, name: str, domain: Float | Integer) -> None:
        from optuna.distributions import IntDistribution

        self._q = Fraction(repr(domain.q))
        self._whole = isinstance(domain, Integer)
        self._first, self._last = (round(Fraction(bound) / self._q) for bound in domain.bounds)
        self._log = domain.log
        super().__init__(name, IntDistribution(self._first, self._last, log=self._log))

    def ask(self, trial: Trial) -> float:
        k = trial.suggest_int(self.name, self._first, self._last, log=self._log)
        if self._whole:
            return k * self._q.numerator
        return k * self._q.numerator / self._q.denominator

    def encode(self, value: Any) -> int:
        return round(Fraction(value) / self._q)


class _OptunaQuantile(OptunaCoder):
    """A normal distribution by its quantiles, so that Optuna's even start has the user's prior."""

    def __init__(self, name: str, domain: Normal) -> None:
        from optuna.distributions import IntDistribution

        super().__init__(name, IntDistribution(1, QUANTILES - 1))
        self._domain = domain
        self._normal = NormalDist(domain.mean, domain.sd)
        self.exact = domain.q is None  # values that were rounded have many quantiles

    def ask(self, trial: Trial) -> float:
        value = self._normal.inv_cdf(trial.suggest_int(self.name, 1, QUANTILES - 1) / QUANTILES)
        if self._domain.q is None:
            return value
        q = Fraction(repr(self._domain.q))
        k = round(Fraction(value) / q)
        return k * q.numerator / q.denominator

    def encode(self, value: Any) -> int:
        return min(max(round(self._normal.cdf(value) * QUANTILES), 1), QUANTILES - 1)


class _OptunaChoice(OptunaCoder):
    """One of a list; what is no plain value goes by its place and a few words."""

    def __init__(self, name: str, domain: Categorical) -> None:
        from optuna.distributions import CategoricalDistribution

        self._categories = domain.categories
        self._params: Sequence[Any] = domain.categories
        plain = all(type(value) in _PLAIN and value == value for value in domain.categories)
        if not plain or len(set(domain.categories)) < len(domain.categories):
            self._params = [f"{place}: {_words(value)}" for place, value in enumerate(domain.categories)]
        self._place = {param: place for place, param in enumerate(self._params)}
        super().__init__(name, CategoricalDistribution(self._params))

    def ask(self, trial: Trial) -> Any:
        return self._categories[self._place[trial.suggest_categorical(self.name, self._params)]]

    def encode(self, value: Any) -> Any:
        place = place_of(value, self._categories)
        if place is None:
            raise SpaceError(f"{self.name}={value!r} is not in {self.name}'s list")
        return self._params[place]


def _words(value: Any) -> str:
    """The same in every process, as a study's database asks for: a default repr holds an address."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))[:40]


def coder_of(name: str, domain: Domain) -> OptunaCoder:
    """Return what asks Optuna for a value of `domain`.

    Raises:
        SpaceError: it is no domain of ours.
    """
    match domain:
        case Float(q=None):
            return _OptunaReal(name, domain)
        case Float() | Integer():
            return _OptunaSteps(name, domain)
        case Normal():
            return _OptunaQuantile(name, domain)
        case Categorical():
            return _OptunaChoice(name, domain)
    raise SpaceError(f"{name}: OptunaSearch does not know {domain}; give one of tune's domains")


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


__all__ = ["DefineByRun", "Distributions", "OptunaDomains", "OptunaForm", "Params", "form_of"]


class OptunaForm(Form, Protocol):
    """One of the ways; the model knows a trial by its `Params`.

    Attributes:
        conditional: True if trials may differ in which parameters they have.
    """

    conditional: bool

    def suggest(self, trial: Trial, rng: Generator) -> dict[str, Any]:
        """The configuration that `trial` suggests; all randomness besides comes from `rng`."""

    def param_of(self, name: str, value: Any) -> Any:
        """What Optuna knows a parameter's value by.

        Raises:
            SpaceError: it is not one of the parameter's.
        """


class OptunaDomains(Declared[OptunaCoder]):
    """Domains such as `tune.uniform(0, 1)`, with conditions."""

    def __init__(self, space: Space, *, own: bool = False) -> None:
        super().__init__(space, coder_of, searcher="OptunaSearch", own=own)
        self.conditional = any(parameter.is_conditional for parameter in space.parameters)

    def suggest(self, trial: Trial, rng: Generator) -> dict[str, Any]:
        return self.declared.walk(lambda name, domain: self.codes[name].ask(trial), rng)

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Params | None:
        params = super().known_by(config)
        if params is None or (exactly and not all(self.codes[name].exact for name in params)):
            return None
        return params, {name: self.codes[name].distribution for name in params}

    def param_of(self, name: str, value: Any) -> Any:
        if name not in self.codes:
            raise SpaceError(f"the sampler has {name}={value!r}, and the space has {', '.join(self.codes)}")
        domain = next(each.domain for each in self.declared.parameters if each.name == name)
        if not domain.contains(value):
            raise SpaceError(f"the sampler has {name}={value!r}, which {domain} does not hold")
        return self.codes[name].encode(value)


class _Asked(ABC):
    """What is found out by asking a trial of Optuna's."""

    @abstractmethod
    def suggest(self, trial: Trial, rng: Generator) -> dict[str, Any]:
        """See `OptunaForm`."""

    def others(self, rng: Generator) -> Found:
        return alternatives(lambda trial: self.suggest(trial, rng), rng)


class Distributions(_Asked):
    """A dictionary of Optuna's distributions, nested or with keys such as 'net/width'."""

    conditional = False
    space: Space | None = None

    def __init__(self, space: Mapping[str, Any]) -> None:
        from optuna.distributions import BaseDistribution

        flat = flatten(space)
        self._distributions = {
            name: value for name, value in flat.items() if isinstance(value, BaseDistribution)
        }
        self._constants = {name: value for name, value in flat.items() if name not in self._distributions}
        for name, value in self._constants.items():
            if holds_leaf(value) or any(isinstance(each, BaseDistribution) for each in everything(value)):
                raise ConfigError(
                    f"space has {name}={value!r} beside Optuna's distributions, where it would not be drawn: "
                    "give these only, each at a key of its own, or tune's domains only"
                )

    def suggest(self, trial: Trial, rng: Generator) -> dict[str, Any]:
        del rng
        return {
            **self._constants,
            **{name: _suggest(trial, name, each) for name, each in self._distributions.items()},
        }

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        given = flatten(point)
        for name, value in given.items():
            if name not in self._distributions and self._constants.get(name, _ABSENT) != value:
                raise ConfigError(
                    f"points_to_evaluate gives {name}={value!r}, which the space does not have; it has "
                    f"{', '.join(self._distributions)}"
                )
        fixed = {name: value for name, value in given.items() if name in self._distributions}
        return fixed, len(fixed) < len(self._distributions)

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Params | None:
        values = _by_name(config)
        if holds_opaque(config) or not self._distributions.keys() <= values.keys():
            return None
        return {name: values[name] for name in self._distributions}, dict(self._distributions)

    def param_of(self, name: str, value: Any) -> Any:
        return value


class DefineByRun(_Asked):
    """A function that asks an Optuna trial for what it wants, with branches, and may return constants."""

    conditional = True
    space: Space | None = None

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def suggest(self, trial: Trial, rng: Generator) -> dict[str, Any]:
        del rng
        constants = self._call(trial)
        return {**trial.params, **constants}

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        from optuna.trial import FixedTrial

        given = _by_name(point)
        trial = FixedTrial(given)
        try:
            self._call(trial)
        except ValueError:  # so FixedTrial says that it has no value for what it was asked
            return flatten(point), True
        unknown = [name for name in flatten(point) if name not in trial.params]
        if unknown:
            raise ConfigError(
                f"points_to_evaluate gives {', '.join(unknown)}, which the function of the space does not "
                f"ask for; it asks for {', '.join(trial.params)}"
            )
        return dict(trial.params), False

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Params | None:
        from optuna.trial import FixedTrial

        if holds_opaque(config):
            return None
        trial = FixedTrial(_by_name(config))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # of a value that is outside its distribution
                constants = self._call(trial)
        except Exception:  # it is asked again for its suggestion, and what is wrong will be raised there
            return None
        if constants.keys() & trial.params.keys():
            return None  # what was suggested was replaced by what was returned
        return dict(trial.params), dict(trial.distributions)

    def param_of(self, name: str, value: Any) -> Any:
        return value

    def _call(self, trial: Any) -> dict[str, Any]:
        returned = self._function(trial)
        if returned is None:
            return {}
        if not isinstance(returned, Mapping) or not all(isinstance(key, str) for key in returned):
            raise ConfigError(
                f"the function of the space returned {returned!r}; return nothing, or a dictionary of "
                "constants by name"
            )
        return dict(returned)


_ABSENT = object()


def form_of(space: Any, *, own: bool) -> OptunaForm:
    """Return the form of what a user gives as `space`.

    Raises:
        ConfigError: it is none of the three.
    """
    if isinstance(space, Space):
        return OptunaDomains(space)
    if isinstance(space, Mapping) and space:
        from optuna.distributions import BaseDistribution

        if any(isinstance(value, BaseDistribution) for value in flatten(space).values()):
            return Distributions(space)
        return OptunaDomains(Space.of(space), own=own)
    if callable(space):
        return DefineByRun(space)
    raise ConfigError(
        f"space={space!r}: give domains, Optuna's distributions by name, or a function of an Optuna trial"
    )


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, FloatDistribution):
        low, high, step = distribution.low, distribution.high, distribution.step
        return trial.suggest_float(name, low, high, step=step, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        low, high = distribution.low, distribution.high
        return trial.suggest_int(name, low, high, step=distribution.step, log=distribution.log)
    if isinstance(distribution, CategoricalDistribution):
        with warnings.catch_warnings():  # that a choice is no plain value matters to databases only
            warnings.simplefilter("ignore", UserWarning)
            return trial.suggest_categorical(name, distribution.choices)
    raise ConfigError(
        f"{name}: {distribution!r} is none of Optuna's float, int and categorical distributions"
    )


def _by_name(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value of a configuration, dictionaries too, by its path: {"a": {"b": 1}, "a/b": 1}."""
    named: dict[str, Any] = {}
    for key, value in config.items():
        named[f"{prefix}{key}"] = value
        if isinstance(value, Mapping):
            named |= _by_name(value, f"{prefix}{key}/")
    return named
