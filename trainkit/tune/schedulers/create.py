"""Schedulers by name: what `scheduler="asha"` means, and which classes an experiment's file may name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainkit.registry import Registry
from trainkit.tune.values import holds_opaque

if TYPE_CHECKING:
    from trainkit.tune.schedulers.base import TrialScheduler

SCHEDULERS = Registry(
    "scheduler",
    {
        "asha": "trainkit.tune.schedulers.async_hyperband:ASHAScheduler",
        "async_hyperband": "trainkit.tune.schedulers.async_hyperband:AsyncHyperBandScheduler",
        "asynchyperband": "trainkit.tune.schedulers.async_hyperband:AsyncHyperBandScheduler",
        "fifo": "trainkit.tune.schedulers.fifo:FIFOScheduler",
        "hb_bohb": "trainkit.tune.schedulers.hb_bohb:HyperBandForBOHB",
        "hyperband": "trainkit.tune.schedulers.hyperband:HyperBandScheduler",
        "median": "trainkit.tune.schedulers.median_stopping_rule:MedianStoppingRule",
        "median_stopping_rule": "trainkit.tune.schedulers.median_stopping_rule:MedianStoppingRule",
        "medianstopping": "trainkit.tune.schedulers.median_stopping_rule:MedianStoppingRule",
        "pareto": "trainkit.tune.schedulers.pareto:ParetoScheduler",
        "pb2": "trainkit.tune.schedulers.pb2:PB2",
        "pbt": "trainkit.tune.schedulers.pbt:PopulationBasedTraining",
        "pbt_replay": "trainkit.tune.schedulers.pbt:PopulationBasedTrainingReplay",
        "resource_changing": "trainkit.tune.schedulers.resource_changing_scheduler:ResourceChangingScheduler",
    },
)
"""One row for each; other packages add theirs by entry points."""


def described_scheduler(description: Mapping[str, Any]) -> TrialScheduler | None:
    """Make the scheduler of a description again; None where its class or an argument is the user's own."""
    cls = SCHEDULERS.find(description["class"])
    if cls is None or holds_opaque(description["arguments"]):
        return None
    arguments = dict(description["arguments"])
    if isinstance(arguments.get("base_scheduler"), Mapping):
        arguments["base_scheduler"] = described_scheduler(arguments["base_scheduler"])
        if arguments["base_scheduler"] is None:
            return None
    scheduler: TrialScheduler = cls(**arguments)
    return scheduler


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """Return the scheduler of this name or class name, made with those of `kwargs` that it takes.

    Raises:
        ConfigError: there is none of this name; those that there are are listed.
    """
    cls = SCHEDULERS.get(scheduler, "scheduler")
    taken = inspect.signature(cls).parameters
    made: TrialScheduler = cls(**{name: value for name, value in kwargs.items() if name in taken})
    return made
