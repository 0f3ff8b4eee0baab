"""What BayesOptSearch searches, and where its values are in a model of real numbers; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.checks import is_number, require
from trainkit.tune.domains import Categorical, Domain, Float, Integer, place_of
from trainkit.tune.search.forms import Declared
from trainkit.tune.spaces.variants import Space
from trainkit.tune.suggestion.merging import nested
from trainkit.tune.values import flatten

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


class Code(Protocol):
    """One parameter in the model.

    Attributes:
        bounds: between which the model looks, by coordinate.
    """

    bounds: dict[str, tuple[float, float]]

    def encode(self, value: Any) -> Place:
        """Where a value of the domain is."""

    def decode(self, place: Place) -> Any:
        """The value at a place, inside the domain."""


class _Real:
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


class _Steps:
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


class _Choice:
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


def code_of(name: str, domain: Domain) -> Code:
    """The code of one parameter.

    Raises:
        ConfigError: its domain has no bounds.
    """
    match domain:
        case Float(q=None):
            return _Real(name, domain)
        case Float() | Integer():
            return _Steps(name, domain)
        case Categorical():
            return _Choice(name, domain)
    raise ConfigError(
        f"{name}: BayesOptSearch searches between bounds and in lists, as tune.uniform, tune.randint and "
        f"tune.choice give them, and this is {domain}; take OptunaSearch for others"
    )


class Box(Declared[Code]):
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
            if isinstance(code, _Steps)
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
