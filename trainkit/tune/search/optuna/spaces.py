"""Search spaces for Optuna: domains of trainkit, distributions of Optuna, or a function of Optuna's trial."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, cast

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.core.metrics import flatten
from trainkit.tune.search.encoded_space import DRAWS, MAX_LISTED, Declared, Form
from trainkit.tune.search.optuna.samplers import quiet
from trainkit.tune.space.domains import Domain
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import holds_opaque
from trainkit.tune.space.transforms import ChoiceCode, NormalCode, RealCode, StepCode, code_of
from trainkit.tune.space.tree import everything, holds_leaf

if TYPE_CHECKING:
    from numpy.random import Generator
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial


QUANTILES = 2**20
"""Number of steps of the quantiles of a normal distribution.

Because of the steps, each value has a single encoding.
"""

_PLAIN = (str, int, float, bool, type(None))


class OptunaParameter:
    """One parameter of trainkit in the form of an Optuna distribution.

    A multiple k * q is suggested as the whole number k, which is exact, also on a logarithmic scale. A
    normally distributed value is suggested as a quantile, so that the uniform draws at the start of a search
    follow the user's distribution. If a value of a list is not a str, int, float, bool or None, all values of
    the list are suggested as text, with their index and a shortened repr.

    Attributes:
        distribution: the parameter as Optuna's distribution.
        exact: True if each value has only one encoding for Optuna.
    """

    def __init__(self, name: str, domain: Domain) -> None:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        self._name, self._code = name, code_of(name, domain, "OptunaSearch")
        self.exact = True
        self.distribution: BaseDistribution
        match self._code:
            case ChoiceCode(categories=categories):
                self._params = _params_of(categories)
                self._place = {param: place for place, param in enumerate(self._params)}
                self.distribution = CategoricalDistribution(self._params)
            case NormalCode(stepped=stepped):
                self.distribution = IntDistribution(1, QUANTILES - 1)
                self.exact = not stepped  # several quantiles round to the same value
            case StepCode(first=first, last=last, log=log):
                self.distribution = IntDistribution(first, last, log=log)
            case RealCode(ends=(low, high), log=log):
                self.distribution = FloatDistribution(low, high, log=log)

    def ask(self, trial: Trial) -> Any:
        """Return the value that `trial` suggests."""
        answer = _suggest(trial, self._name, self.distribution)
        match self._code:
            case ChoiceCode(categories=categories):
                return categories[self._place[answer]]
            case NormalCode() as code:
                return code.from_unit(answer / QUANTILES)
        return self._code.decode(answer)

    def encode(self, value: Any) -> Any:
        """Return the encoding of `value` for Optuna."""
        match self._code:
            case ChoiceCode() as code:
                return self._params[code.encode(value)]
            case NormalCode() as code:
                return min(max(round(code.to_unit(value) * QUANTILES), 1), QUANTILES - 1)
        return self._code.encode(value)


def _params_of(categories: Sequence[Any]) -> list[Any]:
    """Return the encodings of a list's values for Optuna."""
    plain = all(type(value) in _PLAIN and value == value for value in categories)
    if plain and len(set(categories)) == len(categories):
        return list(categories)
    # A default repr contains an address, but a study's database needs equal names in every process, so the
    # address is removed.
    words = [re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))[:40] for value in categories]
    return [f"{place}: {each}" for place, each in enumerate(words)]


Params = tuple[dict[str, Any], "dict[str, BaseDistribution]"]
"""A trial in Optuna's form: the value and the distribution of each parameter."""

Found = Iterator[tuple[dict[str, Any], Params]]
"""Configurations, each with its values and distributions in Optuna's form."""


def alternatives(suggest: Callable[[Trial], dict[str, Any]], rng: Generator) -> Found:
    """Yield configurations drawn at random, then all configurations of a small space.

    Args:
        suggest: function that asks an Optuna trial for values and returns a configuration.
        rng: source of all randomness.
    """
    from optuna.samplers import RandomSampler

    small = True
    for config, params in islice(_asked(suggest, RandomSampler(int(rng.integers(2**31)))), DRAWS):
        small = small and all(map(_is_small, params[1].values()))
        yield config, params
    if small:
        yield from islice(_listed(suggest, rng), MAX_LISTED)


