"""Schedulers: which trials are stopped early."""

from __future__ import annotations

from trainkit.tune.schedulers.asha import ASHAScheduler, AsyncHyperBandScheduler
from trainkit.tune.schedulers.base import Decision, TrialScheduler, Verdict
from trainkit.tune.schedulers.fifo import FIFOScheduler
from trainkit.tune.schedulers.median_stopping_rule import MedianStoppingRule

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "Decision",
    "FIFOScheduler",
    "MedianStoppingRule",
    "TrialScheduler",
    "Verdict",
]
