"""Clocks, passed as arguments. This is the only module that reads the system's time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Interface of a clock, for all parts that need time."""

    def now(self) -> float:
        """Return seconds since the epoch; they may jump when the system's clock is set."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, for durations and deadlines; they never go back."""

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class SystemClock:
    """The machine's own clock."""

    # Waits read the time very often, so these are the C functions without a wrapper.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM = SystemClock()


def thread_clock() -> Callable[[], float]:
    """Return a clock of the CPU seconds that the calling thread has used; any thread may read the clock.

    Reading it raises OSError once the thread has ended.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def busy_s() -> float:
    """Return the CPU seconds that the calling thread has used; waiting does not count."""
    return time.thread_time()
