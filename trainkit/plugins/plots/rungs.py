"""Trials that reached the rungs of a scheduler, for charts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import is_finite

JUDGED, CAME = "rung", "milestone"
"""Names of the scheduler's rules: "rung": a trial was judged; "milestone": a trial arrived and is judged
later."""


@dataclass(frozen=True)
class Entry:
    """Arrival of a trial at a rung; `cutoff` is NaN if the rung has no cutoff yet."""

    trial_id: str
    value: float
    went_on: bool
    cutoff: float


@dataclass(frozen=True)
class RungLabels:
    """Legend of the chart of rungs: labels of trials that continued, of other trials, and of the cutoff."""

    went_on: str = "continued"
    stayed: str = "stopped"
    cutoff: str = "cutoff"


def judgements(decisions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the decisions that were made at rungs.

    Raises:
        ConfigError: no decision was made at a rung.
    """
    decisions = [each for each in decisions if each.get("rule") in (JUDGED, CAME)]
    if not any(each["rule"] == JUDGED for each in decisions):
        raise ConfigError(
            "the experiment has no rungs to draw: no scheduler has judged a trial at a rung. Set "
            "TuneConfig(scheduler=ASHAScheduler(...)); its first rung is at grace_period"
        )
    return decisions


def labels_of(decisions: Sequence[Mapping[str, Any]], rungs: Mapping[float, Sequence[Entry]]) -> RungLabels:
    """Return the legend that matches the scheduler's decisions."""
    # No decision lets a trial wait at a rung, so each trial is judged when it arrives.
    if all(each["rule"] != CAME for each in decisions):
        if any(each["verdict"] == "PAUSE" for each in decisions):
            return RungLabels("promoted", "not promoted", "cutoff over time")
        return RungLabels(cutoff="cutoff over time")
    # A rung gets its cutoff when its trials are judged together, so NaN means that trials are waiting.
    waits = any(math.isnan(entry.cutoff) for entries in rungs.values() for entry in entries)
    return RungLabels(stayed="stopped or waiting") if waits else RungLabels()


def bracket_of(decisions: Sequence[Mapping[str, Any]], bracket: int | None) -> tuple[int, int]:
    """Return the number of the bracket to draw (default: the bracket with the most trials) and the number of
    brackets.

    Raises:
        ConfigError: no trial was judged in the bracket `bracket`.
    """
    judged = (each for each in decisions if each["rule"] == JUDGED)
    counts = Counter(each.get("bracket", 0) for each in judged if each["verdict"] != "RESUME")
    if bracket is None:
        bracket = max(counts, key=lambda number: (counts[number], -number))
    elif bracket not in counts:
        raise ConfigError(
            f"bracket {bracket!r} has no judged trials: choose from {', '.join(map(str, sorted(counts)))}"
        )
    return bracket, len(counts)


def rungs_of(
    decisions: Sequence[Mapping[str, Any]], values: Mapping[tuple[str, int], Any], *, log_y: bool = False
) -> dict[float, list[Entry]]:
    """Return the arrivals at each rung in the order of time; arrivals whose value is not finite are left out.

    A rung decides about a trial when the trial arrives. The rung decides a second time when the trial resumes
    after a pause, or when the trials for which it waited have arrived.

    Args:
        decisions: decisions of one bracket, made at its rungs.
        values: values of the metric, by trial id and iteration.
        log_y: True: leave out values that have no logarithm.
    """
    rungs: dict[float, dict[str, Entry]] = {}
    came: set[str] = set()
    for each in decisions:
        trial_id, rung = each["trial_id"], rungs.setdefault(each["rung"], {})
        went_on = each["verdict"] in ("CONTINUE", "RESUME")
        if trial_id in rung:
            entry = replace(rung[trial_id], went_on=went_on)
            if trial_id in came:  # The trial waited for other trials, and the cutoff is known only now.
                entry = replace(entry, cutoff=float(each.get("cutoff", math.nan)))
            rung[trial_id] = entry
            continue
        if each["rule"] == CAME:
            came.add(trial_id)
        value: Any = values.get((trial_id, each["iteration"]))
        if is_finite(value) and (value > 0 or not log_y):
            rung[trial_id] = Entry(trial_id, float(value), went_on, float(each.get("cutoff", math.nan)))
    return {level: list(entries.values()) for level, entries in rungs.items() if entries}
