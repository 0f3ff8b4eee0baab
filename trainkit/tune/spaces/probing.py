"""What rules say of a configuration of which some values are not drawn yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainkit.tune.spaces.conditions import Rule
from trainkit.tune.spaces.growing import Undrawn


def surely_broken(rule: Rule, config: Mapping[str, Any]) -> bool:
    """True if `rule` forbids `config` whatever its undrawn values will be."""
    if rule.function is None:
        return rule.is_broken_by(config)  # a condition on what is undrawn does not hold
    try:
        return rule.is_broken_by(_Guarded.of(config))
    except Exception:  # it asked for a value that is not drawn; asked again when all are, it may raise
        return False


class _NotDrawnError(Exception):
    """A rule looked at a value that is not there yet."""


class _Guarded(Mapping[str, Any]):
    """A configuration of which some values are undrawn, and must not be looked at."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    @staticmethod
    def of(value: Any) -> Any:
        if isinstance(value, Undrawn):
            raise _NotDrawnError
        if not _undrawn(value):
            return value
        if isinstance(value, dict):
            return _Guarded(value)
        raise _NotDrawnError

    def __getitem__(self, key: str) -> Any:
        if key not in self._config:
            raise _NotDrawnError  # it may be there once what its condition looks at is drawn
        return _Guarded.of(self._config[key])

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


def _undrawn(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_undrawn, value.values()))
    return any(map(_undrawn, value)) if isinstance(value, list) else isinstance(value, Undrawn)
