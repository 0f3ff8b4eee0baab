"""How many configurations there are, and whether rules leave any."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.tune.domains import GridSearch, Spelled
from trainkit.tune.domains.listed import distinct
from trainkit.tune.spaces.combinations import MAX_LISTED, combinations
from trainkit.tune.spaces.conditions import Condition, Rule
from trainkit.tune.spaces.probing import surely_broken
from trainkit.tune.spaces.tree import Path, in_config, options_of

Conditions = Mapping[Path, tuple[Condition, ...]]


class _Watch:
    """Goes through the leaves that conditions or rules look at, and choices with branches; counts the others.

    Attributes:
        sizes: of the leaves that were left undrawn; None: no end of values.
    """

    def __init__(self, conditions: Conditions, rules: Sequence[Rule]) -> None:
        looked_at = [*(each for of_one in conditions.values() for each in of_one)]
        looked_at += [each for rule in rules for each in rule.conditions]
        self._paths = {condition.path for condition in looked_at}
        self._all = any(rule.function is not None for rule in rules)
        self.sizes: list[int | None] = []

    def options(self, path: Path, leaf: Any) -> Sequence[Any] | None:
        listed = distinct(leaf.values) if isinstance(leaf, GridSearch) else None
        size = leaf.cardinality if listed is None else len(listed)
        branches = any(isinstance(option, (dict, list, Spelled)) for option in options_of(leaf))
        if (branches or self._all or in_config(path) in self._paths) and size is not None:
            if size <= MAX_LISTED:
                return listed if listed is not None else leaf.values()
            size = None
        self.sizes.append(size)
        return None


def count(tree: Mapping[str, Any], conditions: Conditions, rules: Sequence[Rule]) -> int | None:
    """How many distinct configurations there are; None: no end of them, or too many to count."""
    watch = _Watch(conditions, rules)
    total = 0
    for seen, (_, config) in enumerate(combinations(tree, conditions, watch.options, {})):
        sizes, watch.sizes = watch.sizes, []
        if seen == MAX_LISTED:
            return None
        if not any(surely_broken(rule, config) for rule in rules):
            if None in sizes:
                return None
            total += math.prod(size for size in sizes if size is not None)
    return total


def leaves_nothing(
    tree: Mapping[str, Any],
    conditions: Conditions,
    rules: Sequence[Rule],
    given: Mapping[Path, Any],
    limit: int,
) -> bool:
    """True if `rules` surely forbid every configuration with the values `given`.

    After `limit` combinations without one that is allowed, it counts as unknown: False.
    """
    watch = _Watch(conditions, rules)
    for seen, (_, config) in enumerate(combinations(tree, conditions, watch.options, given)):
        if seen == limit or not any(surely_broken(rule, config) for rule in rules):
            return False
    return True
