"""Explore: a configuration changed a little, each mutated value inside its declared range and of its type.

Source: Jaderberg et al. 2017, arXiv:1711.09846, section 4: perturb by a factor, or resample.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_number
from trainkit.tune.domains import Categorical, Domain, Float, Integer, Normal, place_of, same
from trainkit.tune.schedulers.pbt.mutations import Path, leaves, name_of
from trainkit.tune.spaces.computed import global_generators_seeded

if TYPE_CHECKING:
    from numpy.random import Generator

Operations = dict[str, str]
"""By the name of a value, such as 'net/lr', what was done to it: 'resample', '* 1.2', 'shift left'."""


def explored(
    config: Mapping[str, Any],
    mutations: Mapping[str, Any],
    rng: Generator,
    resample_probability: float,
    factors: Sequence[float],
) -> tuple[dict[str, Any], Operations]:
    """Return a copy of `config` with its mutated values explored, and what was done to each.

    A value that `config` lacks, as one whose conditions don't hold, is left out.

    Args:
        config: to start from.
        mutations: checked.
        rng: all randomness.
        resample_probability: with which a value is drawn anew from its mutation, and not perturbed.
        factors: by one of which a number is multiplied otherwise.

    Raises:
        ConfigError: a value can't be explored by its mutation; it is named.
    """
    new: dict[str, Any] = copy.deepcopy(dict(config))
    operations = {}
    for path, mutation in leaves(mutations):
        node = node_at(new, path[:-1])
        if node is None or path[-1] not in node:
            continue
        name = name_of(path)
        node[path[-1]], operations[name] = explored_value(
            node[path[-1]], mutation, rng, resample_probability, factors, name
        )
    return new, operations


def explored_value(
    value: Any,
    mutation: Any,
    rng: Generator,
    resample_probability: float,
    factors: Sequence[float],
    name: str = "",
) -> tuple[Any, str]:
    """The same for one value: the new one, and what was done."""
    resample = bool(rng.random() < resample_probability)
    if isinstance(mutation, list):
        place = place_of(value, mutation)
        if resample or place is None:
            return mutation[int(rng.integers(len(mutation)))], "resample"
        return _shifted(mutation, place, rng)
    if isinstance(mutation, Categorical):
        if resample or not mutation.contains(value):
            return mutation.draw(rng), "resample"
        return value, "keep"
    if resample:
        return _drawn(mutation, value, rng, name), "resample"
    if not is_number(value):
        if isinstance(mutation, Domain):
            raise ConfigError(f"{name}={value!r} is no number, so its mutation {mutation} can't perturb it")
        return value, "keep"  # what a function draws may be anything, and only numbers are multiplied
    factor = float(factors[int(rng.integers(len(factors)))])
    return multiplied(value, factor, mutation), f"* {factor:g}"


def multiplied(value: float, factor: float, mutation: Domain | Callable[[], Any]) -> float:
    """Return `value` times `factor`, inside the range of `mutation`, which may have none, and of its type.

    A whole number of a domain moves by at least one, a multiple of q by at least one step, unless the range
    ends there. What a function draws says of no type or range what it is: a float is multiplied, a whole
    number is rounded then, and neither comes to zero or past it.
    """
    if isinstance(mutation, Integer):
        return int(_inside(_moved(value, factor, mutation.q), *mutation.bounds))
    if isinstance(mutation, Float):
        if mutation.q is None:
            return _inside(float(value * factor), *mutation.bounds)
        return _inside(_moved(value, factor, mutation.q), *mutation.bounds)
    if isinstance(mutation, Normal):
        return float(value * factor) if mutation.q is None else _moved(value, factor, mutation.q)
    return value * factor if isinstance(value, float) else round(value * factor) or value


def _moved(value: float, factor: float, step: float) -> float:
    """The multiple of `step` nearest to the product, but not the one nearest to `value` itself."""
    old, new = round(value / step), round(value * factor / step)
    if old == new and factor != 1:
        new = old + (1 if (factor > 1) == (value >= 0) else -1)
    return new * step if isinstance(step, int) else _multiple(new, step)


def _multiple(k: int, step: float) -> float:
    """K steps, exact for the step as it is written in decimals: 3 steps of 0.1 are 0.3."""
    from fractions import Fraction

    exact = Fraction(repr(step)) * k
    return exact.numerator / exact.denominator


def _inside(value: float, lower: float, upper: float) -> float:
    return min(max(value, lower), upper)


def _shifted(options: Sequence[Any], place: int, rng: Generator) -> tuple[Any, str]:
    right = bool(rng.integers(2))
    moved = min(max(place + (1 if right else -1), 0), len(options) - 1)
    return options[moved], f"shift {'right' if right else 'left'}{' (noop)' if moved == place else ''}"


def _drawn(mutation: Domain | Callable[[], Any], value: Any, rng: Generator, name: str) -> Any:
    if isinstance(mutation, Domain):
        return mutation.draw(rng)
    # A function draws from the global generators, if from any: seeded, so that a run repeats.
    with global_generators_seeded(rng):
        drawn = mutation()
    plain = drawn.item() if hasattr(drawn, "item") and getattr(drawn, "shape", None) == () else drawn
    if is_number(value) and not (is_number(plain) and math.isfinite(plain)):
        raise ConfigError(
            f"the function that hyperparam_mutations gives for {name!r} returned {plain!r}, no number"
        )
    return plain


def node_at(config: Mapping[str, Any], path: Path) -> Any:
    """The dictionary at `path` inside a configuration; None if there is none."""
    node: Any = config
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
    return node if isinstance(node, dict) else None


def changes(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    mutations: Mapping[str, Any],
    operations: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """By the name of each mutated value: the old one, the new one, and how it came about."""
    found = {}
    for path, _ in leaves(mutations):
        before, after = node_at(old, path[:-1]), node_at(new, path[:-1])
        if after is not None and path[-1] in after:
            name = name_of(path)
            found[name] = {
                "old": (before or {}).get(path[-1]),
                "new": after[path[-1]],
                "how": operations.get(name, "custom"),
            }
    return found


def require_inside(config: Mapping[str, Any], mutations: Mapping[str, Any], who: str) -> None:
    """Raise ConfigError if a value that `who` has given is outside the domain that its mutation declares."""
    for path, mutation in leaves(mutations):
        node = node_at(config, path[:-1])
        if node is None or path[-1] not in node:
            continue
        value = node[path[-1]]
        inside = (
            mutation.contains(value)
            if isinstance(mutation, Domain)
            else not isinstance(mutation, list) or place_of(value, mutation) is not None
        )
        if not inside:
            declared = mutation if isinstance(mutation, Domain) else f"the list {mutation}"
            raise ConfigError(
                f"{who} gives {name_of(path)}={value!r}, which is outside {declared} of "
                "hyperparam_mutations: widen that, or return a value inside"
            )


def customised(
    config: dict[str, Any],
    operations: Operations,
    mutations: Mapping[str, Any],
    function: Callable[[dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """What `custom_explore_fn` makes of an explored configuration; notes in `operations` what it changed.

    Raises:
        ConfigError: it returns no configuration, or one outside what is declared.
    """
    before = copy.deepcopy(config)
    made: Any = function(config)
    if not isinstance(made, Mapping):
        raise ConfigError(
            f"custom_explore_fn returned {made!r}, which is no configuration: return the dictionary "
            "that it was given, with values changed"
        )
    after = dict(made)
    require_inside(after, mutations, "custom_explore_fn")
    for name, change in changes(before, after, mutations, operations).items():
        if not same(change["old"], change["new"]):
            operations[name] = "custom"
    return after
