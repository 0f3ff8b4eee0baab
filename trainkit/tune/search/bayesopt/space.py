"""The real numbers that BayesOptSearch searches: which they are, and their places in its model; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_number, require
from trainkit.tune.domains import Float
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


def real_domains(space: Space) -> dict[str, Float]:
    """The domains by name.

    Raises:
        ConfigError: one is not of real numbers, or depends on another.
    """
    found: dict[str, Float] = {}
    for each in space.parameters:
        domain = each.domain
        if each.is_axis or not isinstance(domain, Float) or domain.q is not None:
            raise ConfigError(
                f"{each.name}: BayesOptSearch searches real numbers without steps, as tune.uniform and "
                f"tune.loguniform give, and this is {domain}; take OptunaSearch for others"
            )
        if each.is_conditional:
            raise ConfigError(
                f"{each.name}: BayesOptSearch needs the same parameters in every trial, and this one has a "
                "condition; take OptunaSearch"
            )
        found[each.name] = domain
    return found


def bounds(domain: Float) -> tuple[float, float]:
    """Where the model looks for this parameter: logarithms of it, where its domain is logarithmic."""
    if domain.log:
        return math.log(domain.lower), math.log(domain.upper)
    return domain.lower, domain.upper


def in_model(domain: Float, value: float) -> float:
    """The place of a value in the model."""
    low, high = bounds(domain)
    return min(max(math.log(value) if domain.log else float(value), low), high)


def of_model(domain: Float, place: float) -> float:
    """The value at a place of the model, inside the domain."""
    value = math.exp(place) if domain.log else place
    return min(max(value, domain.lower), math.nextafter(domain.upper, domain.lower))
