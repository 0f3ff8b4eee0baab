"""From a configuration back to the choices that make it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.domains import Domain, Forbid, GridSearch, SampleFrom, Spelled, When, place_of, same
from trainkit.tune.spaces.conditions import Condition
from trainkit.tune.spaces.tree import Branch, Path, options_of, spell
from trainkit.tune.values import is_mark_of

Conditions = Mapping[Path, tuple[Condition, ...]]


def choices_of(
    tree: Any, config: Any, conditions: Conditions, path: Path = (), *, partly: bool = False
) -> dict[Path, Any]:
    """Return the value of every active domain and axis of `tree`, by path; of a choice, the category.

    Args:
        tree: the space, or what stands at `path` of it.
        config: the configuration, or what stands there of it.
        conditions: of the `when`s.
        path: where both stand.
        partly: True if parts may be missing from `config`.

    Raises:
        SpaceError: `config` is not a configuration of the space; the message says at which key.
    """
    return _Matching(config, conditions, partly=partly).match(tree, config, path)


class _Matching:
    def __init__(self, config: Any, conditions: Conditions, *, partly: bool) -> None:
        self._config = config
        self._conditions = conditions
        self._partly = partly

    def match(self, node: Any, value: Any, path: Path) -> dict[Path, Any]:
        if isinstance(node, SampleFrom):
            return {}
        if isinstance(node, dict) and isinstance(value, Mapping):
            return self._dictionary(node, value, path)
        if isinstance(node, list) and isinstance(value, list) and len(node) == len(value):
            found: dict[Path, Any] = {}
            for place, child in enumerate(node):
                found |= self.match(child, value[place], (*path, place))
            return found
        if isinstance(node, (Domain, GridSearch)):
            return self._leaf(node, value, path)
        if not isinstance(node, (dict, list)) and (same(node, value) or is_mark_of(value, node)):
            return {}
        raise SpaceError(f"{spell(path)}={value!r} does not fit the space, which has {node!r}")

    def _dictionary(self, node: Mapping[str, Any], value: Mapping[str, Any], path: Path) -> dict[Path, Any]:
        found: dict[Path, Any] = {}
        known = set()
        for key, child in node.items():
            if isinstance(child, Forbid):
                continue
            inner = (*path, key)
            content = child
            if isinstance(child, When):
                lacking = [each for each in self._conditions[inner] if not each.holds(self._config)]
                if lacking and key in value and not self._partly:
                    raise SpaceError(f"{spell(inner)}={value[key]!r} is there only where {lacking[0]}")
                if lacking and not self._partly:
                    continue
                content = child.content
            known.add(key)
            if key in value:
                found |= self.match(content, value[key], inner)
            elif not self._partly:
                raise SpaceError(f"{spell(inner)} is missing")
        for key in value:
            if key not in known:
                raise SpaceError(
                    f"{spell((*path, key))}={value[key]!r} is not in the space; there is "
                    f"{', '.join(map(str, node))}"
                )
        return found

    def _leaf(self, leaf: Domain | GridSearch, value: Any, path: Path) -> dict[Path, Any]:
        options = options_of(leaf)
        if not options and isinstance(leaf, Domain) and leaf.contains(value):
            return {path: value}
        plain = [option for option in options if not isinstance(option, (dict, list, Spelled, SampleFrom))]
        place = place_of(value, plain)
        if place is None:
            place = next((n for n, option in enumerate(plain) if is_mark_of(value, option)), None)
        if place is not None:
            return {path: plain[place]}
        for place, option in enumerate(options):
            if isinstance(option, (dict, list, Spelled, SampleFrom)):
                try:
                    inner = self.match(option, value, (*path, Branch(place)))
                except SpaceError:  # not this category, perhaps the next
                    continue
                return {path: option, **inner}
        raise SpaceError(f"{spell(path)}={value!r} is not in {leaf}")
