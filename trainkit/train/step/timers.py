"""Timers for the parts of a step, enabled by `profile=True`, with the class names of RaySGD."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, TypeVar

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError

T = TypeVar("T")

_OFF: AbstractContextManager[None] = nullcontext()


def _statistic(function: Callable[[list[float]], Any]) -> Any:
    return property(lambda timer: function(timer._samples))


class TimerStat:
    """Timer of one block of code: a context manager that records the duration of its body in seconds.

    Args:
        wait: function called before each reading of the clock, for example to wait for a GPU.
    """

    count = _statistic(len)
    """Number of measured durations."""
    mean = _statistic(statistics.fmean)
    """Mean duration."""
    median = _statistic(statistics.median)
    """Median duration."""
    sum = _statistic(sum)
    """Sum of the durations."""
    max = _statistic(max)
    """Longest duration."""
    first = _statistic(lambda samples: samples[0] if samples else None)
    """First measured duration; None if nothing was measured."""
    last = _statistic(lambda samples: samples[-1] if samples else None)
    """Last measured duration; None if nothing was measured."""

    def __init__(self, wait: Callable[[], object] | None = None) -> None:
        self._wait = wait
        self._started: float | None = None
        self.reset()

    def __enter__(self) -> None:
        if self._started is not None:
            raise ConfigError("this timer is already running: use a different name for the inner block")
        self._started = self._now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        started, self._started = self._started, None
        if started is not None and error is None:
            self.push(self._now() - started)

    def push(self, seconds: float) -> None:
        """Add a duration."""
        self._samples.append(seconds)

    def reset(self) -> None:
        """Forget all durations."""
        self._samples: list[float] = []

    def _now(self) -> float:
        if self._wait is not None:
            self._wait()
        return SYSTEM.monotonic()


class TimerCollection:
    """Timers by name. Until the timers are enabled, `record` measures nothing and costs nothing.

    Args:
        wait: function called before each reading of the clock; see `TimerStat`.

    Attributes:
        enabled: True if times are measured.
    """

    def __init__(self, wait: Callable[[], object] | None = None) -> None:
        self._timers: defaultdict[str, TimerStat] = defaultdict(lambda: TimerStat(wait))
        self.enabled = False

    def record(self, key: str) -> AbstractContextManager[None]:
        """Return a context manager that adds the duration of its body to the timer `key`."""
        return self._timers[key] if self.enabled else _OFF

    @contextmanager
    def halves(self, first: str, second: str, between: Callable[[T], T]) -> Iterator[Callable[[T], T]]:
        """Measure a block in two parts, which are separated by the block's first call of a function.

        Args:
            first: timer of the part before the function's first call.
            second: timer of the part from this call on; it measures nothing if the function is not called.
            between: the function that separates the parts.

        Returns:
            The function that the block must call instead of `between`.
        """
        with ExitStack() as part:
            part.enter_context(self.record(first))
            crossed = False

            def cross(value: T) -> T:
                nonlocal crossed
                if not crossed:
                    crossed = True
                    part.close()
                    part.enter_context(self.record(second))
                return between(value)

            yield cross

    def switch(self, on: bool) -> None:
        """Forget all durations, and turn measuring on or off."""
        self.reset()
        self.enabled = on

    def enable(self) -> None:
        """Start measuring."""
        self.enabled = True

    def disable(self) -> None:
        """Stop measuring; measured durations are kept."""
        self.enabled = False

    def reset(self) -> None:
        """Forget all durations."""
        for timer in self._timers.values():
            timer.reset()

    def stats(self, mean: bool = True, last: bool = False) -> dict[str, float]:
        """Return durations in seconds: "mean_<key>_s" and, if requested, "last_<key>_s"."""
        found: dict[str, float] = {}
        for key, timer in self._timers.items():
            if mean and timer.count:
                found[f"mean_{key}_s"] = timer.mean
            if last and timer.last is not None:
                found[f"last_{key}_s"] = timer.last
        return found
