"""A searcher's suggestion merged with the constants of the space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.space.domains import Spelled
from trainkit.tune.space.tree import everything


def constants(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a space gives to every configuration, with its `sample_from` as they are."""
    return {key: value for key, child in tree.items() if (value := _constant(child)) is not _ABSENT}


_ABSENT = object()


def _constant(node: Any) -> Any:
    if isinstance(node, dict):
        return constants(node) if constants(node) or not node else _ABSENT
    return _ABSENT if any(isinstance(leaf, Spelled) for leaf in everything(node)) else node


def nested(suggestion: Mapping[str, Any]) -> dict[str, Any]:
    """Return a suggestion with keys such as 'net/width' as {"net": {"width": ...}}.

    Raises:
        ConfigError: a key gives a value inside of what another key gives.
    """
    config: dict[str, Any] = {}
    for key, value in suggestion.items():
        *parents, last = key.split("/") if isinstance(key, str) else [key]
        node = config
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"a suggestion gives {key!r}, and a value for {parent!r} too: keep one")
        if isinstance(value, Mapping):
            value = merged(node.get(last, {}), nested(value))
        node[last] = value
    return config


def merged(below: Any, above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with what `above` says besides, or instead."""
    if not isinstance(below, Mapping):
        return dict(above)
    config = dict(below)
    for key, value in above.items():
        config[key] = merged(config[key], value) if key in config and isinstance(value, Mapping) else value
    return config


def copied(node: Any) -> Any:
    """Containers copied, what they hold not: one trial may change its configuration, not the next one's."""
    if isinstance(node, dict):
        return {key: copied(value) for key, value in node.items()}
    return [copied(value) for value in node] if isinstance(node, list) else node
