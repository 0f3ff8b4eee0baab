"""Mutations of configurations; each new value keeps the range and the type of its domain.

Source: Jaderberg et al. 2017, arXiv:1711.09846, section 4: perturb by a factor, or resample.
"""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.setting_names import setting
from trainkit.tune.space.computed import global_generators_seeded
from trainkit.tune.space.domains import (
    Categorical,
    Domain,
    Float,
    GridSearch,
    Integer,
    Normal,
    SampleFrom,
    Steps,
    When,
    place_of,
    same,
)

if TYPE_CHECKING:
    from numpy.random import Generator


MutationPath = tuple[Any, ...]
"""Keys that lead to a value in nested dictionaries, the outermost first; a key may be a number."""

ALIKE = 0.8
"""Smallest similarity of two names, by difflib, at which one name counts as a misspelling of the other
name.
"""
_DIGITS = re.compile(r"\d+")


def name_of(path: MutationPath) -> str:
    """Return the path as text, such as 'net/lr'."""
    return "/".join(map(str, path))


def leaves(mutations: Mapping[str, Any], path: MutationPath = ()) -> Iterator[tuple[MutationPath, Any]]:
    """Yield all mutations with their paths, in the order given."""
    for key, value in mutations.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def completed(
    space: Mapping[str, Any], mutations: Mapping[str, Any], at: MutationPath = ()
) -> dict[str, Any]:
    """Return `space` with the entries that only `mutations` has, from which initial values are drawn.

    Raises:
        ConfigError: a mutation can't change the values that the space has under the same name, or the
            mutation's name is probably a misspelling of a name in the space.
    """
    whole = dict(space)
    for key, mutation in mutations.items():
        name = name_of((*at, key))
        if isinstance(mutation, Mapping):
            inner = whole.get(key, {})
            if isinstance(inner, When):
                # A configuration may lack a branch of the mutations. The values of a branch are explored only
                # if the configuration has the branch.
                continue
            if not isinstance(inner, Mapping):
                raise ConfigError(
                    f"{name!r} is a dictionary in hyperparam_mutations, but {inner} in "
                    f"{setting('param_space')}: give a dictionary in both, or in neither"
                )
            whole[key] = completed(inner, mutation, (*at, key))
        elif key not in whole:
            _require_no_misspelling(name, key, [other for other in space if other not in mutations])
            whole[key] = start_of(mutation)
        else:
            _require_explorable(name, whole[key], mutation)
    return whole


def _require_no_misspelling(name: str, key: Any, others: Sequence[Any]) -> None:
    """Raise ConfigError if `key` is similar to a name in `others`; names that differ only in digits are
    allowed.
    """
    lower = str(key).lower()
    by_lower = {other.lower(): other for other in others if isinstance(other, str)}
    near = difflib.get_close_matches(lower, by_lower, n=1, cutoff=ALIKE)
    if near and (near[0] == lower or _DIGITS.sub("", near[0]) != _DIGITS.sub("", lower)):
        raise ConfigError(
            f"hyperparam_mutations has {name!r}, but {setting('param_space')} has no such name. Did you mean "
            f"{by_lower[near[0]]!r}? A new hyperparameter needs an initial value in {setting('param_space')}"
        )


def start_of(mutation: Any) -> Any:
    """Return the search space's entry that draws the initial value of a mutated hyperparameter."""
    if isinstance(mutation, list):
        return Categorical(tuple(mutation))
    return mutation if isinstance(mutation, Domain) else SampleFrom(mutation)


def _require_explorable(name: str, start: Any, mutation: Any) -> None:
    """Raise ConfigError if a numeric mutation would have to change a value that is not a number."""
    if not isinstance(mutation, Domain) or isinstance(mutation, Categorical):
        return
    starts = start.categories if isinstance(start, Categorical) else ()
    starts = start.values if isinstance(start, GridSearch) else starts or (start,)
    for value in starts:
        if isinstance(value, (str, bool, Mapping, list, tuple)) or value is None:
            raise ConfigError(
                f"{name!r} is {value!r} in {setting('param_space')}, which its mutation {mutation} doesn't "
                f"contain: give a number in {setting('param_space')}, or a list in hyperparam_mutations"
            )


Operations = dict[str, str]
"""Operations that changed values, by each value's name, such as {'net/lr': '* 1.2', 'act': 'resample'}."""


