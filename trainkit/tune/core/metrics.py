"""Metrics as plain values by flat names, and as JSON text for the store."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from pathlib import PurePath
from typing import Any

from trainkit.errors import MetricError, message_of
from trainkit.tune.core.checks import is_finite, is_mapping, is_number
from trainkit.tune.core.log import logger


def merge_dicts(d1: Mapping[str, Any], d2: Mapping[str, Any]) -> dict[str, Any]:
    """Return `d1` updated by `d2`; dictionaries under the same key are merged recursively."""
    result = dict(d1)
    for key, value in d2.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge_dicts(result[key], value) if nested else value
    return result


TEXT_OF = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
FLOAT_OF = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))
# The encoder and decoder are shared, because constructing them is slow.
_decoder = json.JSONDecoder()
_to_text = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

MAX_BITS = 1023
"""Maximum number of bits of a reported integer.

Larger integers can't be converted to a float, which comparisons need.
"""

MAX_ELEMENTS = 10_000
"""Maximum number of elements of a reported array, because the store keeps every report."""

# --- metrics --------------------------------------------------------------------------------------


def plain_metrics(metrics: Any) -> dict[str, Any]:
    """Return reported metrics as numbers, strings, lists and dictionaries.

    NumPy and torch arrays and sets become lists, and zero-dimensional arrays become numbers. Dates, paths and
    bytes become strings, and durations become seconds.

    Raises:
        MetricError: `metrics` is not a dictionary, or a value can't be stored; the message names the key.
    """
    if not is_mapping(metrics):
        raise MetricError(f"a report takes a dictionary of metrics, not {shortened_repr(metrics)}")
    # Most values are floats, so the comparison of types saves a function call.
    return {
        str(key): value if type(value) is float else _plain_metric(value, str(key))
        for key, value in metrics.items()
    }


def keep_added(
    metrics: dict[str, Any], result: dict[str, Any], known: frozenset[Any], left_out: set[Any]
) -> bool:
    """Copy the values that callbacks and stoppers have added to a result into the report; return True if such
    values exist.

    Changes of reported values are not copied, because a restore passes the original report to the stoppers
    again.

    Args:
        metrics: metrics of the report, extended in place.
        result: the result that callbacks and stoppers saw; added values that can't be stored are removed.
        known: keys of the result before callbacks and stoppers ran.
        left_out: keys of removed values, so that each key causes only one warning.
    """
    if result.keys() <= known:
        return False
    added: dict[str, Any] = {}
    for key in [key for key in result if key not in known]:
        try:
            added |= plain_metrics({key: result[key]})
        except Exception as error:  # the methods of a foreign value may raise any exception
            if key not in left_out:
                left_out.add(key)
                logger.warning(
                    "%r from a callback or stopper is left out: it can't be stored (logged once): %s",
                    key,
                    message_of(error),
                )
        del result[key]
    result |= added
    metrics |= added
    return bool(added)


def _plain_metric(value: Any, key: str) -> Any:
    kind = type(value)
    if kind is int and value.bit_length() > MAX_BITS:
        raise MetricError(
            f"{key!r} is an integer of {value.bit_length()} bits, too large: report its logarithm, or a text"
        )
    if kind in PLAIN_TYPES:
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain_metric(child, f"{key}/{name}") for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_metric(child, f"{key}/{place}") for place, child in enumerate(value)]
    scalar = as_scalar(value)
    if type(scalar) in PLAIN_TYPES:
        return scalar if scalar is value else _plain_metric(scalar, key)
    if (plain := _as_plain(value, key)) is not value:
        return _plain_metric(plain, key)
    raise MetricError(
        f"metric {key!r} is of type {kind.__name__}: report numbers and texts; save others in a checkpoint"
    )


def _as_plain(value: Any, key: str) -> Any:
    """Return arrays and sets as lists, dates, paths and bytes as strings, and durations in seconds."""
    shape = getattr(value, "shape", None)
    # NumPy and torch arrays are recognized by their attributes, so that neither package is imported.
    if shape is not None and hasattr(value, "tolist"):
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
    """Return True if `value` is a single number of Python, NumPy or torch."""
    return isinstance(value, (int, float)) or (
        hasattr(value, "item") and tuple(getattr(value, "shape", (1,))) == ()
    )


def as_scalar(value: Any) -> Any:
    """Return a NumPy or torch scalar as a Python number, without an import; any other value is unchanged."""
    if isinstance(value, (bool, int, float, str)):  # subclasses such as numpy.float64 become plain numbers
        kind = next(kind for kind in (bool, int, float, str) if isinstance(value, kind))
        return kind(value)
    if hasattr(value, "item") and hasattr(value, "dtype") and tuple(getattr(value, "shape", (1,))) == ():
        return value.item()
    return value


def storable_text(text: str) -> str:
    """Return `text` as valid UTF-8, with surrogates (undecodable bytes) escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def first_line(text: str) -> str:
    """Return the first line of a text; '' for an empty text."""
    return text.partition("\n")[0]


