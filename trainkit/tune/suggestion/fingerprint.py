"""Whether two configurations are the same, told by a few bytes of each."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from operator import itemgetter
from typing import Any


def fingerprint(config: Mapping[str, Any]) -> bytes:
    """Equal for equal configurations, whatever the order of their keys; different for different ones.

    Objects that text can't hold are told apart by identity: two of a class may have one name. That holds
    as long as they live, which those of trials do for the whole experiment.
    """
    return blake2b(_canonical(config).encode(), digest_size=16).digest()


def _canonical(value: Any) -> str:
    return repr(_comparable(value))


_first = itemgetter(0)


def _comparable(value: Any) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        pairs = [
            (key if type(key) is str else f"\0{_canonical(key)}", _comparable(child))
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
