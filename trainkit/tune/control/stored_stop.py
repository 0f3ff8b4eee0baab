"""RunConfig(stop=...) as text for the experiment's file, and back: built-in stoppers are made again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from trainkit.tune import stoppers
from trainkit.tune.config import StopRule
from trainkit.tune.stoppers import CombinedStopper, Stopper

_KNOWN: dict[str, type[Stopper]] = {
    cls.__name__: cls
    for cls in (
        stoppers.MaximumIterationStopper,
        stoppers.TrialPlateauStopper,
        stoppers.ExperimentPlateauStopper,
        stoppers.TimeoutStopper,
        stoppers.FunctionStopper,
    )
}
_STOPPER, _SEVERAL = "$stopper", "$several"


def describe_stop(rule: StopRule | None) -> Any:
    """Return `rule` as dictionaries and lists; a function, or a stopper of the user's own, as it is."""
    if isinstance(rule, (list, tuple)):
        return {_SEVERAL: [describe_stop(each) for each in rule]}
    if isinstance(rule, Mapping):
        return dict(rule)
    if type(rule) is CombinedStopper:
        return {_STOPPER: ["CombinedStopper", [describe_stop(each) for each in rule.stoppers]]}
    if type(rule) in _KNOWN.values():
        # Each keeps its arguments as attributes of the same names.
        return {_STOPPER: [type(rule).__name__, {name: getattr(rule, name) for name in _names(type(rule))}]}
    return rule


def stop_of(described: Any) -> Any:
    """The reverse, for what holds nothing opaque."""
    match described:
        case {"$several": [*rules]}:
            return [stop_of(each) for each in rules]
        case {"$stopper": ["CombinedStopper", [*inner]]}:
            return CombinedStopper(*map(stop_of, inner))
        case {"$stopper": [str(name), dict(arguments)]}:
            return _KNOWN[name](**arguments)
    return described


def _names(cls: type) -> list[str]:
    return list(inspect.signature(cls).parameters)
