"""What may be mutated: the dictionary that a user gives, checked, and what it adds to the search space."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_number
from trainkit.tune.domains import Categorical, Domain, Forbid, GridSearch, SampleFrom, When
from trainkit.tune.spaces.tree import holds_leaf

Path = tuple[Any, ...]
"""Keys, of which some may be numbers."""

ALIKE = 0.8
"""How alike two names are that are taken for one (difflib)."""
_DIGITS = re.compile(r"\d+")


def checked_mutations(
    mutations: Mapping[str, Any] | None, name: str = "hyperparam_mutations"
) -> dict[str, Any]:
    """Return a copy of `mutations`, with lists for tuples.

    Raises:
        ConfigError: a mutation is empty, or is none that a value can be explored by; its key is named.
    """
    if mutations is None:
        return {}
    if not isinstance(mutations, Mapping):
        raise ConfigError(
            f"{name}={mutations!r}: give a dictionary such as {{'lr': tune.loguniform(1e-4, 1)}}"
        )
    return {key: _checked(value, f"{name}[{key!r}]") for key, value in mutations.items()}


def _checked(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError(f"{name} is empty: name what to mutate in it, or leave it out")
        if set(value) == {"grid_search"}:
            raise ConfigError(f"{name} is a grid, which is no distribution: give a list to move in")
        return checked_mutations(value, name)
    options = value.categories if isinstance(value, Categorical) else value
    if isinstance(options, (list, tuple)) and any(map(holds_leaf, options)):
        raise ConfigError(
            f"{name} holds options with domains of their own, which can't be explored as one: give plain "
            "values, and mutate what depends on them by its own name"
        )
    if isinstance(value, tuple) and len(value) == 2 and all(map(is_number, value)):
        raise ConfigError(
            f"{name}={value!r} may be a range or two values: give tune.uniform{value!r} for a range, or the "
            f"list {list(value)!r} for these two"
        )
    if isinstance(value, (list, tuple)):
        if not value:
            raise ConfigError(f"{name} is empty: give at least one value")
        return list(value)
    if isinstance(value, (GridSearch, SampleFrom, When, Forbid)):
        raise ConfigError(
            f"{name} is {value}, which is no distribution to explore by: give a domain such as "
            "tune.uniform(0, 1), a list of values in order, or a function that draws one"
        )
    if isinstance(value, Domain) or callable(value):
        return value
    raise ConfigError(
        f"{name}={value!r}: give a domain such as tune.uniform(0, 1), a list of values in order, a function "
        "that draws one, or a dictionary of these"
    )


def name_of(path: Path) -> str:
    """Such as 'net/lr'."""
    return "/".join(map(str, path))


def leaves(mutations: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All mutations with their paths, in the order given."""
    for key, value in mutations.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def completed(space: Mapping[str, Any], mutations: Mapping[str, Any], at: Path = ()) -> dict[str, Any]:
    """Return `space` with what stands only in `mutations` added, to be drawn by them at the start.

    Raises:
        ConfigError: a mutation can't change the values that the space gives at its place, or its name is
            much like one that the space has.
    """
    whole = dict(space)
    for key, mutation in mutations.items():
        name = name_of((*at, key))
        if isinstance(mutation, Mapping):
            inner = whole.get(key, {})
            if isinstance(inner, When):
                continue  # there or not; what is there is explored
            if not isinstance(inner, Mapping):
                raise ConfigError(
                    f"hyperparam_mutations mutates inside {name!r}, which is {inner} in param_space: "
                    "give a dictionary in both, or in none"
                )
            whole[key] = completed(inner, mutation, (*at, key))
        elif key not in whole:
            _require_no_misspelling(name, key, [other for other in space if other not in mutations])
            whole[key] = start_of(mutation)
        else:
            _require_explorable(name, whole[key], mutation)
    return whole


def _require_no_misspelling(name: str, key: Any, others: Sequence[Any]) -> None:
    """A name much like one of the space that nothing mutates is taken for that; but 'h1' is not 'h2'."""
    lower = str(key).lower()
    by_lower = {other.lower(): other for other in others if isinstance(other, str)}
    near = difflib.get_close_matches(lower, by_lower, n=1, cutoff=ALIKE)
    if near and (near[0] == lower or _DIGITS.sub("", near[0]) != _DIGITS.sub("", lower)):
        raise ConfigError(
            f"{name!r} is to be mutated, and param_space has no such name. Did you mean "
            f"{by_lower[near[0]]!r}? If it is another hyperparameter, say in param_space how it begins"
        )


def start_of(mutation: Any) -> Any:
    """What the search space has for a value that only a mutation speaks of."""
    if isinstance(mutation, list):
        return Categorical(tuple(mutation))
    return mutation if isinstance(mutation, Domain) else SampleFrom(mutation)


def _require_explorable(name: str, start: Any, mutation: Any) -> None:
    """A number can't be made of a text by multiplying it."""
    if not isinstance(mutation, Domain) or isinstance(mutation, Categorical):
        return
    starts = start.categories if isinstance(start, Categorical) else ()
    starts = start.values if isinstance(start, GridSearch) else starts or (start,)
    for value in starts:
        if isinstance(value, (str, bool, Mapping, list, tuple)) or value is None:
            raise ConfigError(
                f"{name!r} is {value!r} in param_space, which its mutation {mutation} doesn't contain: "
                "give a number there, or a list in hyperparam_mutations"
            )
