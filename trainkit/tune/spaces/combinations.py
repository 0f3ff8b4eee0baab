"""All configurations of what is finite: the combinations of a grid, and how many there are of anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.domains import GridSearch, Spelled
from trainkit.tune.domains.listed import distinct
from trainkit.tune.spaces.conditions import Condition, Rule
from trainkit.tune.spaces.growing import UNDRAWN, Undrawn, grow
from trainkit.tune.spaces.tree import Path, in_config, options_of

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


class Grid:
    """The combinations of the axes that a point leaves open.

    Args:
        axes: by path, in the order written; the last varies fastest.
        given: values of a point, by path.
        combine: lists the combinations of the axes one by one.
        rules: what is forbidden.
        plain: True if no axis is under a condition or in a branch, and nothing is forbidden.

    Raises:
        SpaceError: there are too many to be listed, or all are forbidden.
    """

    def __init__(
        self,
        axes: Mapping[Path, GridSearch],
        given: Mapping[Path, Any],
        combine: Callable[[], Iterator[tuple[dict[Path, Any], dict[str, Any]]]],
        rules: Sequence[Rule],
        *,
        plain: bool,
    ) -> None:
        self._open = {path: axis for path, axis in axes.items() if path not in given}
        self._listed: list[dict[Path, Any]] | None = None
        if not plain:
            self._listed = []
            for seen, (chosen, config) in enumerate(combine()):
                if seen == MAX_LISTED:
                    raise SpaceError(
                        f"the grid has more than {MAX_LISTED} combinations, too many to look at each, as "
                        "conditions or rules demand; use choice() for an axis, or fewer values"
                    )
                if not any(surely_broken(rule, config) for rule in rules):
                    self._listed.append(chosen)
            if not self._listed:
                raise SpaceError(f"every configuration is forbidden: {'; '.join(map(str, rules))}")

    @property
    def size(self) -> int:
        """How many combinations there are; 1 without a grid."""
        if self._listed is not None:
            return len(self._listed)
        return math.prod(len(axis.values) for axis in self._open.values())

    def combination(self, rank: int) -> dict[Path, Any]:
        """The values of the axes in combination `rank`."""
        if self._listed is not None:
            return self._listed[rank]
        chosen = {}
        for path, axis in reversed(self._open.items()):
            rank, place = divmod(rank, len(axis.values))
            chosen[path] = axis.values[place]
        return chosen


def surely_broken(rule: Rule, config: Mapping[str, Any]) -> bool:
    """True if `rule` forbids `config` whatever its undrawn values will be."""
    if rule.function is None:
        return rule.is_broken_by(config)  # a condition on what is undrawn does not hold
    try:
        return rule.is_broken_by(_Guarded.of(config))
    except Exception:  # it asked for a value that is not drawn; asked again when all are, it may raise
        return False


class _NotDrawnError(Exception):
    """A rule looked at a value that is not there yet."""


class _Guarded(Mapping[str, Any]):
    """A configuration of which some values are undrawn, and must not be looked at."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    @staticmethod
    def of(value: Any) -> Any:
        if isinstance(value, Undrawn):
            raise _NotDrawnError
        if not _undrawn(value):
            return value
        if isinstance(value, dict):
            return _Guarded(value)
        raise _NotDrawnError

    def __getitem__(self, key: str) -> Any:
        if key not in self._config:
            raise _NotDrawnError  # it may be there once what its condition looks at is drawn
        return _Guarded.of(self._config[key])

    def __contains__(self, key: object) -> bool:
        if key not in self._config:
            raise _NotDrawnError
        return True

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]

    def __iter__(self) -> Iterator[str]:
        raise _NotDrawnError

    def __len__(self) -> int:
        raise _NotDrawnError


def _undrawn(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_undrawn, value.values()))
    return any(map(_undrawn, value)) if isinstance(value, list) else isinstance(value, Undrawn)


def count(
    tree: Mapping[str, Any],
    conditions: Mapping[Path, tuple[Condition, ...]],
    rules: Sequence[Rule],
) -> int | None:
    """How many distinct configurations there are; None: no end of them, or too many to count.

    Only leaves that conditions or rules look at, and choices with branches, are gone through; the others
    multiply.
    """
    watched = {condition.path for of_one in conditions.values() for condition in of_one}
    watched |= {condition.path for rule in rules for condition in rule.conditions}
    all_watched = any(rule.function is not None for rule in rules)
    factors: list[int | None] = []

    def options(path: Path, leaf: Any) -> Sequence[Any] | None:
        values = distinct(leaf.values) if isinstance(leaf, GridSearch) else None
        size = leaf.cardinality if values is None else len(values)
        branches = any(isinstance(option, (dict, list, Spelled)) for option in options_of(leaf))
        if size is not None and (branches or all_watched or in_config(path) in watched):
            if size > MAX_LISTED:
                size = None
            else:
                return values or leaf.values()
        factors.append(size)
        return None

    total = 0
    for seen, (_, config) in enumerate(combinations(tree, conditions, options, {})):
        of_this, factors = factors, []
        if seen == MAX_LISTED:
            return None
        if not any(rule.is_broken_by(config) for rule in rules):
            if None in of_this:
                return None
            total += math.prod(size for size in of_this if size is not None)
    return total
