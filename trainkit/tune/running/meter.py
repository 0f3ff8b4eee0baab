"""Counts a trial's reports and the time between them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from trainkit.clock import SYSTEM, Clock
from trainkit.tune.running.protocol import TrialSpec


class Meter:
    """Fills in what every report carries: counts and times.

    Args:
        spec: the trial, with what it counted before.
        clock: to read.
    """

    def __init__(self, spec: TrialSpec, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self._before_s = spec.time_total_s
        self._since_restore_s = 0.0
        self._timesteps = spec.timesteps_total
        self._restored_at = spec.iteration
        self.iteration = spec.iteration

    def fill(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Count one report; return its metrics with the automatic keys, which reported ones override."""
        now = self._clock.monotonic()
        spent, self._last = now - self._last, now
        self._since_restore_s += spent
        self.iteration += 1
        date = self._clock.now()
        filled = {
            "training_iteration": self.iteration,
            "time_this_iter_s": spent,
            "time_total_s": self._before_s + self._since_restore_s,
            "date": f"{datetime.fromtimestamp(date):%Y-%m-%d_%H-%M-%S}",
            "timestamp": int(date),
            "iterations_since_restore": self.iteration - self._restored_at,
            "time_since_restore": self._since_restore_s,
        }
        if "timesteps_this_iter" in metrics:
            self._timesteps = (self._timesteps or 0) + metrics["timesteps_this_iter"]
            filled["timesteps_total"] = self._timesteps
        return {**filled, **metrics}
