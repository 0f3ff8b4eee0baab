"""What rules say of a configuration of which some values are not drawn yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainkit.tune.domains import SampleFrom
from trainkit.tune.spaces.conditions import Rule
from trainkit.tune.spaces.growing import Undrawn


def surely_broken(rule: Rule, config: Mapping[str, Any]) -> bool:
    """True if `rule` forbids `config` whatever its undrawn values will be."""
    if rule.function is None:
        return rule.is_broken_by(config)  # a condition on what is undrawn does not hold
    try:
        return rule.is_broken_by(_Guarded(config) if is_undrawn(config) else config)
    except Exception:  # it asked for a value that is not drawn; asked again when all are, it may raise
        return False


def is_undrawn(value: Any) -> bool:
    """True if any part of `value` has not been drawn or computed."""
    if isinstance(value, dict):
        return any(map(is_undrawn, value.values()))
    return (
        any(map(is_undrawn, value)) if isinstance(value, list) else isinstance(value, (Undrawn, SampleFrom))
    )


class _NotDrawnError(Exception):
    """A rule looked at a value that is not there yet."""


class _Guarded(Mapping[str, Any]):
    """A configuration of which some values are undrawn: neither these can be seen, nor that a key is missing.

    A missing one may be there once what its condition looks at is drawn.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise _NotDrawnError
        value = self._config[key]
        if isinstance(value, dict):
            return _Guarded(value)
        if is_undrawn(value) or (
            isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value)
        ):
            raise _NotDrawnError
        return value

    def __contains__(self, key: object) -> bool:
        if key not in self._config:
            raise _NotDrawnError
        return True

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]

    def __iter__(self) -> Iterator[str]:
        raise _NotDrawnError

    def __len__(self) -> int:
        raise _NotDrawnError
