"""The search space of a restored experiment, and its differences from the stored space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.space.domains import Spelled
from trainkit.tune.space.search_space import Space, spell
from trainkit.tune.space.serialization import OPAQUE, encode_config, holds_opaque, is_opaque


def restored_space(stored: Any, given: Mapping[str, Any] | None) -> tuple[Space, list[str]]:
    """Return the search space for the resumed experiment, and its differences from the stored space.

    Raises:
        ConfigError: the file could not store the space and no space is given, or the two spaces share no
            hyperparameter.
    """
    if given is None:
        if holds_opaque(stored):
            raise ConfigError(
                "the search space contains functions or objects, which the experiment's file cannot store: "
                "give the space again, as Tuner.restore(path, trainable, param_space=...)"
            )
        return Space.of(stored), []
    space = Space.of(given)
    return space, differences(stored, space.tree)


def differences(old: Any, new: Any) -> list[str]:
    """Return the changes in the space `new`: 'lr: uniform(0, 1) -> uniform(0, 2)', 'act: new', 'net: gone'.

    Raises:
        ConfigError: the two spaces have no hyperparameter in common.
    """
    before, after = dict(_leaves(old, ())), dict(_leaves(new, ()))
    if before and after and not before.keys() & after.keys():
        raise ConfigError(
            f"param_space has none of the experiment's hyperparameters: the experiment has "
            f"{', '.join(before)}, param_space has {', '.join(after)}. Start a new experiment for this space"
        )
    changes = []
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            changes.append(f"{name}: gone")
        elif name not in before:
            changes.append(f"{name}: new, {_shown(after[name])}")
        elif encode_config(before[name]) != encode_config(after[name]):
            changes.append(f"{name}: {_shown(before[name])} -> {_shown(after[name])}")
    return changes


def _leaves(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node and not is_opaque(node):
        for key, value in node.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(node, list) and node:
        for place, value in enumerate(node):
            yield from _leaves(value, (*path, place))
    elif path:
        yield spell(path), node


def _shown(leaf: Any) -> str:
    if is_opaque(leaf):
        leaf = leaf[OPAQUE]
    text = str(leaf) if isinstance(leaf, (Spelled, str)) else repr(leaf)
    return text if len(text) <= 100 else f"{text[:100]}..."
