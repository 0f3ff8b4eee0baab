"""Schedulers by name: what `scheduler="asha"` means, and which classes an experiment's file may name."""

from __future__ import annotations

import importlib
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.schedulers.base import TrialScheduler

_HOMES = {"AsyncHyperBandScheduler": "asha", "FIFOScheduler": "fifo"}
_CLASSES = {
    "fifo": "FIFOScheduler",
    "asha": "AsyncHyperBandScheduler",
    "async_hyperband": "AsyncHyperBandScheduler",
    "asynchyperband": "AsyncHyperBandScheduler",
}


def scheduler_class(name: str) -> type[TrialScheduler] | None:
    """Return the scheduler class of this name, loaded now; None if it is none of ours."""
    if name not in _HOMES:
        return None
    module = importlib.import_module(f"trainkit.tune.schedulers.{_HOMES[name]}")
    cls: type[TrialScheduler] = getattr(module, name)
    return cls


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """Return the scheduler of this name, made with `kwargs`.

    Raises:
        ConfigError: there is none of this name; those that there are are listed.
    """
    cls = scheduler_class(_CLASSES.get(scheduler.lower(), ""))
    if cls is None:
        raise ConfigError(f"scheduler={scheduler!r} is none of {', '.join(sorted(_CLASSES))}")
    return cls(**kwargs)
