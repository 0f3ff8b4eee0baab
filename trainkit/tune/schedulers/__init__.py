"""Schedulers: which trials go on, pause or stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainkit.tune.elsewhere import lazily

if TYPE_CHECKING:
    from trainkit.tune.schedulers.async_hyperband import ASHAScheduler, AsyncHyperBandScheduler
    from trainkit.tune.schedulers.base import Decision, Donor, TrialScheduler, Verdict
    from trainkit.tune.schedulers.create import create_scheduler
    from trainkit.tune.schedulers.fifo import FIFOScheduler
    from trainkit.tune.schedulers.hb_bohb import HyperBandForBOHB
    from trainkit.tune.schedulers.hyperband import HyperBandScheduler
    from trainkit.tune.schedulers.median_stopping_rule import MedianStoppingRule
    from trainkit.tune.schedulers.pareto import ParetoScheduler
    from trainkit.tune.schedulers.pb2 import PB2
    from trainkit.tune.schedulers.pbt import PopulationBasedTraining, PopulationBasedTrainingReplay
    from trainkit.tune.schedulers.resource_changing_scheduler import ResourceChangingScheduler

_HOME_OF = {
    "ASHAScheduler": "trainkit.tune.schedulers.async_hyperband",
    "AsyncHyperBandScheduler": "trainkit.tune.schedulers.async_hyperband",
    "Decision": "trainkit.tune.schedulers.base",
    "Donor": "trainkit.tune.schedulers.base",
    "FIFOScheduler": "trainkit.tune.schedulers.fifo",
    "HyperBandForBOHB": "trainkit.tune.schedulers.hb_bohb",
    "HyperBandScheduler": "trainkit.tune.schedulers.hyperband",
    "MedianStoppingRule": "trainkit.tune.schedulers.median_stopping_rule",
    "PB2": "trainkit.tune.schedulers.pb2",
    "ParetoScheduler": "trainkit.tune.schedulers.pareto",
    "PopulationBasedTraining": "trainkit.tune.schedulers.pbt",
    "PopulationBasedTrainingReplay": "trainkit.tune.schedulers.pbt",
    "ResourceChangingScheduler": "trainkit.tune.schedulers.resource_changing_scheduler",
    "TrialScheduler": "trainkit.tune.schedulers.base",
    "Verdict": "trainkit.tune.schedulers.base",
    "create_scheduler": "trainkit.tune.schedulers.create",
}

__all__ = [
    "PB2",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "Decision",
    "Donor",
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
    "create_scheduler",
]

__getattr__, __dir__ = lazily(__name__, _HOME_OF)
