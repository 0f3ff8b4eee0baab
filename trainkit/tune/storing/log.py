"""The log of an experiment: what its searcher and scheduler were told, entry by entry, for a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainkit.tune.placement import PlacementGroupFactory


@dataclass(frozen=True, slots=True)
class Began:
    """Entry of the log: the experiment began to run, or went on after a restore."""


@dataclass(frozen=True, slots=True)
class Suggested:
    """Entry of the log: a trial was added, with this configuration as stored."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class Report:
    """Entry of the log: a trial reported."""

    trial_id: str
    attempt: int
    iteration: int
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """Entry of the log: a trial ended, in ERROR or not; not `final` where it was gone on with."""

    trial_id: str
    error: bool
    final: bool = True


@dataclass(frozen=True, slots=True)
class Again:
    """Entry of the log: a trial that had ended runs again from here on."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class Paused:
    """Entry of the log: a trial's process has ended, and it waits for the scheduler's word."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """Entry of the log: a trial that was to be paused, or is, goes on."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class Changed:
    """Entry of the log: a trial has another configuration from here on, and perhaps the state of `donor`."""

    trial_id: str
    config: dict[str, Any]
    donor: str | None


@dataclass(frozen=True, slots=True)
class Regranted:
    """Entry of the log: a paused trial reserves something else from here on."""

    trial_id: str
    request: PlacementGroupFactory
    before: PlacementGroupFactory


@dataclass(frozen=True, slots=True)
class NoMoreTrials:
    """Entry of the log: the scheduler need not wait for further trials."""


LogEntry = Began | Suggested | Report | Ended | Again | Paused | Resumed | Changed | Regranted | NoMoreTrials
