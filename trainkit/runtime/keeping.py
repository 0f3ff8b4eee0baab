"""What a worker keeps from one call to the next of the same kind, and drops when none comes for a while.

Values that many calls are given would be opened for each of them anew. Those of the last kind of call are
kept; a worker that has waited `IDLE_S` for a call lets go of them, and of the shared memory behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

IDLE_S = 0.5
"""How long a worker waits with what it keeps."""

T = TypeVar("T")


class _Kept:
    """Of this process."""

    value: tuple[Hashable, Any] | None = None


def kept(key: Hashable, make: Callable[[], T]) -> T:
    """Return what was made for `key` at the call before, or make it and forget what was kept for another.

    Args:
        key: equal only for what is the same in all processes of a session.
        make: makes the value.
    """
    if _Kept.value is None or _Kept.value[0] != key:
        _Kept.value = None  # not both at once
        _Kept.value = key, make()
    return cast(T, _Kept.value[1])


def keeps() -> bool:
    """Whether there is something to let go of."""
    return _Kept.value is not None


def let_go() -> None:
    """Forget what is kept."""
    _Kept.value = None
