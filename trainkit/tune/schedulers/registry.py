"""Schedulers by name, and the reconstruction of schedulers from an experiment's file."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from trainkit.errors import ConfigError, did_you_mean
from trainkit.registry import Registry
from trainkit.tune.core.checks import taken
from trainkit.tune.core.log import logger
from trainkit.tune.schedulers.base import TrialScheduler
from trainkit.tune.space.serialization import made_again

SCHEDULERS = Registry(
    "scheduler",
    {
        "asha": "trainkit.tune.schedulers.async_hyperband:ASHAScheduler",
        "async_hyperband": "trainkit.tune.schedulers.async_hyperband:AsyncHyperBandScheduler",
        "asynchyperband": "trainkit.tune.schedulers.async_hyperband:AsyncHyperBandScheduler",
        "fifo": "trainkit.tune.schedulers.base:FIFOScheduler",
        "hb_bohb": "trainkit.tune.schedulers.hyperband:HyperBandForBOHB",
        "hyperband": "trainkit.tune.schedulers.hyperband:HyperBandScheduler",
        "pbt": "trainkit.tune.schedulers.pbt:PopulationBasedTraining",
        "pbt_replay": "trainkit.tune.schedulers.pbt:PopulationBasedTrainingReplay",
    },
    base="trainkit.tune.schedulers.base:TrialScheduler",
)
"""Import path of each scheduler by name; other packages add schedulers by entry points."""


def load_words(description: Mapping[str, Any] | None) -> None:
    """Import a stored scheduler's class and its base scheduler's class, which register texts of reasons."""
    if description is not None:
        SCHEDULERS.find(description["class"])
        arguments = description["arguments"]
        arguments = arguments if isinstance(arguments, Mapping) else {}
        load_words(arguments.get("base_scheduler"))
        if arguments.get("grace_period") == "learned":
            SCHEDULERS.find("auto")


def described_scheduler(description: Mapping[str, Any]) -> TrialScheduler | None:
    """Recreate a scheduler from its stored description; None if the user defined its class or an argument."""
    scheduler: TrialScheduler | None = made_again(SCHEDULERS, description, inner="base_scheduler")
    return scheduler


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """Return a scheduler by its name or class name, made with the arguments of `kwargs` that the scheduler
    accepts.

    Arguments that only other schedulers accept are ignored, as in Ray. An argument that no scheduler accepts
    is logged.

    Raises:
        ConfigError: the name is unknown (the message lists the known names), or an argument that no
            scheduler accepts is probably a misspelling.
    """
    cls = SCHEDULERS.get(scheduler, "scheduler")
    arguments = taken(cls, kwargs)
    if len(arguments) < len(kwargs):
        _complain_of(kwargs.keys() - arguments.keys(), cls)
    made: TrialScheduler = cls(**arguments)
    return made


def _complain_of(left_out: Iterable[str], cls: type) -> None:
    """Log arguments that no scheduler accepts; raise ConfigError if one resembles an argument of `cls`."""
    shipped = [SCHEDULERS.get(name) for name in SCHEDULERS.own_names()]
    known = {name for each in shipped for name in inspect.signature(each).parameters}
    for name in sorted(set(left_out) - known):
        problem = f"{cls.__name__} has no argument {name!r}, nor has any other scheduler"
        if hint := did_you_mean(name, inspect.signature(cls).parameters):
            raise ConfigError(f"{problem}.{hint}")
        logger.warning("%s: the argument is ignored", problem)
