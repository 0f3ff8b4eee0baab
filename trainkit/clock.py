"""Clocks, which functions receive as arguments. Only this module reads the system's time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Interface of a clock."""

    def now(self) -> float:
        """Return seconds since the epoch. The value may jump when the system's clock is set."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, for durations and deadlines. The value never decreases."""

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class SystemClock:
    """The machine's own clock."""

    # The C functions are used without a wrapper, because loops that wait read the time very often.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM = SystemClock()


def thread_clock() -> Callable[[], float]:
    """Return a function that reads the CPU seconds used by the thread that calls `thread_clock`.

    Any thread may call the function. The function raises OSError once the measured thread has ended.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def busy_s() -> float:
    """Return the CPU seconds that the calling thread has used, without waiting time."""
    return time.thread_time()
