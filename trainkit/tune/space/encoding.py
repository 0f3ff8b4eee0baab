"""Configurations and search spaces as text for the store, and back."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.core.values import FLOAT_OF, PLAIN_TYPES, TEXT_OF, as_scalar, shortened_repr
from trainkit.tune.space import SPELLINGS
from trainkit.tune.space.domains import Spelled

_of_text = json.JSONDecoder().decode
_to_text = json.JSONEncoder(
    allow_nan=False, separators=(",", ":")
).encode  # one for all: to make one takes long

OPAQUE = "$opaque"
"""Marks a configuration value that text can't hold, with its repr; replaying the suggestion gives it back."""
_TUPLE = "$tuple"
_ITEMS = "$items"
"""Marks a dictionary whose keys are not all texts, such as {0: 1.0, 1: 2.5}."""
_SETS = {"$set": set, "$frozenset": frozenset}
_FLOAT = "$float"
_DOMAIN = "$domain"


def encode_config(config: Any) -> str:
    """Return a configuration, or a search space, as text; what text can't hold is marked opaque."""
    return _to_text(_to_data(config))


def decode_config(text: str) -> Any:
    """The reverse of `encode_config`; an opaque value comes back as the dictionary that marks it.

    Raises:
        SpaceError: the text names a domain that this version doesn't know.
    """
    return _from_data(_of_text(text))


def is_opaque(value: Any) -> bool:
    """True for the mark of a value that text could not hold."""
    return isinstance(value, dict) and len(value) == 1 and OPAQUE in value


def is_mark_of(stored: Any, value: Any) -> bool:
    """True if `stored` is the mark that a stored configuration has in place of `value`."""
    return is_opaque(stored) and encode_config(stored) == encode_config(value)


def holds_opaque(value: Any) -> bool:
    """True if any part of a decoded configuration or space is opaque."""
    if is_opaque(value):
        return True
    if isinstance(value, Spelled):
        value = value.spelling[1]
    children = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    )
    return any(holds_opaque(child) for child in children)


def complete(stored: Any, replayed: Any) -> Any:
    """Return `stored` with its opaque parts taken from the same places of `replayed`, where they agree.

    A part that does not agree stays a mark, for the caller to refuse.
    """
    if is_opaque(stored):
        return replayed if _to_data(replayed) == stored else stored
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
    if type(value) not in PLAIN_TYPES:
        value = as_scalar(value)
    if type(value) in PLAIN_TYPES:
        if type(value) is float and not math.isfinite(value):
            return {_FLOAT: TEXT_OF[str(value)]}  # marked, as a configuration may hold the text "NaN" too
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
        # In an order that is the same in every process, which a set's own is not.
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
    if len(data) == 1:  # as all that is marked is
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
        key: child if type(child) in PLAIN_TYPES else _from_data(child)  # the usual ones by the short way
        for key, child in data.items()
    }


def _domain_of(name: str, *arguments: Any) -> Any:
    if name not in SPELLINGS:
        raise SpaceError(f"the stored space uses {name!r}, which this version of trainkit does not know")
    return SPELLINGS[name](*map(_from_data, arguments))


def _name_of(value: Any) -> str:
    """A text that is the same in every process: a default repr holds an address."""
    named = getattr(value, "__qualname__", None)
    if named is not None:
        return f"{getattr(value, '__module__', '')}.{named}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", shortened_repr(value))
