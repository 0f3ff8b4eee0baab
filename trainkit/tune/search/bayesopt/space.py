"""What BayesOptSearch searches, and where its values lie in a model of real numbers; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_number, require
from trainkit.tune.domains import Categorical, Domain, Float, Integer, place_of
from trainkit.tune.spaces.variants import Space
from trainkit.tune.values import flatten


def space_of(space: Any) -> Space:
    """The user's own: bounds by name, or domains.

    Raises:
        ConfigError: it is neither.
    """
    require(
        isinstance(space, Mapping) and bool(space),
        f"space={space!r}: give bounds by name, such as {{'x': (0, 1)}}, or domains",
    )
    tree: dict[str, Any] = {}
    for name, value in flatten(space).items():
        is_range = isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_number, value))
        *path, last = name.split("/")
        inner = tree
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = Float(float(value[0]), float(value[1])) if is_range else value
    return Space.of(tree)


def searched_domains(space: Space) -> dict[str, Domain]:
    """The domains by name.

    Raises:
        ConfigError: one has no bounds, or depends on another.
    """
    found: dict[str, Domain] = {}
    for each in space.parameters:
        domain = each.domain
        if each.is_axis or not isinstance(domain, (Float, Integer, Categorical)):
            raise ConfigError(
                f"{each.name}: BayesOptSearch searches between bounds and in lists, as tune.uniform, "
                f"tune.randint and tune.choice give them, and this is {domain}; take OptunaSearch for others"
            )
        if each.is_conditional:
            raise ConfigError(
                f"{each.name}: BayesOptSearch needs the same parameters in every trial, and this one has a "
                "condition; take OptunaSearch"
            )
        found[each.name] = domain
    return found


# --- coordinates of the model: real numbers, whatever the domain ----------------------------------
#
# Real numbers are their own place, or their logarithms are. Of whole numbers and steps the range is 0 to 1,
# and a place is rounded to one of them; of a list, each value has a coordinate from 0 to 1, and the largest
# says which is meant. The model is told of the place where the value itself is.
# Source: Garrido-Merchán, Hernández-Lobato, "Dealing with categorical and integer-valued variables in
# Bayesian optimization with Gaussian processes", Neurocomputing 380 (2020), arXiv:1805.03463.


def bounds(name: str, domain: Domain) -> dict[str, tuple[float, float]]:
    """Where the model looks for this parameter, by coordinate."""
    if isinstance(domain, Categorical):
        return dict.fromkeys(_names(name, domain), (0.0, 1.0))
    if isinstance(domain, Float) and domain.q is None:
        return {name: _ends(domain)}
    return {name: (0.0, 1.0)}


def in_model(name: str, domain: Domain, value: Any) -> dict[str, float]:
    """The place of a value in the model."""
    if isinstance(domain, Categorical):
        chosen = place_of(value, domain.categories)
        return {each: float(place == chosen) for place, each in enumerate(_names(name, domain))}
    low, high = _ends(domain)
    number = float(value) / _step(domain)
    number = math.log(number) if _is_log(domain) else number
    if isinstance(domain, Float) and domain.q is None:
        return {name: min(max(number, low), high)}
    return {name: min(max((number - low) / (high - low), 0.0), 1.0)}


def of_model(name: str, domain: Domain, place: Mapping[str, float]) -> Any:
    """The value at a place of the model, inside the domain."""
    if isinstance(domain, Categorical):
        names = _names(name, domain)
        return domain.categories[max(range(len(names)), key=lambda number: place[names[number]])]
    if isinstance(domain, Float) and domain.q is None:
        number = math.exp(place[name]) if domain.log else place[name]
        return min(max(number, domain.lower), math.nextafter(domain.upper, domain.lower))
    low, high = _ends(domain)
    number = low + place[name] * (high - low)
    number = math.exp(number) if _is_log(domain) else number
    step = Fraction(repr(_step(domain)))
    least, most = (round(Fraction(bound) / step) for bound in _bounds(domain))
    k = min(max(round(number), least), most)
    return k * step.numerator if isinstance(domain, Integer) else k * step.numerator / step.denominator


def _names(name: str, domain: Categorical) -> list[str]:
    return [f"{name}[{place}]" for place in range(len(domain.categories))]


def _ends(domain: Domain) -> tuple[float, float]:
    """Both ends, as logarithms if the domain is logarithmic; of steps, half of one beyond the ends."""
    low, high = _bounds(domain)
    if not (isinstance(domain, Float) and domain.q is None):
        low, high = low / _step(domain) - 0.5, high / _step(domain) + 0.5
    return (math.log(low), math.log(high)) if _is_log(domain) else (low, high)


def _is_log(domain: Domain) -> bool:
    return bool(getattr(domain, "log", False))


def _step(domain: Domain) -> float:
    return getattr(domain, "q", None) or 1


def _bounds(domain: Domain) -> tuple[float, float]:
    if not isinstance(domain, (Float, Integer)):
        raise TypeError(f"{domain} has no bounds")
    return domain.bounds
