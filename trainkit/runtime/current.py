"""The engine that is running in this process, for the objects that call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainkit.runtime.engine import Engine

_provider: Callable[[], Engine] | None = None


def bind(provider: Callable[[], Engine]) -> None:
    """Say where the running engine is found; it may start one."""
    global _provider
    _provider = provider


def engine() -> Engine:
    """The running engine."""
    if _provider is None:
        raise RuntimeError("trainkit.runtime.api was not imported, so there is no engine")
    return _provider()
