"""From choices to a configuration: the tree is walked, and each leaf that is active asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.domains import Domain, Forbid, GridSearch, When, place_of
from trainkit.tune.spaces.conditions import Condition
from trainkit.tune.spaces.tree import Branch, Path, in_config, options_of, spell

Choose = Callable[[Path, Any], Any]
"""Gives the value of the domain or axis at a path; of a choice, one of its categories."""


class Undrawn:
    """Stands for a value that has not been chosen; equal to nothing, in no domain."""


UNDRAWN = Undrawn()
_PENDING = object()
_PLAIN = frozenset((str, int, float, bool, type(None)))


def grow(
    tree: Mapping[str, Any], conditions: Mapping[Path, tuple[Condition, ...]], choose: Choose
) -> dict[str, Any]:
    """Return the configuration in which every active domain and axis has the value that `choose` gives.

    Leaves are asked for in the order written, those under a condition after what it looks at. What
    `sample_from` computes is left as it is. No container is shared with the tree.
    """
    pending: list[tuple[Any, Any, When, Path]] = []
    config: dict[str, Any] = _grow(tree, (), choose, pending)
    while pending:
        waiting = [in_config(path) for *_, path in pending]
        place = next((n for n, (*_, path) in enumerate(pending) if _settled(conditions[path], waiting)), None)
        if place is None:
            raise SpaceError(f"{', '.join(map(spell, waiting))}: these conditions wait for each other")
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
                grown[key] = _PENDING  # keeps the place, as what its conditions look at may come later
                pending.append((grown, key, value, (*path, key)))
            elif type(value) is not Forbid:
                grown[key] = _grow(value, (*path, key), choose, pending)
        return grown
    if kind in _PLAIN:
        return node
    if kind is list:
        return [_grow(value, (*path, place), choose, pending) for place, value in enumerate(node)]
    if isinstance(node, (Domain, GridSearch)):
        value = choose(path, node)
        if type(value) not in _PLAIN and isinstance(value, (dict, list, Domain, GridSearch)):
            place = place_of(value, options_of(node))
            # A value that is no option was given by the user as it is; copied all the same.
            inner = (*path, Branch(place)) if place is not None else path
            option = options_of(node)[place] if place is not None else value
            return _grow(option, inner, choose, pending)
        return value
    return node
