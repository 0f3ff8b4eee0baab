"""Conditions and rules of a search space, and the lookup of the parameters that they name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.core.metrics import name_of
from trainkit.tune.space.domains import Domain, Forbid, SampleFrom, place_of, same
from trainkit.tune.space.serialization import is_mark_of
from trainkit.tune.space.tree import Branch, Path, Site, in_config, options_of, spell, whens

_ABSENT = object()


@dataclass(frozen=True)
class Condition:
    """Condition that a parameter has one of several values.

    Attributes:
        name: full name of the parameter, from the root.
        path: path of the parameter in the configuration.
        values: allowed values; a domain allows all of its values.
    """

    name: str
    path: Path
    values: tuple[Any, ...]

    def holds(self, config: Mapping[str, Any]) -> bool:
        """Return True if the condition holds in `config`.

        The condition fails if `config` lacks the parameter.
        """
        found = look_up(config, self.path)
        return found is not _ABSENT and any(_agrees(value, found) for value in self.values)

    def __str__(self) -> str:
        shown = [str(value) if isinstance(value, Domain) else repr(value) for value in self.values]
        return f"{self.name}={' or '.join(shown)}"


@dataclass(frozen=True)
class Rule:
    """A rule that forbids configurations if all `conditions` hold, or if `function` returns True."""

    conditions: tuple[Condition, ...] = ()
    function: Callable[[Any], Any] | None = None

    def is_broken_by(self, config: Mapping[str, Any]) -> bool:
        """Return True if the rule forbids `config`; errors of the rule's function are not caught."""
        if self.function is not None:
            return bool(self.function(config))
        return all(condition.holds(config) for condition in self.conditions)

    def __str__(self) -> str:
        return ", ".join(map(str, self.conditions)) if self.function is None else name_of(self.function)


def look_up(config: Any, path: Path) -> Any:
    """Return the value at `path`, or a marker object if the path does not exist."""
    for part in path:
        inside = part in config if isinstance(config, dict) else isinstance(config, list)
        if not inside or (isinstance(config, list) and part not in range(len(config))):
            return _ABSENT
        config = config[part]
    return config


def is_there(found: Any) -> bool:
    """Return True if `found`, which `look_up` returned, is a value and not the marker for a missing value."""
    return found is not _ABSENT


class Names:
    """Index of the leaves of a space (domains, axes, constants) by the names that conditions contain."""

    def __init__(self, leaves: Iterable[Site]) -> None:
        self._by_name: dict[str, list[Site]] = {}
        for site in leaves:
            if not isinstance(site.leaf, Forbid):
                self._by_name.setdefault(spell(site.path), []).append(site)

    def sites(self, name: str) -> Sequence[Site]:
        """Return the leaves with this name.

        Several leaves have the same name only if they are in different categories of a choice.
        """
        return self._by_name[name]

    def conditions(
        self, given: Mapping[str, Any], scope: Path, where: str, *, computed: bool = False
    ) -> tuple[Condition, ...]:
        """Return a Condition for each name in `given`.

        Names are looked up at `scope`, then in enclosing dictionaries.

        Args:
            given: required values, by parameter name.
            scope: path of the dictionary that contains the `when` or the rule.
            where: description of the `when` or the rule, for messages.
            computed: True if the conditions may read `sample_from` values.

        Raises:
            SpaceError: a parameter name is unknown, or the parameter can never have the required value.
        """
        found = []
        for name, value in given.items():
            full, leaves = self._find(name, scope, where)
            if not computed and any(isinstance(site.leaf, SampleFrom) for site in leaves):
                raise SpaceError(
                    f"{where} reads {full!r}, which sample_from computes after all other values are chosen: "
                    f"read the values that {full!r} is computed from"
                )
            found.append(Condition(full, in_config(leaves[0].path), _values(leaves, full, value, where)))
        return tuple(found)

    def _find(self, name: str, scope: Path, where: str) -> tuple[str, Sequence[Site]]:
        outwards = in_config(scope)
        for depth in range(len(outwards), -1, -1):
            full = "/".join(map(str, (*outwards[:depth], name)))
            found = [site for site in self._by_name.get(full, ()) if _together(site.path, scope)]
            if found:
                return full, found
        near = difflib.get_close_matches(name, self._by_name, n=3) or sorted(self._by_name)
        raise SpaceError(f"{where} reads {name!r}, but the space has {', '.join(near)}")


