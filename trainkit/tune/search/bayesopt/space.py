"""The real numbers that BayesOptSearch searches: which they are, and their places in its model; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_number, require
from trainkit.tune.domains import Domain, Float
from trainkit.tune.search.forms import Declared
from trainkit.tune.spaces.variants import Space
from trainkit.tune.suggestion.merging import nested
from trainkit.tune.values import flatten

if TYPE_CHECKING:
    from numpy.random import Generator


Place = dict[str, float]
"""Of a configuration in the model: a coordinate for each parameter."""


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


class RealCode:
    """One parameter in the model: its logarithm, where its domain is logarithmic.

    Args:
        name: of the parameter.
        domain: of it.

    Attributes:
        bounds: between which the model looks.

    Raises:
        ConfigError: it is not of real numbers.
    """

    def __init__(self, name: str, domain: Domain) -> None:
        if not isinstance(domain, Float) or domain.q is not None:
            raise ConfigError(
                f"{name}: BayesOptSearch searches real numbers without steps, as tune.uniform and "
                f"tune.loguniform give, and this is {domain}; take OptunaSearch for others"
            )
        self._lower, self._last, self._log = (
            domain.lower,
            math.nextafter(domain.upper, domain.lower),
            domain.log,
        )
        self.bounds = (
            (math.log(domain.lower), math.log(domain.upper)) if domain.log else (domain.lower, domain.upper)
        )

    def encode(self, value: Any) -> float:
        low, high = self.bounds
        return min(max(math.log(value) if self._log else float(value), low), high)

    def decode(self, place: float) -> float:
        return min(max(math.exp(place) if self._log else place, self._lower), self._last)


class Box(Declared[RealCode]):
    """Real parameters, which all configurations have.

    Raises:
        ConfigError: one is not of real numbers, or depends on another.
    """

    def __init__(self, space: Space, *, own: bool) -> None:
        super().__init__(space, RealCode, searcher="BayesOptSearch", own=own)
        for each in space.parameters:
            if each.is_conditional:
                raise ConfigError(
                    f"{each.name}: BayesOptSearch needs the same parameters in every trial, and this one has "
                    "a condition; take OptunaSearch"
                )

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Of each parameter in the model."""
        return {name: code.bounds for name, code in self.codes.items()}

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, float], bool]:
        _, open_ = super().fixed(point)
        return self.declared.point(point), open_  # as it is: the exponential of a logarithm may be another

    def configuration(self, place: Place, fixed: Mapping[str, float], rng: Generator) -> dict[str, Any]:
        """The configuration at a place of the model, with what is fixed; `sample_from` draws from `rng`."""

        def ask(name: str, domain: Domain) -> float:
            del domain
            return fixed[name] if name in fixed else self.codes[name].decode(place[name])

        return self.declared.walk(ask, rng)
