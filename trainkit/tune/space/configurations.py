"""Functions that build configurations from chosen values, enumerate and count them, and compare them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.core.checks import is_mapping
from trainkit.tune.core.metrics import merge_dicts
from trainkit.tune.space.conditions import Condition, Rule
from trainkit.tune.space.domains import (
    Domain,
    Forbid,
    GridSearch,
    SampleFrom,
    Spelled,
    When,
    distinct,
    place_of,
)
from trainkit.tune.space.tree import Branch, Path, everything, in_config, is_own_container, options_of, spell


def fingerprint(config: Mapping[str, Any]) -> bytes:
    """Return a hash that is equal for equal configurations, whatever the order of their keys.

    Objects that can't be stored as text are compared by identity, because different objects may have the same
    name. The identity of an object stays valid for the whole experiment, because the trials keep the object.
    """
    return blake2b(repr(_comparable(config)).encode(), digest_size=16).digest()


def _canonical(value: Any) -> str:
    return repr(_comparable(value))


_first = itemgetter(0)
_PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))


def _comparable(value: Any) -> Any:
    if type(value) in _PLAIN_TYPES:
        return value
    if is_mapping(value):
        pairs = [
            (
                key if type(key) is str else f"\0{_canonical(key)}",
                child if type(child) in _PLAIN_TYPES else _comparable(child),
            )
            for key, child in value.items()
        ]
        return ("{}", sorted(pairs, key=_first))
    if isinstance(value, (list, tuple)):
        return ["()" if isinstance(value, tuple) else "[]", *map(_comparable, value)]
    if isinstance(value, (set, frozenset)):
        return ("set", sorted(map(_canonical, value)))
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    return ["object", id(value)]


def constants(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants in every configuration of a space, and the uncomputed `sample_from` leaves."""
    return {key: value for key, child in tree.items() if (value := _constant(child)) is not _ABSENT}


_ABSENT = object()


def _constant(node: Any) -> Any:
    if type(node) is dict:
        return constants(node) if constants(node) or not node else _ABSENT
    return _ABSENT if any(isinstance(leaf, Spelled) for leaf in everything(node)) else node


def nested(suggestion: Mapping[str, Any]) -> dict[str, Any]:
    """Return a suggestion with keys such as 'net/width' as {"net": {"width": ...}}.

    Raises:
        ConfigError: two keys contradict each other, such as 'net' with a number and 'net/width'.
    """
    config: dict[str, Any] = {}
    for key, value in suggestion.items():
        *parents, last = key.split("/") if isinstance(key, str) else [key]
        node = config
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"a suggestion has values for {key!r} and for {parent!r}: keep one of them")
        if isinstance(value, Mapping):
            before = node.get(last)
            inner = nested(value)
            value = merge_dicts(before, inner) if isinstance(before, Mapping) else inner
        node[last] = value
    return config


def copied(node: Any) -> Any:
    """Copy containers but not their leaves, so that a trial can change its own configuration only."""
    if type(node) is dict:
        return {key: copied(value) for key, value in node.items()}
    if type(node) is list:
        return [copied(value) for value in node]
    return copy.copy(node) if is_own_container(node) else node


Conditions = Mapping[Path, tuple[Condition, ...]]
"""The conditions of each `when`, by its path."""

Choose = Callable[[Path, Any], Any]
"""Function of a path and of the domain or axis at this path that returns the chosen value."""


class Undrawn:
    """A placeholder for a value that has not been drawn.

    The placeholder equals no value, and no domain contains it.
    """


UNDRAWN = Undrawn()
_PENDING = object()


def grow(tree: Mapping[str, Any], conditions: Conditions, choose: Choose) -> dict[str, Any]:
    """Return the configuration with the values that `choose` returns for the domains and axes whose
    conditions hold.

    `choose` is called in the order of the space, except that leaves under a condition come after the leaves
    that the condition reads. `sample_from` leaves stay uncomputed. The result shares no dictionary or list
    with `tree`.
    """
    pending: list[tuple[Any, Any, When, Path]] = []
    config: dict[str, Any] = _grow(tree, (), choose, pending)
    while pending:
        waiting = [in_config(path) for *_, path in pending]
        place = next((n for n, (*_, path) in enumerate(pending) if _settled(conditions[path], waiting)), None)
        if place is None:
            raise SpaceError(f"the conditions of {', '.join(map(spell, waiting))} depend on each other")
        container, key, leaf, path = pending.pop(place)
        if all(condition.holds(config) for condition in conditions[path]):
            container[key] = _grow(leaf.content, path, choose, pending)
        else:
            del container[key]
    return config


