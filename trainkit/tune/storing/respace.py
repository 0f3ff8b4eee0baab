"""Goes on in another search space: what has changed, and the objects of old configurations; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.domains import Spelled
from trainkit.tune.spaces.variants import Space, spell
from trainkit.tune.values import OPAQUE, encode_config, holds_opaque, is_opaque


def restored_space(stored: Any, given: Mapping[str, Any] | None) -> tuple[Space, list[str]]:
    """Return the search space to go on with, and how it differs from the stored one, a text each.

    Raises:
        ConfigError: the file can't hold the space and none was given, or the one given is of another search.
    """
    if given is None:
        if holds_opaque(stored):
            raise ConfigError(
                "the search space holds functions or objects, which the experiment's file cannot: give it "
                "again, as Tuner.restore(path, trainable, param_space=...)"
            )
        return Space.of(stored), []
    space = Space.of(given)
    return space, differences(stored, space.tree)


def differences(old: Any, new: Any) -> list[str]:
    """Say what is another in the space `new`: 'lr: uniform(0, 1) -> uniform(0, 2)', 'act: new', 'net: gone'.

    Raises:
        ConfigError: the two have no hyperparameter in common.
    """
    before, after = dict(_leaves(old, ())), dict(_leaves(new, ()))
    if before and after and not before.keys() & after.keys():
        raise ConfigError(
            f"param_space has none of the experiment's hyperparameters: stored is {', '.join(before)}, given "
            f"is {', '.join(after)}. Start a new experiment for another search"
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
    if isinstance(node, dict) and node and not is_opaque(node):
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


def with_objects(space: Space) -> Callable[[Any], Any]:
    """Return a function that puts the objects of `space` in place of their marks in a configuration.

    Where two objects of the space have one mark, such as two lambdas, the mark stays.
    """
    objects: dict[str, Any] = {}
    ambiguous = set()
    for _, value in space.values():
        for each in _everything(value):
            mark = json.loads(encode_config(each))
            if is_opaque(mark):
                name = mark[OPAQUE]
                if name in objects and objects[name] is not each:
                    ambiguous.add(name)
                objects[name] = each
    known = {name: each for name, each in objects.items() if name not in ambiguous}

    def replaced(node: Any) -> Any:
        if is_opaque(node):
            return known.get(node[OPAQUE], node)
        if isinstance(node, dict):
            return {key: replaced(child) for key, child in node.items()}
        if isinstance(node, (list, tuple)):
            return type(node)(replaced(child) for child in node)
        return node

    return replaced if known else lambda config: config


def _everything(node: Any) -> Iterator[Any]:
    if isinstance(node, Mapping):
        for child in node.values():
            yield from _everything(child)
    elif isinstance(node, (list, tuple)):
        for child in node:
            yield from _everything(child)
    elif isinstance(node, Spelled):
        yield from _everything(list(node.spelling[1]))
    else:
        yield node
