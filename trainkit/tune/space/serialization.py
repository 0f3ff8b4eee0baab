"""Conversion of configurations and search spaces to text for the store, and back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from trainkit.errors import SpaceError
from trainkit.registry import Registry
from trainkit.tune.core.checks import NOT_KEPT
from trainkit.tune.core.metrics import FLOAT_OF, PLAIN_TYPES, TEXT_OF, as_scalar, parsed, shortened_repr
from trainkit.tune.space import SPELLINGS
from trainkit.tune.space.domains import Spelled
from trainkit.tune.space.tree import is_own_container

# The encoder is shared, because creating an encoder is slow.
_to_text = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

OPAQUE = "$opaque"
"""Key of the mark for a value without a text form. A restore repeats the suggestion to get such a value."""
_TUPLE = "$tuple"
_ITEMS = "$items"
"""Key that marks a dictionary with keys other than strings, such as {0: 1.0, 1: 2.5}."""
_SETS = {"$set": set, "$frozenset": frozenset}
_FLOAT = "$float"
_DOMAIN = "$domain"


def encode_config(config: Any) -> str:
    """Return a configuration or a search space as text; a value without a text form becomes a mark."""
    return _to_text(_to_data(config))


def decode_config(text: str) -> Any:
    """Return the configuration for a text from `encode_config`; marks for values without a text form are
    kept.

    Raises:
        SpaceError: the text names a domain that this version doesn't know.
    """
    data = parsed(text)
    # Every mark is a dictionary that begins with these characters, so a text without them needs no
    # conversion.
    return _from_data(data) if '{"$' in text else data


def is_opaque(value: Any) -> bool:
    """Return True for the mark of a value without a text form."""
    return isinstance(value, dict) and len(value) == 1 and OPAQUE in value


def is_mark_of(stored: Any, value: Any) -> bool:
    """Return True if `stored` contains a mark and represents `value` in a stored configuration."""
    return holds_opaque(stored) and encode_config(stored) == encode_config(value)


def holds_opaque(value: Any) -> bool:
    """Return True if a decoded configuration or space contains a mark of a value without a text form."""
    if is_opaque(value):
        return True
    if isinstance(value, Spelled):
        value = value.spelling[1]
    children = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    )
    return any(type(child) not in PLAIN_TYPES and holds_opaque(child) for child in children)


def made_again(registry: Registry, description: Mapping[str, Any], *, inner: str) -> Any | None:
    """Return a scheduler or searcher recreated from its description; None if only the user's code can
    recreate it.

    Args:
        registry: registry with the class that the description names.
        description: dictionary with the keys `class`, `arguments` and, for a searcher, `evaluated`, a list of
            evaluated points.
        inner: name of the argument for an inner scheduler or searcher, whose value is a description too.
    """
    cls = registry.find(description["class"])
    evaluated = description.get("evaluated", ())
    if cls is None or holds_opaque(description["arguments"]) or holds_opaque(evaluated):
        return None
    arguments = dict(description["arguments"])
    if isinstance(arguments.get(inner), Mapping):
        arguments[inner] = made_again(registry, arguments[inner], inner=inner)
        if arguments[inner] is None:
            return None
    made = cls(**arguments)
    for each in evaluated:
        made.add_evaluated_point(**each)
    return made


def why_not_made_again(registry: Registry, description: Mapping[str, Any], *, inner: str) -> str:
    """Return text that says why `made_again` returns None for a description."""
    name, arguments = description["class"], description["arguments"]
    if registry.find(name) is None:
        return f"no installed package registers a {registry.kind} named {name} in its metadata"
    within = arguments.get(inner)
    if (
        isinstance(within, Mapping)
        and "class" in within
        and made_again(registry, within, inner=inner) is None
    ):
        return why_not_made_again(registry, within, inner=inner)
    for argument, value in arguments.items():
        if value == {OPAQUE: repr(NOT_KEPT)}:
            return f"{name} does not keep its argument {argument!r} as an attribute of this name"
        if holds_opaque(value):
            return f"the argument {argument!r} of {name} is or contains a function or an object"
    return f"an evaluated point of {name} contains a function or an object"


def complete(stored: Any, replayed: Any) -> Any:
    """Return `stored` with objects in place of marks. Each mark is replaced by the object at the same path of
    `replayed`, if the object matches the mark. A mark without a matching object stays, and the caller must
    reject it.
    """
    if stored is replayed or type(stored) in PLAIN_TYPES:  # most values contain no mark, and stay as they are
        return stored
    if is_opaque(stored) or is_own_container(replayed):
        return replayed if encode_config(replayed) == encode_config(stored) else stored
    if isinstance(stored, dict) and isinstance(replayed, dict):
        return {key: complete(value, replayed.get(key)) for key, value in stored.items()}
    if (
        isinstance(stored, (list, tuple))
        and isinstance(replayed, (list, tuple))
        and len(stored) == len(replayed)
    ):
        return type(stored)(complete(a, b) for a, b in zip(stored, replayed, strict=True))
    return stored


def _to_data(value: Any) -> Any:
    if is_own_container(value):  # only the items are stored, not the user's class
        value = dict(value.items()) if isinstance(value, Mapping) else list(value)
    elif type(value) not in PLAIN_TYPES:
        value = as_scalar(value)
    if type(value) in PLAIN_TYPES:
        if type(value) is float and not math.isfinite(value):
            # The float NaN is marked, because a configuration may also contain the text "NaN".
            return {_FLOAT: TEXT_OF[str(value)]}
        return value
    if isinstance(value, Spelled):
        name, arguments = value.spelling
        return {_DOMAIN: [name, *map(_to_data, arguments)]}
    if type(value) is tuple:
        return {_TUPLE: [_to_data(child) for child in value]}
    if type(value) is list:
        return [_to_data(child) for child in value]
    if type(value) is dict:
        if all(type(key) is str for key in value):
            return {key: _to_data(child) for key, child in value.items()}
        keys = list(map(_to_data, value))
        if not any(map(holds_opaque, keys)):
            return {_ITEMS: [[key, _to_data(child)] for key, child in zip(keys, value.values(), strict=True)]}
    if type(value) in (set, frozenset):
        # The items are sorted, because the order of a set differs between processes.
        children = sorted(map(_to_data, value), key=json.dumps)
        if any(map(holds_opaque, children)):
            return {OPAQUE: f"{type(value).__name__} of {json.dumps(children)}"}
        return {f"${type(value).__name__}": children}
    return {OPAQUE: _name_of(value)}


def _from_data(data: Any) -> Any:
    if isinstance(data, list):
        return [_from_data(child) for child in data]
    if not isinstance(data, dict):
        return data
    if len(data) == 1:  # only a dictionary with one key can be a mark
        ((mark, held),) = data.items()
        if mark == OPAQUE:
            return data
        if mark == _TUPLE:
            return tuple(_from_data(child) for child in held)
        if mark == _ITEMS:
            return {_from_data(key): _from_data(child) for key, child in held}
        if mark == _FLOAT:
            return FLOAT_OF[held]
        if mark in _SETS:
            return _SETS[mark](map(_from_data, held))
        if mark == _DOMAIN:
            return _domain_of(*held)
    return {
        key: child if type(child) in PLAIN_TYPES else _from_data(child)  # fast path for plain values
        for key, child in data.items()
    }


def _domain_of(name: str, *arguments: Any) -> Any:
    if name not in SPELLINGS:
        raise SpaceError(f"the stored space uses {name!r}, which this version of trainkit does not know")
    return SPELLINGS[name](*map(_from_data, arguments))


def _name_of(value: Any) -> str:
    """Return a name of an object that is equal in every process; a default repr contains an address."""
    named = getattr(value, "__qualname__", None)
    if named is not None:
        return f"{getattr(value, '__module__', '')}.{named}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", shortened_repr(value))