def _together(path: Path, scope: Path) -> bool:
    """Return True unless `path` and `scope` are in different categories of a choice."""
    differ = next((pair for pair in zip(path, scope, strict=False) if pair[0] != pair[1]), (None, None))
    return not all(isinstance(part, Branch) for part in differ)


def _values(found: Sequence[Site], name: str, value: Any, where: str) -> tuple[Any, ...]:
    leaves = [site.leaf for site in found]
    if isinstance(value, Domain) or any(_possible(leaf, value) for leaf in leaves):
        return (value,)
    values = tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    if not values:
        raise SpaceError(f"{where} lists no value for {name!r}: give at least one")
    if any(_is_switch(site) for site in found):
        return values
    for each in values:
        if not isinstance(each, Domain) and not any(_possible(leaf, each) for leaf in leaves):
            can_be = ", ".join(str(leaf) if isinstance(leaf, Domain) else repr(leaf) for leaf in leaves)
            raise SpaceError(f"{where} requires {name}={each!r}, which is impossible: {name} is {can_be}")
    return values


def _is_switch(site: Site) -> bool:
    """Return True if a condition may require any value of a leaf: a computed leaf or an outer constant."""
    chosen = isinstance(site.leaf, Domain) or options_of(site.leaf)
    return isinstance(site.leaf, SampleFrom) or (not chosen and site.path == in_config(site.path))


def _possible(leaf: Any, value: Any) -> bool:
    if isinstance(leaf, Domain):
        return leaf.contains(value)
    options = options_of(leaf)
    return place_of(value, options) is not None if options else same(leaf, value)


def _agrees(value: Any, found: Any) -> bool:
    if isinstance(value, Domain):
        return value.contains(found)
    return same(value, found) or is_mark_of(found, value)


def when_conditions(tree: Mapping[str, Any], names: Names) -> dict[Path, tuple[Condition, ...]]:
    """Return the conditions of every `when` by path, sorted so that a `when` follows the `when`s that it
    depends on.

    Raises:
        SpaceError: a name is unknown, or conditions depend on each other in a circle.
    """
    conditions: dict[Path, tuple[Condition, ...]] = {}
    after: dict[Path, set[Path]] = {}
    for site in whens(tree):
        path, leaf = site.path, site.leaf
        conditions[path] = names.conditions(dict(leaf.conditions), path[:-1], f"{spell(path)}: {leaf}")
        after[path] = set(site.whens)
    for path, of_this in conditions.items():
        for other in conditions:
            place = in_config(other)
            if any(condition.path[: len(place)] == place for condition in of_this):
                after[path].add(other)
    return {path: conditions[path] for path in _in_order(after)}


def _in_order(after: Mapping[Path, set[Path]]) -> list[Path]:
    done: dict[Path, None] = {}
    busy: list[Path] = []

    def visit(path: Path) -> None:
        if path in done:
            return
        if path in busy:
            circle = " -> ".join(map(spell, [*busy[busy.index(path) :], path]))
            raise SpaceError(f"{circle}: these conditions depend on each other in a circle")
        busy.append(path)
        for other in after:  # the loop is over the space, because a set has no fixed order
            if other in after[path]:
                visit(other)
        busy.pop()
        done[path] = None

    for path in after:
        visit(path)
    return list(done)


def rules(leaves: Iterable[Site], names: Names) -> tuple[Rule, ...]:
    """Return all forbidden combinations of the space.

    Raises:
        SpaceError: a parameter name is unknown, or the parameter can never have the required value.
    """
    found = []
    for site in leaves:
        if isinstance(site.leaf, Forbid):
            where = f"{spell(site.path)}: forbid"
            for clause in site.leaf.clauses:
                if isinstance(clause, Mapping):
                    found.append(Rule(names.conditions(clause, site.path[:-1], where, computed=True)))
                else:
                    found.append(Rule(function=clause))
    return tuple(found)