def explored(
    config: Mapping[str, Any],
    mutations: Mapping[str, Any],
    rng: Generator,
    resample_probability: float,
    factors: Sequence[float],
) -> tuple[dict[str, Any], Operations]:
    """Return a copy of `config` with its mutated values explored, and the operation on each value.

    A value that `config` lacks, for example because its conditions don't hold, is skipped.

    Args:
        config: configuration to start from.
        mutations: checked mutations.
        rng: random generator for all draws.
        resample_probability: probability that a value is drawn again from its mutation, not perturbed.
        factors: factors for numbers; a perturbed number is multiplied by a factor drawn from this list.

    Raises:
        ConfigError: a value can't be explored by its mutation; the message names the value.
    """
    new: dict[str, Any] = copy.deepcopy(dict(config))
    operations = {}
    for name, mutation, node, key in places(new, mutations):
        node[key], operations[name] = explored_value(
            node[key], mutation, rng, resample_probability, factors, name
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
    """Return the new value of one hyperparameter, and the operation that produced the new value."""
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
            raise ConfigError(f"{name}={value!r} is not a number: mutation {mutation} can't change it")
        return value, "keep"  # a function may draw any value, but only numbers can be multiplied
    factor = float(factors[int(rng.integers(len(factors)))])
    return multiplied(value, factor, mutation), f"* {factor:g}"


def multiplied(value: float, factor: float, mutation: Domain | Callable[[], Any]) -> float:
    """Return `value` times `factor`, with the type of `mutation` and inside the mutation's range, if any.

    In a domain of whole numbers the value moves by at least one, and in a domain with a step q by at least
    one step, unless the range ends there. A mutation that is a function declares no type or range: a float is
    then only multiplied, and a whole number is multiplied and rounded. A factor above 0 never turns a whole
    number into zero and never changes its sign.
    """
    if isinstance(mutation, Integer):
        return int(_inside(_moved(value, factor, mutation.q, mutation.steps), *mutation.bounds))
    if isinstance(mutation, Float):
        if mutation.q is None:
            return _inside(float(value * factor), *mutation.bounds)
        return _inside(_moved(value, factor, mutation.q, mutation.steps), *mutation.bounds)
    if isinstance(mutation, Normal):
        if mutation.q is None:
            return float(value * factor)
        return _moved(value, factor, mutation.q, mutation.steps)
    return value * factor if isinstance(value, float) else round(value * factor) or value


def _moved(value: float, factor: float, q: float, steps: Steps) -> float:
    """Return the multiple of `q` nearest to value * factor, but at least one step away from `value`."""
    old, new = round(value / q), round(value * factor / q)
    if old == new and factor != 1:
        new = old + (1 if (factor > 1) == (value >= 0) else -1)
    return steps.value(new)


def _inside(value: float, lower: float, upper: float) -> float:
    return min(max(value, lower), upper)


def _shifted(options: Sequence[Any], place: int, rng: Generator) -> tuple[Any, str]:
    right = bool(rng.integers(2))
    moved = min(max(place + (1 if right else -1), 0), len(options) - 1)
    return options[moved], f"shift {'right' if right else 'left'}{' (noop)' if moved == place else ''}"


def _drawn(mutation: Domain | Callable[[], Any], value: Any, rng: Generator, name: str) -> Any:
    if isinstance(mutation, Domain):
        return mutation.draw(rng)
    # The user's function may draw from the global random generators, so these are seeded to make a run
    # repeatable.
    with global_generators_seeded(rng):
        drawn = mutation()
    plain = drawn.item() if hasattr(drawn, "item") and getattr(drawn, "shape", None) == () else drawn
    if is_number(value) and not (is_number(plain) and math.isfinite(plain)):
        raise ConfigError(f"the mutation function of {name!r} must return a finite number, not {plain!r}")
    return plain


def places(
    config: Mapping[str, Any], mutations: Mapping[str, Any]
) -> Iterator[tuple[str, Any, dict[str, Any], Any]]:
    """Yield the mutations of the values that `config` has, each as its name, the mutation, and the value's
    dictionary and key.
    """
    for path, mutation in leaves(mutations):
        node = node_at(config, path[:-1])
        if node is not None and path[-1] in node:
            yield name_of(path), mutation, node, path[-1]


def node_at(config: Mapping[str, Any], path: MutationPath) -> Any:
    """Return the dictionary at `path` inside a configuration; None if no dictionary is there."""
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
    """Return the old value, the new value and the operation of each mutated value, by the value's name."""
    before = {name: node[key] for name, _, node, key in places(old, mutations)}
    return {
        name: {"old": before.get(name), "new": node[key], "how": operations.get(name, "custom")}
        for name, _, node, key in places(new, mutations)
    }


def require_inside(config: Mapping[str, Any], mutations: Mapping[str, Any], who: str) -> None:
    """Raise ConfigError if a value is outside its mutation's domain; the message names its origin `who`."""
    for name, mutation, node, key in places(config, mutations):
        value = node[key]
        inside = (
            mutation.contains(value)
            if isinstance(mutation, Domain)
            else not isinstance(mutation, list) or place_of(value, mutation) is not None
        )
        if not inside:
            declared = mutation if isinstance(mutation, Domain) else f"the list {mutation}"
            raise ConfigError(
                f"{who} gives {name}={value!r}, which is outside {declared} of "
                "hyperparam_mutations: extend the mutation, or return a value inside"
            )


def customised(
    config: dict[str, Any],
    operations: Operations,
    mutations: Mapping[str, Any],
    function: Callable[[dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """Return the configuration that the user's `function` makes; record its changes in `operations`.

    Raises:
        ConfigError: the function returns no configuration, or a value outside a declared domain.
    """
    before = copy.deepcopy(config)
    made: Any = function(config)
    if not isinstance(made, Mapping):
        raise ConfigError(f"custom_explore_fn returned {made!r}: return the dictionary with changed values")
    after = dict(made)
    require_inside(after, mutations, "custom_explore_fn")
    for name, change in changes(before, after, mutations, operations).items():
        if not same(change["old"], change["new"]):
            operations[name] = "custom"
    return after
