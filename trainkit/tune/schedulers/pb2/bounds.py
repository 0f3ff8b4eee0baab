"""The bounds that PB2 chooses within: domains, and the way between their values and numbers from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.checks import is_finite, is_number, is_whole
from trainkit.tune.domains import Categorical, Domain, Float, Integer

Bounded = Float | Integer


def checked_bounds(bounds: Mapping[str, Any] | None, at: str = "hyperparam_bounds") -> dict[str, Any]:
    """Return `bounds` with a domain for each pair of numbers.

    Raises:
        ConfigError: there are none, or one is neither a pair in order nor such a domain; it is named.
    """
    if not isinstance(bounds, Mapping) or not bounds:
        raise ConfigError(f"{at}={bounds!r}: give the bounds of each value, such as {{'lr': [1e-4, 1e-1]}}")
    return {key: _checked(value, f"{at}[{key!r}]") for key, value in bounds.items()}


def _checked(value: Any, at: str) -> Any:
    if isinstance(value, Mapping):
        return checked_bounds(value, at)
    if isinstance(value, (Float, Integer, Categorical)):
        return value
    pair = list(value) if isinstance(value, (list, tuple)) else []
    if len(pair) != 2 or not all(is_finite(bound) or is_whole(bound) for bound in pair):
        raise ConfigError(
            f"{at}={value!r}: give [smallest, largest], or a domain such as tune.loguniform(1e-4, 1e-1), "
            "tune.randint(1, 9) or tune.choice(['a', 'b'])"
        )
    if not pair[0] < pair[1]:
        raise ConfigError(f"{at}={value!r}: the smallest value comes first, and the two differ")
    return Float(float(pair[0]), float(pair[1]))


def fitting(bounds: Mapping[str, Any], space: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `bounds` in the way of `space`: logarithmic or whole numbers where that draws such.

    Args:
        bounds: checked.
        space: the search space.
        given: what `bounds` was made of: what is a domain there stays as it is.
    """
    made: dict[str, Any] = {}
    for key, bound in bounds.items():
        there, pair = space.get(key), given[key]
        if isinstance(bound, dict):
            made[key] = fitting(bound, there if isinstance(there, Mapping) else {}, pair)
        elif isinstance(pair, Domain) or not isinstance(there, (Float, Integer)):
            made[key] = bound
        else:
            made[key] = _in_the_way_of(there, bound, key)
    return made


def _in_the_way_of(there: Bounded, bound: Float, key: str) -> Bounded:
    try:
        if isinstance(there, Float):
            return Float(bound.lower, bound.upper, log=there.log, q=there.q)
        lower, upper = math.ceil(bound.lower), math.floor(bound.upper)
        return Integer(lower, upper + (there.q == 1), log=there.log, q=there.q)
    except SpaceError as error:
        raise ConfigError(
            f"hyperparam_bounds[{key!r}]=[{bound.lower:g}, {bound.upper:g}] doesn't fit {there} of "
            f"param_space: {error}"
        ) from error


def to_unit(value: Any, domain: Bounded) -> float | None:
    """Where a value lies between the bounds, 0 to 1, or a little beyond; None for what is no number."""
    if not is_number(value) or not math.isfinite(value):
        return None
    low, high = _ends(domain)
    number = float(value)
    if domain.log:
        number = math.log(max(number, math.exp(low) * 1e-9))
    return min(max((number - low) / (high - low), -1.0), 2.0)


def from_unit(share: float, domain: Bounded, like: Any = None) -> float:
    """The value there: of the domain, whole numbers rounded half up.

    Args:
        share: 0 to 1.
        domain: of the value.
        like: the value of before; a whole number gives one, whatever the domain says.
    """
    low, high = _ends(domain)
    number = low + share * (high - low)
    number = math.exp(number) if domain.log else number
    least, most = domain.bounds
    if isinstance(domain, Integer):
        return int(min(max(_half_up(number / domain.q) * domain.q, least), most))
    if domain.q is not None:
        return float(min(max(_half_up(number / domain.q) * Fraction(repr(domain.q)), least), most))
    inside = min(max(number, least), most)
    if is_whole(like) and math.ceil(least) <= math.floor(most):
        return min(max(_half_up(inside), math.ceil(least)), math.floor(most))
    return inside


def _half_up(number: float) -> int:
    return math.floor(number + 0.5)


def _ends(domain: Bounded) -> tuple[float, float]:
    """The ends of the unit interval: half a step beyond the values, so that each has as much room."""
    least, most = domain.bounds
    half = (domain.q or 0) / 2
    ends = least - half, most + half
    return (math.log(ends[0]), math.log(ends[1])) if domain.log else ends
