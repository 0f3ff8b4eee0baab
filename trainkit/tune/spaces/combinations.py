"""All configurations of what is finite: the combinations of a grid, and how many there are of anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainkit.tune.spaces.conditions import Condition
from trainkit.tune.spaces.growing import UNDRAWN, grow
from trainkit.tune.spaces.tree import Path

Options = Callable[[Path, Any], "Sequence[Any] | None"]
"""The values to go through at a leaf; None: leave it undrawn."""

MAX_LISTED = 100_000
"""Combinations that are gone through one by one, where conditions or rules leave no other way."""


def combinations(
    tree: Mapping[str, Any],
    conditions: Mapping[Path, tuple[Condition, ...]],
    options: Options,
    given: Mapping[Path, Any],
) -> Iterator[tuple[dict[Path, Any], dict[str, Any]]]:
    """Yield the choices and the configuration of every combination, the last leaf varying fastest.

    A leaf that is inactive is not asked for, so it does not multiply them.
    """
    trail: list[list[int]] = []  # of each leaf asked for: which option is on, and how many there are
    chosen: dict[Path, Any] = {}
    depth = 0

    def choose(path: Path, leaf: Any) -> Any:
        nonlocal depth
        if path in given:
            return given[path]
        values = options(path, leaf)
        if values is None:
            return UNDRAWN
        if depth == len(trail):
            trail.append([0, len(values)])
        chosen[path] = values[trail[depth][0]]
        depth += 1
        return chosen[path]

    while True:
        chosen, depth = {}, 0
        config = grow(tree, conditions, choose)
        yield chosen, config
        while trail and trail[-1][0] + 1 == trail[-1][1]:
            trail.pop()
        if not trail:
            return
        trail[-1][0] += 1
