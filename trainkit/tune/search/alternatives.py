"""Configurations of a space that were not tried yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.tune.space.configurations import UNDRAWN, combinations, grow
from trainkit.tune.space.domains import Domain, GridSearch, distinct
from trainkit.tune.space.search_space import Path, Space

if TYPE_CHECKING:
    from numpy.random import Generator

DRAWS = 100
"""Random draws before the space is listed: enough where a model insists on a small part of it."""

MAX_LISTED = 10_000
"""Configurations of a space that is listed to its end."""


def alternatives(
    space: Space, rng: Generator, combination: int = 0, preset: Mapping[Path, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield configurations drawn at random, and of a small space then all, in a random order.

    So they end without one that is new only where a small space has none, or where a large one is so
    unevenly drawn, or so nearly used up, that DRAWS draws found none.

    Args:
        space: to draw from.
        rng: all randomness.
        combination: of the grid, to keep.
        preset: values to keep, by path.
    """
    for _ in range(DRAWS):
        yield space.configuration(combination, rng, preset)
    number = space.cardinality()
    if number is None or number > MAX_LISTED:
        return
    given = {**(preset or {}), **space.grid_values(combination, preset)}
    listed = [config for _, config in combinations(space.tree, space.conditions, _options, given)]
    yield from (listed[place] for place in rng.permutation(len(listed)))


def leaves_open(space: Space, preset: Mapping[Path, Any]) -> bool:
    """True if a configuration with the values of `preset` still has something to draw."""
    open_: list[Path] = []

    def choose(path: Path, leaf: Any) -> Any:
        if path not in preset and isinstance(leaf, Domain):
            open_.append(path)
        return preset.get(path, UNDRAWN)

    grow(space.tree, space.conditions, choose)
    return bool(open_)


def _options(path: Path, leaf: Any) -> Sequence[Any]:
    del path
    if isinstance(leaf, GridSearch):
        return leaf.values
    return distinct(leaf.values()) if isinstance(leaf, Domain) else ()
