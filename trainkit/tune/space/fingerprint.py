"""Fingerprints of configurations: equal ones have equal bytes."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from operator import itemgetter
from typing import Any

from trainkit.tune.core.checks import is_mapping


def fingerprint(config: Mapping[str, Any]) -> bytes:
    """Equal for equal configurations, whatever the order of their keys; different for different ones.

    Objects that text can't hold are told apart by identity: two of a class may have one name. That holds
    as long as they live, which those of trials do for the whole experiment.
    """
    return blake2b(repr(_comparable(config)).encode(), digest_size=16).digest()


def _canonical(value: Any) -> str:
    return repr(_comparable(value))


_first = itemgetter(0)
_PLAIN = frozenset((str, int, float, bool, type(None)))


def _comparable(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if is_mapping(value):
        pairs = [
            (
                key if type(key) is str else f"\0{_canonical(key)}",
                child if type(child) in _PLAIN else _comparable(child),
            )
            for key, child in value.items()
        ]
        return ("{}", sorted(pairs, key=_first))
    if isinstance(value, (list, tuple)):
        return ["()" if isinstance(value, tuple) else "[]", *map(_comparable, value)]
    if isinstance(value, (set, frozenset)):
        return ("set", sorted(map(_canonical, value)))
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    return ["object", id(value)]
