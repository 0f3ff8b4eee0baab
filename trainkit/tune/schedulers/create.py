"""Schedulers by name: what `scheduler="asha"` means, and which classes an experiment's file may name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from trainkit.errors import ConfigError, did_you_mean
from trainkit.tune.schedulers.base import TrialScheduler
from trainkit.tune.values import holds_opaque

_HOMES = {
    "ASHAScheduler": "trainkit.tune.schedulers.async_hyperband",
    "AsyncHyperBandScheduler": "trainkit.tune.schedulers.async_hyperband",
    "FIFOScheduler": "trainkit.tune.schedulers.fifo",
    "HyperBandForBOHB": "trainkit.tune.schedulers.hb_bohb",
    "HyperBandScheduler": "trainkit.tune.schedulers.hyperband",
    "MedianStoppingRule": "trainkit.tune.schedulers.median_stopping_rule",
    "PB2": "trainkit.tune.schedulers.pb2",
    "ParetoScheduler": "trainkit.tune.schedulers.pareto",
    "PopulationBasedTraining": "trainkit.tune.schedulers.pbt",
    "PopulationBasedTrainingReplay": "trainkit.tune.schedulers.pbt",
    "ResourceChangingScheduler": "trainkit.tune.schedulers.resource_changing_scheduler",
}
_CLASSES = {
    "asha": "ASHAScheduler",
    "async_hyperband": "ASHAScheduler",
    "asynchyperband": "ASHAScheduler",
    "fifo": "FIFOScheduler",
    "hb_bohb": "HyperBandForBOHB",
    "hyperband": "HyperBandScheduler",
    "median": "MedianStoppingRule",
    "median_stopping_rule": "MedianStoppingRule",
    "medianstopping": "MedianStoppingRule",
    "pareto": "ParetoScheduler",
    "pb2": "PB2",
    "pbt": "PopulationBasedTraining",
    "pbt_replay": "PopulationBasedTrainingReplay",
    "resource_changing": "ResourceChangingScheduler",
}

SCHEDULERS = tuple(sorted(_CLASSES))
"""Short names, as `create_scheduler` takes them."""


def scheduler_class(name: str) -> type[TrialScheduler] | None:
    """Return the scheduler class of this name, loaded now; None if it is none of ours."""
    if name not in _HOMES:
        return None
    cls: type[TrialScheduler] = getattr(importlib.import_module(_HOMES[name]), name)
    return cls


def named_scheduler_class(name: str) -> type[TrialScheduler] | None:
    """Return the scheduler class of this short name or class name; None if it is none of ours."""
    return scheduler_class(_CLASSES.get(str(name).lower(), str(name)))


def described_scheduler(description: Mapping[str, Any]) -> TrialScheduler | None:
    """Make the scheduler of a description again; None where its class or an argument is the user's own."""
    cls = scheduler_class(description["class"])
    if cls is None or holds_opaque(description["arguments"]):
        return None
    return cls(**description["arguments"])


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """Return the scheduler of this name or class name, made with those of `kwargs` that it takes.

    Raises:
        ConfigError: there is none of this name; those that there are are listed.
    """
    cls = named_scheduler_class(scheduler)
    if cls is None:
        hint = did_you_mean(str(scheduler), (*SCHEDULERS, *_HOMES))
        raise ConfigError(f"scheduler={scheduler!r} is none of {', '.join(SCHEDULERS)}.{hint}")
    taken = inspect.signature(cls).parameters
    return cls(**{name: value for name, value in kwargs.items() if name in taken})
