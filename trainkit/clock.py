"""Time as an argument: the one file that reads a clock, so that rules never do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What the parts that need time are given."""

    def now(self) -> float:
        """Seconds since the epoch; may jump when the system's clock is set."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back. For durations and deadlines."""

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""


class SystemClock:
    """The machine's own clock."""

    # The functions themselves: a wait asks for the time again and again.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM = SystemClock()


def thread_clock() -> Callable[[], float]:
    """Return a clock of the seconds that the calling thread has computed, for other threads to read.

    It raises an OSError once the thread has ended.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def busy_s() -> float:
    """Return for how many seconds the calling thread has kept a core busy; waiting does not count."""
    return time.thread_time()
