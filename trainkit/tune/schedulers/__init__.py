"""Schedulers: which trials continue, pause or stop."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainkit.lazy import lazily
from trainkit.registry import Registry
from trainkit.tune.space.encoding import holds_opaque

if TYPE_CHECKING:
    from trainkit.tune.schedulers.async_hyperband import ASHAScheduler as ASHAScheduler
    from trainkit.tune.schedulers.async_hyperband import AsyncHyperBandScheduler as AsyncHyperBandScheduler
    from trainkit.tune.schedulers.base import Decision as Decision
    from trainkit.tune.schedulers.base import Donor as Donor
    from trainkit.tune.schedulers.base import FIFOScheduler as FIFOScheduler
    from trainkit.tune.schedulers.base import TrialScheduler as TrialScheduler
    from trainkit.tune.schedulers.base import Verdict as Verdict
    from trainkit.tune.schedulers.hyperband import HyperBandForBOHB as HyperBandForBOHB
    from trainkit.tune.schedulers.hyperband import HyperBandScheduler as HyperBandScheduler
    from trainkit.tune.schedulers.median_stopping_rule import MedianStoppingRule as MedianStoppingRule
    from trainkit.tune.schedulers.pareto import ParetoScheduler as ParetoScheduler
    from trainkit.tune.schedulers.pb2 import PB2 as PB2
    from trainkit.tune.schedulers.pbt import PopulationBasedTraining as PopulationBasedTraining
    from trainkit.tune.schedulers.pbt import PopulationBasedTrainingReplay as PopulationBasedTrainingReplay
    from trainkit.tune.schedulers.resource_changing_scheduler import (
        ResourceChangingScheduler as ResourceChangingScheduler,
    )


SCHEDULERS = Registry(
    "scheduler",
    {
        "asha": "trainkit.tune.schedulers.async_hyperband:ASHAScheduler",
        "async_hyperband": "trainkit.tune.schedulers.async_hyperband:AsyncHyperBandScheduler",
        "asynchyperband": "trainkit.tune.schedulers.async_hyperband:AsyncHyperBandScheduler",
        "fifo": "trainkit.tune.schedulers.base:FIFOScheduler",
        "hb_bohb": "trainkit.tune.schedulers.hyperband:HyperBandForBOHB",
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


def load_words(description: Mapping[str, Any] | None) -> None:
    """Load the scheduler of a description, and that inside it, so that their decisions have words."""
    if description is not None:
        SCHEDULERS.find(description["class"])
        arguments = description["arguments"]
        load_words(arguments.get("base_scheduler") if isinstance(arguments, Mapping) else None)


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


__getattr__, __dir__ = lazily(
    __name__,
    SCHEDULERS.homes
    | dict.fromkeys(("Decision", "Donor", "TrialScheduler", "Verdict"), "trainkit.tune.schedulers.base")
    | {"create_scheduler": "trainkit.tune.schedulers"},
)
__all__ = __dir__()
