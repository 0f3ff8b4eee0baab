"""The three ways to say what Optuna searches: our domains, its distributions, a function of its trial."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.search.forms import Declared, Form
from trainkit.tune.search.optuna.asking import Found, Params, alternatives
from trainkit.tune.search.optuna.domains import Coder, coder_of
from trainkit.tune.spaces.tree import everything, holds_leaf
from trainkit.tune.spaces.variants import Space
from trainkit.tune.values import flatten, holds_opaque

if TYPE_CHECKING:
    from numpy.random import Generator
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

__all__ = ["DeclaredForm", "DefineByRun", "Distributions", "OptunaForm", "Params", "form_of"]


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


class DeclaredForm(Declared[Coder]):
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
        return DeclaredForm(space)
    if isinstance(space, Mapping) and space:
        from optuna.distributions import BaseDistribution

        if any(isinstance(value, BaseDistribution) for value in flatten(space).values()):
            return Distributions(space)
        return DeclaredForm(Space.of(space), own=own)
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
