"""Helpers that scripts import from `ray.tune.utils`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_dicts(d1: Mapping[str, Any], d2: Mapping[str, Any]) -> dict[str, Any]:
    """Return `d1` with `d2` on top; where both hold a dictionary, those are merged in turn."""
    result = dict(d1)
    for key, value in d2.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge_dicts(result[key], value) if nested else value
    return result