def encode(value: Any) -> str:
    """Return `value` as standard JSON text: NaN and infinities become strings."""
    try:
        return _to_text(value)
    except ValueError:
        return _to_text(_without_nan(value))


def storing_problem(values: Mapping[Any, Any]) -> str | None:
    """Return why `encode` can't store one of the values or keys; None if all can be stored."""
    for name, value in values.items():
        if type(name) not in PLAIN_TYPES and not isinstance(name, (str, int, float)):
            return f"key {name!r} is a {type(name).__name__}, which cannot be stored: use a string"
        if type(value) not in PLAIN_TYPES:
            try:
                encode(value)
            except (TypeError, ValueError, RecursionError):
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                return (
                    f"{name!r} is {shortened_repr(value)}, a {kind.removeprefix('builtins.')}, which the "
                    "experiment's file cannot store: give Python's numbers, strings, lists and dictionaries, "
                    "such as int(x) for a NumPy integer"
                )
    return None


def parsed(text: str) -> Any:
    """Return the value of a JSON text."""
    value, end = _decoder.raw_decode(text)
    # Texts from `encode` have no spaces around them, so `raw_decode` suffices, which takes half the time of
    # `decode`.
    return value if end == len(text) else _decoder.decode(text)


def decode(text: str) -> Any:
    """Return the value of a text from `encode`; the strings NaN, Infinity and -Infinity become numbers."""
    value = parsed(text)
    return _with_nan(value) if '"NaN"' in text or 'Infinity"' in text else value


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return TEXT_OF[str(value)]
    return _mapped(value, _without_nan)


def _with_nan(value: Any) -> Any:
    if isinstance(value, str):
        return FLOAT_OF.get(value, value)
    return _mapped(value, _with_nan)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(child) for key, child in value.items()}
    return [change(child) for child in value] if isinstance(value, list) else value


def without_objects(value: Any) -> Any:
    """Return `value` as JSON data: keys become strings, and objects become their `__name__` or their str."""
    if isinstance(value, Mapping):
        return {str(key): without_objects(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_objects(child) for child in value]
    value = as_scalar(value)
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return getattr(value, "__name__", None) or str(value)


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries as one dictionary with keys such as 'eval/accuracy'."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = key if type(key) is str else f"{key}"  # a str is used as it is, because it caches its hash
        # Plain types and dict are checked first, because isinstance with Mapping is the slowest step.
        if type(value) not in PLAIN_TYPES and isinstance(value, (dict, Mapping)) and value:
            for inner, child in flatten(value).items():
                flat[f"{name}/{inner}"] = child
        else:
            flat[name] = value
    return flat


def step_of(result: Mapping[str, Any]) -> int:
    """Return the step of a report for tracking services: its `timesteps_total`, or else its iteration."""
    for name in ("timesteps_total", "training_iteration"):
        value = result.get(name)
        if value and is_finite(value):
            return int(value)
    return 0


_ABSENT = object()


def lookup(metrics: Mapping[str, Any], name: str) -> Any:
    """Return the metric `name`, which may be a path such as 'eval/accuracy'; None if it is missing."""
    value = metrics.get(name, _ABSENT)
    if value is not _ABSENT:
        return value
    node: Any = metrics
    for part in name.split("/"):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def number_of(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return the metric that `lookup` finds if it is a number; else None."""
    value = metrics.get(name)
    # Most values are plain numbers, which are returned at once, because each report calls this function
    # dozens of times.
    if type(value) is float or type(value) is int:
        return value
    value = lookup(metrics, name)
    return value if is_number(value) else None


def shortened_repr(value: Any, limit: int = 200) -> str:
    """Return the repr of `value`, cut after `limit` characters with a note of its length."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def name_of(function: Any) -> str:
    """Return the name of a function for messages."""
    return str(getattr(function, "__qualname__", type(function).__name__))
