"""Settings for signals that announce the end of a job, and for the time at which the program ends."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from trainkit.errors import ConfigError
from trainkit.settings import job_end_time, preempt_signals, stop_before_s

NUMBERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which schedulers announce the end of a job."""


@dataclass(frozen=True)
class PreemptSettings:
    """Settings for the announced end of a job.

    Attributes:
        numbers: signals that end the program cleanly.
        stop_at: Unix time at which the program ends as by SIGTERM; None for no such time.
    """

    numbers: tuple[int, ...] = (signal.SIGTERM,)
    stop_at: float | None = None

    @classmethod
    def of(cls, names: Sequence[str] | None = None, before_s: float | None = None) -> PreemptSettings:
        """Return settings for arguments of `init`; environment variables replace a missing argument.

        Raises:
            ConfigError: a signal is not supported, or the end of the job is unknown.
        """
        given = preempt_signals() if names is None else names
        full = [f"SIG{str(getattr(name, 'name', name)).upper().removeprefix('SIG')}" for name in given]
        if isinstance(names, str) or (unknown := sorted(set(full) - {number.name for number in NUMBERS})):
            wrong = repr(names) if isinstance(names, str) else ", ".join(unknown)
            raise ConfigError(
                f"preempt_signals={wrong} is not supported: give a list of SIGTERM, SIGUSR1 and SIGUSR2"
            )
        numbers = tuple(number for number in NUMBERS if number.name in ("SIGTERM", *full))
        try:
            before_s, end = stop_before_s() if before_s is None else before_s, job_end_time()
        except ValueError as error:
            raise ConfigError(
                "TRAINKIT_STOP_BEFORE_S, TRAINKIT_JOB_END_TIME and SLURM_JOB_END_TIME must be numbers: "
                f"{error}"
            ) from error
        if before_s is None:
            return cls(numbers)
        if not 0 <= before_s < math.inf:
            raise ConfigError(f"stop_before_s must be a number of 0 or more, not {before_s!r}")
        if end is None:
            raise ConfigError(
                "stop_before_s needs the end of the job, but SLURM_JOB_END_TIME is missing: set "
                "TRAINKIT_JOB_END_TIME to the Unix time at which the job ends"
            )
        return cls(numbers, end - before_s)