def _settled(conditions: tuple[Condition, ...], waiting: list[Path]) -> bool:
    return not any(condition.path[: len(place)] == place for condition in conditions for place in waiting)


def _grow(node: Any, path: Path, choose: Choose, pending: list[tuple[Any, Any, When, Path]]) -> Any:
    kind = type(node)
    if kind is dict:
        grown: dict[str, Any] = {}
        for key, value in node.items():
            if type(value) is When:
                # The conditions may depend on values that are chosen later, so a placeholder keeps the
                # position of the key.
                grown[key] = _PENDING
                pending.append((grown, key, value, (*path, key)))
            elif type(value) is not Forbid:
                grown[key] = _grow(value, (*path, key), choose, pending)
        return grown
    if kind in _PLAIN_TYPES:
        return node
    if kind is list:
        return [_grow(value, (*path, place), choose, pending) for place, value in enumerate(node)]
    if isinstance(node, (Domain, GridSearch)):
        value = choose(path, node)
        if type(value) not in _PLAIN_TYPES and isinstance(value, (dict, list, Domain, GridSearch)):
            place = place_of(value, options_of(node))
            # A value that is not an option was given by the user. The user's value is copied too, so that the
            # configuration shares no container with the value.
            inner = (*path, Branch(place)) if place is not None else path
            option = options_of(node)[place] if place is not None else value
            return _grow(option, inner, choose, pending)
        return copied(value)
    return copied(node)


Options = Callable[[Path, Any], "Sequence[Any] | None"]
"""Function of a path and a leaf that returns the values to enumerate; None: the leaf gets no value."""

MAX_LISTED = 100_000
"""Maximum number of combinations that are enumerated in order to check conditions or rules."""


def combinations(
    tree: Mapping[str, Any], conditions: Conditions, options: Options, given: Mapping[Path, Any]
) -> Iterator[tuple[dict[Path, Any], dict[str, Any]]]:
    """Yield the chosen values and the configuration of every combination; the last leaf varies fastest.

    Leaves whose conditions fail are skipped, so they do not multiply the combinations.
    """
    trail: list[list[int]] = []  # each item: a leaf's current option and number of options
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


def surely_broken(rule: Rule, config: Mapping[str, Any]) -> bool:
    """Return True if `rule` forbids `config`, whatever values are drawn for the leaves without a value."""
    if rule.function is None:
        return rule.is_broken_by(config)  # a condition fails if the value that it reads is not drawn yet
    try:
        return rule.is_broken_by(_Guarded(config) if is_undrawn(config) else config)
    # The rule's function may have read a value that is not drawn yet. If the error has a different cause, it
    # will be raised again once all values are drawn.
    except Exception:
        return False


def is_undrawn(value: Any) -> bool:
    """Return True if `value` contains a value that is not drawn or computed yet."""
    if isinstance(value, dict):
        return any(map(is_undrawn, value.values()))
    return (
        any(map(is_undrawn, value)) if isinstance(value, list) else isinstance(value, (Undrawn, SampleFrom))
    )


class _NotDrawnError(Exception):
    """Raised when a rule reads a value that is not drawn yet."""


class _Guarded(Mapping[str, Any]):
    """A partly drawn configuration that raises an error if a value that is not drawn yet, or a missing key,
    is read.

    A missing key raises an error, because the conditions of the key may hold when more values are drawn.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise _NotDrawnError
        value = self._config[key]
        if isinstance(value, dict):
            return _Guarded(value)
        if is_undrawn(value) or (
            isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value)
        ):
            raise _NotDrawnError
        return value

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


class _Watch:
    """Selection of the leaves whose values are enumerated to count configurations. These leaves are choices
    with branches, and leaves that conditions or rules read.

    Attributes:
        sizes: number of values of each leaf that is not enumerated; None: infinite or too many.
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
    """Return the number of distinct configurations; None: infinite, or too many to count."""
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
    """Return True if `rules` certainly forbid every configuration with the values `given`.

    If an enumeration of `limit` combinations gives no certain answer, the function returns False.
    """
    watch = _Watch(conditions, rules)
    for seen, (_, config) in enumerate(combinations(tree, conditions, watch.options, given)):
        if seen == limit or not any(surely_broken(rule, config) for rule in rules):
            return False
    return True
