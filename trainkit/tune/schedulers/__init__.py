"""Schedulers: which trials are stopped early."""

from __future__ import annotations

from trainkit.tune.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
from trainkit.tune.schedulers.base import Decision, TrialScheduler, Verdict
from trainkit.tune.schedulers.fifo import FIFOScheduler
from trainkit.tune.schedulers.hb_bohb import HyperBandForBOHB
from trainkit.tune.schedulers.hyperband import HyperBandScheduler
from trainkit.tune.schedulers.median_stopping_rule import MedianStoppingRule
from trainkit.tune.schedulers.pareto import ParetoScheduler
from trainkit.tune.schedulers.pb2 import PB2
from trainkit.tune.schedulers.pbt import PopulationBasedTraining
from trainkit.tune.schedulers.pbt_replay import PopulationBasedTrainingReplay
from trainkit.tune.schedulers.resource_changing_scheduler import ResourceChangingScheduler

__all__ = [
    "PB2",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "Decision",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "ParetoScheduler",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "ResourceChangingScheduler",
    "TrialScheduler",
    "Verdict",
]
