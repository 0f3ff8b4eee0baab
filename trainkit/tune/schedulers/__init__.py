"""Schedulers: which trials are stopped early."""

from __future__ import annotations

from trainkit.tune.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
from trainkit.tune.schedulers.base import Decision, TrialScheduler, Verdict
from trainkit.tune.schedulers.fifo import FIFOScheduler
from trainkit.tune.schedulers.hb_bohb import HyperBandForBOHB
from trainkit.tune.schedulers.hyperband import HyperBandScheduler
from trainkit.tune.schedulers.pareto import ParetoScheduler
from trainkit.tune.schedulers.pbt import PopulationBasedTraining
from trainkit.tune.schedulers.pbt_replay import PopulationBasedTrainingReplay

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "Decision",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "ParetoScheduler",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "TrialScheduler",
    "Verdict",
]
