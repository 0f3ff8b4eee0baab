"""Schedulers: which trials are stopped early."""

from __future__ import annotations

from trainkit.tune.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
from trainkit.tune.schedulers.base import Decision, TrialScheduler, Verdict
from trainkit.tune.schedulers.fifo import FIFOScheduler

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "Decision",
    "FIFOScheduler",
    "TrialScheduler",
    "Verdict",
]
