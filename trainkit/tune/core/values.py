"""Conversion of metrics and configurations to what the store keeps, and back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from pathlib import PurePath
from typing import Any

from trainkit.errors import MetricError, SpaceError
from trainkit.tune import space
from trainkit.tune.core.checks import is_mapping
from trainkit.tune.space.domains import Spelled


def merge_dicts(d1: Mapping[str, Any], d2: Mapping[str, Any]) -> dict[str, Any]:
    """Return `d1` with `d2` on top; where both hold a dictionary, those are merged in turn."""
    result = dict(d1)
    for key, value in d2.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge_dicts(result[key], value) if nested else value
    return result


_TEXT_OF = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_FLOAT_OF = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PLAIN = frozenset((str, int, float, bool, type(None)))
_of_text = json.JSONDecoder().decode
_to_text = json.JSONEncoder(
    allow_nan=False, separators=(",", ":")
).encode  # one for all: to make one takes long

MAX_BITS = 1023
"""Of a whole number; larger ones have no float, which every comparison would need."""

MAX_ELEMENTS = 10_000
"""Of an array in a report; every report is kept."""

OPAQUE = "$opaque"
"""Marks a configuration value that text can't hold, with its repr; replaying the suggestion gives it back."""
_TUPLE = "$tuple"
_ITEMS = "$items"
"""Marks a dictionary whose keys are not all texts, such as {0: 1.0, 1: 2.5}."""
_SETS = {"$set": set, "$frozenset": frozenset}
_FLOAT = "$float"
_DOMAIN = "$domain"


# --- metrics --------------------------------------------------------------------------------------


def plain_metrics(metrics: Any) -> dict[str, Any]:
    """Return reported metrics as numbers, texts, lists and dictionaries.

    Arrays of NumPy and torch and sets become lists, arrays of no dimension numbers; dates, paths and bytes
    become texts, durations seconds.

    Raises:
        MetricError: `metrics` is not a dictionary, or a value can't be stored; the key is named.
    """
    if not is_mapping(metrics):
        raise MetricError(f"a report takes a dictionary of metrics, not {_short(metrics)}")
    # Plain numbers, as most are, without a call each.
    return {
        str(key): value if type(value) is float else _plain_metric(value, str(key))
        for key, value in metrics.items()
    }


def _plain_metric(value: Any, key: str) -> Any:
    kind = type(value)
    if kind is int and value.bit_length() > MAX_BITS:
        raise MetricError(
            f"metric {key!r} is a whole number of {value.bit_length()} bits, too large to compare with "
            "others; report its logarithm, or a text"
        )
    if kind in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain_metric(child, f"{key}/{name}") for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_metric(child, f"{key}/{place}") for place, child in enumerate(value)]
    scalar = _scalar(value)
    if type(scalar) in _PLAIN:
        return scalar if scalar is value else _plain_metric(scalar, key)
    if (plain := _as_plain(value, key)) is not value:
        return _plain_metric(plain, key)
    raise MetricError(
        f"metric {key!r} is of type {kind.__name__} and cannot be stored; report numbers and texts, and save "
        "the rest in a checkpoint"
    )


def _as_plain(value: Any, key: str) -> Any:
    """Return arrays and sets as lists, dates, paths and bytes as texts, durations in seconds."""
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "tolist"):  # NumPy's and torch's, without importing either
        if math.prod(shape) > MAX_ELEMENTS:
            raise MetricError(
                f"metric {key!r} has shape {tuple(shape)}, more than {MAX_ELEMENTS} numbers; report one, "
                "such as its mean, or save it in a checkpoint"
            )
        return value.tolist()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value


def is_scalar(value: Any) -> bool:
    """Return True if `value` is one number of Python, NumPy or torch."""
    return isinstance(value, (int, float)) or (
        hasattr(value, "item") and tuple(getattr(value, "shape", (1,))) == ()
    )