def _asked(suggest: Callable[[Trial], dict[str, Any]], sampler: BaseSampler) -> Found:
    """Yield configurations from a new study in memory, so that the searcher's own study does not change."""
    import optuna

    with quiet():
        study = optuna.create_study(sampler=sampler)
    while True:
        trial = study.ask()
        yield suggest(trial), (trial.params, trial.distributions)


def _listed(suggest: Callable[[Trial], dict[str, Any]], rng: Generator) -> Found:
    enumeration = _Enumeration(rng)
    for found in _asked(suggest, cast("BaseSampler", enumeration)):
        yield found
        if not enumeration.advance():
            return


class _Enumeration:
    """A sampler for Optuna that enumerates all combinations once; the last parameter changes fastest.

    The values of a parameter come in random order. The parameters that follow may depend on a value, so they
    are determined again when the value changes. Optuna's BruteForceSampler is not used, because it reads all
    trials for each value, and can't distinguish unhashable values, such as the lists of layers [64] and [64,
    32].
    """

    def __init__(self, rng: Generator) -> None:
        self._rng = rng
        self._left: list[list[Any]] = []
        """Remaining values of each parameter; the current value is last."""
        self._asked = 0

    def before_trial(self, study: Any, trial: Any) -> None:
        self._asked = 0

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, distribution: Any) -> Any:
        if self._asked == len(self._left):
            values = _values(distribution)
            self._left.append([values[place] for place in self._rng.permutation(len(values))])
        self._asked += 1
        return self._left[self._asked - 1][-1]

    def advance(self) -> bool:
        """Move on to the next combination; return False after the last combination."""
        while self._left:
            self._left[-1].pop()
            if self._left[-1]:
                return True
            del self._left[-1]
        return False


def _values(distribution: Any) -> list[Any]:
    """Return all values of a distribution that `_is_small` accepts."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    low, high, step = distribution.low, distribution.high, distribution.step
    if isinstance(distribution, IntDistribution):
        return list(range(low, high + 1, step))
    # The values are rounded as in Optuna's samplers, so that each suggested value exactly equals a value of
    # this list.
    return [min(place * step + low, high) for place in range(round((high - low) / step) + 1)]


def _is_small(distribution: Any) -> bool:
    from optuna.distributions import CategoricalDistribution

    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices) <= MAX_LISTED
    step = distribution.step
    return step is not None and (distribution.high - distribution.low) / step < MAX_LISTED


class OptunaForm(Form, Protocol):
    """A search space in the form that Optuna's samplers need; a trial is encoded as `Params`.

    Attributes:
        conditional: True if trials may differ in their parameters.
    """

    conditional: bool

    def suggest(self, trial: Trial, rng: Generator) -> dict[str, Any]:
        """Return the configuration that Optuna's `trial` suggests;
        `sample_from` functions draw from `rng`.
        """

    def param_of(self, name: str, value: Any) -> Any:
        """Return the encoding of a parameter's value for Optuna.

        Raises:
            SpaceError: the value is outside of the parameter's domain.
        """


class OptunaDomains(Declared[OptunaParameter]):
    """A search space of domains such as `tune.uniform(0, 1)`, with conditions."""

    def __init__(self, space: Space, *, own: bool = False) -> None:
        super().__init__(space, OptunaParameter, searcher="OptunaSearch", own=own)
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
            raise SpaceError(
                f"the sampler contains {name}={value!r}, but the space has only {', '.join(self.codes)}"
            )
        domain = next(each.domain for each in self.declared.parameters if each.name == name)
        if not domain.contains(value):
            raise SpaceError(f"the sampler contains {name}={value!r}, which is not in {domain}")
        return self.codes[name].encode(value)


class _Asked(ABC):
    """Base of spaces whose parameters become known only when an Optuna trial is asked for values."""

    space: Space | None = None

    @abstractmethod
    def suggest(self, trial: Trial, rng: Generator) -> dict[str, Any]:
        """Return the configuration that `trial` suggests."""

    def others(self, rng: Generator) -> Found:
        return alternatives(lambda trial: self.suggest(trial, rng), rng)

    def param_of(self, name: str, value: Any) -> Any:
        return value


class Distributions(_Asked):
    """A search space of Optuna's distributions in a dictionary, nested or with keys such as 'net/width'."""

    conditional = False

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
                    f"space mixes {name}={value!r} with Optuna's distributions, which is not supported: use "
                    "only Optuna's distributions, each with its own key, or only tune's domains"
                )

    def suggest(self, trial: Trial, rng: Generator) -> dict[str, Any]:
        drawn = {name: _suggest(trial, name, each) for name, each in self._distributions.items()}
        return {**self._constants, **drawn}

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        given = flatten(point)
        for name, value in given.items():
            if name not in self._distributions and self._constants.get(name, _ABSENT) != value:
                raise ConfigError(
                    f"points_to_evaluate has {name}={value!r}; the space has {', '.join(self._distributions)}"
                )
        fixed = {name: value for name, value in given.items() if name in self._distributions}
        return fixed, len(fixed) < len(self._distributions)

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Params | None:
        values = _by_name(config)
        if holds_opaque(config) or not self._distributions.keys() <= values.keys():
            return None
        return {name: values[name] for name in self._distributions}, dict(self._distributions)


