"""Points to evaluate: configurations, or parts of them, that a user gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainkit.errors import SpaceError
from trainkit.tune.domains import SampleFrom, Spelled
from trainkit.tune.spaces.growing import UNDRAWN, grow
from trainkit.tune.spaces.matching import choices_of
from trainkit.tune.spaces.tree import Branch, Path, holds_leaf, options_of, spell

if TYPE_CHECKING:
    from trainkit.tune.spaces.variants import Space


def preset_of(space: Space, point: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the values of `point` by path.

    A value outside its domain is taken as it is: it may be known to be good.

    Raises:
        SpaceError: the point names a parameter that the space doesn't have, or one whose conditions it
            doesn't fulfil.
    """
    found = _Collector(space).collect(point)
    asked = set()

    def choose(path: Path, leaf: Any) -> Any:
        del leaf
        asked.add(path)
        return found.get(path, UNDRAWN)

    grow(space.tree, space.conditions, choose)
    for path in found:
        if path in space.by_path and path not in asked:
            parameter = space.by_path[path]
            needed = [f"{name} in its category {place}" for name, place in parameter.branches]
            needed += map(str, parameter.conditions)
            raise SpaceError(
                f"points_to_evaluate gives {parameter.name}={found[path]!r}, which is there only with "
                f"{' and '.join(needed)}; give that too"
            )
    return found


class _Collector:
    def __init__(self, space: Space) -> None:
        self._space = space
        self._values: dict[Path, Any] = {}
        chosen = [*space.by_path, *space.computed]
        self._outer = {path for path in chosen if not any(isinstance(part, Branch) for part in path)}
        self._by_name = {spell(path): path for path in self._outer}
        self._by_name = {parameter.name: path for path, parameter in space.by_path.items()} | self._by_name
        self._constants = {
            site.path for site in space.leaves if not isinstance(site.leaf, (Spelled, SampleFrom))
        }

    def collect(self, point: Mapping[str, Any]) -> dict[Path, Any]:
        for key, child in point.items():
            self._collect(child, (key,))
        return self._values

    def _collect(self, node: Any, path: Path) -> None:
        if path in self._outer:
            self._take(node, path)
        elif spell(path) in self._by_name:
            self._take(node, self._by_name[spell(path)])
        elif isinstance(node, Mapping) and node:
            for key, child in node.items():
                self._collect(child, (*path, key))
        elif isinstance(node, list) and node:
            for place, child in enumerate(node):
                self._collect(child, (*path, place))
        elif path not in self._constants:
            raise SpaceError(
                f"points_to_evaluate gives {spell(path)}={node!r}, which the space does not have; "
                f"it has {', '.join(sorted(self._by_name)) or 'only constants'}"
            )

    def _take(self, value: Any, path: Path) -> None:
        leaf = next(site.leaf for site in self._space.leaves if site.path == path)
        if not options_of(leaf):
            self._values[path] = value
            return
        try:
            self._values |= choices_of(leaf, value, self._space.conditions, path, partly=True)
        except SpaceError as error:
            if isinstance(value, (Mapping, list)) and any(map(holds_leaf, options_of(leaf))):
                raise SpaceError(
                    f"points_to_evaluate gives {spell(path)}={value!r}, which fits no category of {leaf}"
                ) from error
            self._values[path] = value  # none of the categories, but the user's own