def _scalar(value: Any) -> Any:
    """NumPy's and torch's scalars as Python's, without importing either; anything else as it is."""
    if isinstance(value, (bool, int, float, str)):  # subclasses, such as numpy.float64
        kind = next(kind for kind in (bool, int, float, str) if isinstance(value, kind))
        return kind(value)
    if hasattr(value, "item") and hasattr(value, "dtype") and tuple(getattr(value, "shape", (1,))) == ():
        return value.item()
    return value


def storable_text(text: str) -> str:
    """Return `text` as UTF-8 can hold it: what stands for an undecodable byte is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def first_line(text: str) -> str:
    """The first line of a text; '' where there is none."""
    return text.partition("\n")[0]


def encode(value: Any) -> str:
    """Return `value` as JSON that every reader accepts: NaN and infinities become texts."""
    try:
        return _to_text(value)
    except ValueError:
        return _to_text(_without_nan(value))


def decode(text: str) -> Any:
    """The reverse of `encode`; the texts NaN, Infinity and -Infinity are read as numbers."""
    value = _of_text(text)
    return _with_nan(value) if '"NaN"' in text or 'Infinity"' in text else value


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return _TEXT_OF[str(value)]
    return _mapped(value, _without_nan)


def _with_nan(value: Any) -> Any:
    if isinstance(value, str):
        return _FLOAT_OF.get(value, value)
    return _mapped(value, _with_nan)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(child) for key, child in value.items()}
    return [change(child) for child in value] if isinstance(value, list) else value


def without_objects(value: Any) -> Any:
    """Return `value` with texts for what JSON has no word for: keys, and objects, by name if they have it."""
    if isinstance(value, Mapping):
        return {str(key): without_objects(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_objects(child) for child in value]
    value = _scalar(value)
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return getattr(value, "__name__", None) or str(value)


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries as one, with keys such as 'eval/accuracy'."""
    flat: dict[str, Any] = {}
    _flatten(nested, "", flat)
    return flat


def _flatten(nested: Mapping[str, Any], prefix: str, flat: dict[str, Any]) -> None:
    for key, value in nested.items():
        # The usual types first: to ask for a Mapping takes longer than all the rest.
        if type(value) not in _PLAIN and isinstance(value, Mapping) and value:
            _flatten(value, f"{prefix}{key}/", flat)
        else:
            flat[f"{prefix}{key}"] = value


_ABSENT = object()


def lookup(metrics: Mapping[str, Any], name: str) -> Any:
    """The metric `name`, which may be a path such as 'eval/accuracy'; None if it is not there."""
    value = metrics.get(name, _ABSENT)
    if value is not _ABSENT:
        return value
    node: Any = metrics
    for part in name.split("/"):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


# --- configurations and spaces --------------------------------------------------------------------


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
    if type(value) not in _PLAIN:
        value = _scalar(value)
    if type(value) in _PLAIN:
        if type(value) is float and not math.isfinite(value):
            return {_FLOAT: _TEXT_OF[str(value)]}  # marked, as a configuration may hold the text "NaN" too
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
            return _FLOAT_OF[held]
        if mark in _SETS:
            return _SETS[mark](map(_from_data, held))
        if mark == _DOMAIN:
            return _domain_of(*held)
    return {
        key: child if type(child) in _PLAIN else _from_data(child)  # the usual ones by the short way
        for key, child in data.items()
    }


def _domain_of(name: str, *arguments: Any) -> Any:
    if name not in space.SPELLINGS:
        raise SpaceError(f"the stored space uses {name!r}, which this version of trainkit does not know")
    return space.SPELLINGS[name](*map(_from_data, arguments))


def _name_of(value: Any) -> str:
    """A text that is the same in every process: a default repr holds an address."""
    named = getattr(value, "__qualname__", None)
    if named is not None:
        return f"{getattr(value, '__module__', '')}.{named}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", _short(value))


def _short(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
