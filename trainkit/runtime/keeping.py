"""What a worker keeps from one call to the next of the same kind, and drops when none comes for a while.

Values that many calls are given would be opened for each of them anew. They are kept, those of several kinds
where their calls take turns, until none has come for `IDLE_S`; then a worker lets go of them, and of the
shared memory behind them, be it at a call of another kind or while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from trainkit.clock import SYSTEM, Clock

IDLE_S = 0.5
"""How long a value is kept that no call wants."""

T = TypeVar("T")

_kept: dict[Hashable, tuple[Any, float]] = {}
"""By key the value, and when a call last began with it."""


def kept(key: Hashable, make: Callable[[], T], clock: Clock = SYSTEM) -> T:
    """Return what was made for `key` at a call before, or make it.

    Args:
        key: equal only for what is the same in all processes of a session.
        make: makes the value.
        clock: to read.
    """
    now = clock.monotonic()
    for other in [other for other, (_, used) in _kept.items() if other != key and now > used + IDLE_S]:
        del _kept[other]
    value = _kept[key][0] if key in _kept else make()
    _kept[key] = value, now
    return cast(T, value)


def keeps() -> bool:
    """Whether there is something to let go of."""
    return bool(_kept)


def let_go() -> None:
    """Forget what is kept."""
    _kept.clear()