class DefineByRun(_Asked):
    """A search space given as a function that asks an Optuna trial for values and may return constants."""

    conditional = True

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def suggest(self, trial: Trial, rng: Generator) -> dict[str, Any]:
        constants = self._call(trial)
        return {**trial.params, **constants}

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        from optuna.trial import FixedTrial

        given = _by_name(point)
        trial = FixedTrial(given)
        try:
            self._call(trial)
        except ValueError:  # the point lacks a value that the function asks for
            return flatten(point), True
        unknown = [name for name in flatten(point) if name not in trial.params]
        if unknown:
            raise ConfigError(
                f"points_to_evaluate has {', '.join(unknown)}, but the space has {', '.join(trial.params)}"
            )
        return dict(trial.params), False

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Params | None:
        from optuna.trial import FixedTrial

        if holds_opaque(config):
            return None
        trial = FixedTrial(_by_name(config))
        try:
            with warnings.catch_warnings():
                # An error is raised, because Optuna itself only warns of a value outside of its domain.
                warnings.simplefilter("error", UserWarning)
                constants = self._call(trial)
        except Exception:  # the next suggestion calls the function again, and then raises the error
            return None
        if constants.keys() & trial.params.keys():
            return None  # a constant replaced the suggested value, which is lost
        return dict(trial.params), dict(trial.distributions)

    def _call(self, trial: Any) -> dict[str, Any]:
        returned = self._function(trial)
        if returned is None:
            return {}
        if not isinstance(returned, Mapping) or not all(isinstance(key, str) for key in returned):
            raise ConfigError(
                f"the function of the space returned {returned!r}: return None or a dictionary of constants"
            )
        return dict(returned)


_ABSENT = object()


def form_of(space: Any, *, own: bool) -> OptunaForm:
    """Return the form of a user's `space` for Optuna.

    Raises:
        ConfigError: `space` is neither a dictionary of domains or distributions, nor a function.
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
        f"space must be a dictionary of domains or Optuna distributions, or a function (trial), not {space!r}"
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
        with warnings.catch_warnings():  # Optuna's warning concerns databases
            warnings.simplefilter("ignore", UserWarning)
            return trial.suggest_categorical(name, distribution.choices)
    raise ConfigError(f"{name}: {distribution!r} is not a float, int or categorical distribution of Optuna")


def _by_name(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all values by path, also values that are dictionaries: {"a": {"b": 1}} gives "a" and "a/b"."""
    named: dict[str, Any] = {}
    for key, value in config.items():
        named[f"{prefix}{key}"] = value
        if isinstance(value, Mapping):
            named |= _by_name(value, f"{prefix}{key}/")
    return named
