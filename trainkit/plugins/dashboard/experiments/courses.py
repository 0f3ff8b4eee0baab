"""Trials over time, for charts: arrivals at rungs, paths of a population, rows of a timeline."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.lineage import Exchange, Stretch, ages
from trainkit.tune.core.metrics import lookup
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.store.reader import SIMULATED, Span

JUDGED, CAME = "rung", "milestone"
"""Rules of decisions: a trial was judged at a rung; a trial reached a rung, and will be judged later."""


@dataclass(frozen=True)
class Entry:
    """A trial at a rung; `cutoff` is NaN if the rung had no cutoff yet."""

    trial_id: str
    value: float
    went_on: bool
    cutoff: float


@dataclass(frozen=True)
class RungLabels:
    """Legend of rungs: labels of trials that continued, of trials that did not, and of the cutoff."""

    went_on: str = "went on"
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
            "there are no rungs to draw: no scheduler has judged a trial at one. They come from "
            "TuneConfig(scheduler=ASHAScheduler(...)), once a trial has reached its grace_period"
        )
    return decisions


def labels_of(decisions: Sequence[Mapping[str, Any]], rungs: Mapping[float, Sequence[Entry]]) -> RungLabels:
    """Return the legend for a scheduler, derived from its decisions."""
    # No rung waits for trials, so each trial is judged when it arrives.
    if all(each["rule"] != CAME for each in decisions):
        if any(each["verdict"] == "PAUSE" for each in decisions):
            return RungLabels("promoted", "not promoted", "cutoff, as it moved")
        return RungLabels(cutoff="cutoff, as it moved")
    # A rung has a cutoff only once its trials have been judged together, so NaN means that they still wait.
    waits = any(math.isnan(entry.cutoff) for entries in rungs.values() for entry in entries)
    return RungLabels(stayed="stopped, or still waiting") if waits else RungLabels()


def bracket_of(decisions: Sequence[Mapping[str, Any]], bracket: int | None) -> tuple[int, int]:
    """Return the bracket to draw, by default the one with the most trials, and the number of brackets.

    Raises:
        ConfigError: no trial was judged in that bracket.
    """
    judged = (each for each in decisions if each["rule"] == JUDGED)
    counts = Counter(each.get("bracket", 0) for each in judged if each["verdict"] != "RESUME")
    if bracket is None:
        bracket = max(counts, key=lambda number: (counts[number], -number))
    elif bracket not in counts:
        raise ConfigError(f"bracket={bracket!r}: trials were judged in {', '.join(map(str, sorted(counts)))}")
    return bracket, len(counts)


def rungs_of(
    decisions: Sequence[Mapping[str, Any]], values: Mapping[tuple[str, int], Any], *, log_y: bool = False
) -> dict[float, list[Entry]]:
    """Return entries by rung level, in the order of arrival, without entries whose value is not finite.

    A rung judges a trial at most once on arrival. A second decision may follow: when the trial resumes after
    a pause, or when the trials that it waited for have arrived.

    Args:
        decisions: decisions of one bracket, made at rungs.
        values: values of the metric, by trial and iteration.
        log_y: True: leave out values that have no logarithm.
    """
    rungs: dict[float, dict[str, Entry]] = {}
    came: set[str] = set()
    for each in decisions:
        trial_id, rung = each["trial_id"], rungs.setdefault(each["rung"], {})
        went_on = each["verdict"] in ("CONTINUE", "RESUME")
        if trial_id in rung:
            entry = replace(rung[trial_id], went_on=went_on)
            if trial_id in came:  # the trial has waited, and is judged now
                entry = replace(entry, cutoff=float(each.get("cutoff", math.nan)))
            rung[trial_id] = entry
            continue
        if each["rule"] == CAME:
            came.add(trial_id)
        value: Any = values.get((trial_id, each["iteration"]))
        if is_finite(value) and (value > 0 or not log_y):
            rung[trial_id] = Entry(trial_id, float(value), went_on, float(each.get("cutoff", math.nan)))
    return {level: list(entries.values()) for level, entries in rungs.items() if entries}


Way = Mapping[int, tuple[int, float]]
"""Path of a trial, by iteration: number of reports in its weights' history, and the reported value."""


def ways_of(
    grid: ResultGrid,
    metric: str,
    hyperparameter: str | None,
    exchanges: Sequence[Exchange],
    *,
    log_y: bool,
) -> dict[str, dict[int, tuple[int, float]]]:
    """Return the reports with a finite value, by trial and iteration."""
    ways: dict[str, dict[int, tuple[int, float]]] = {}
    age = ages(exchanges)
    for result, history in grid.histories():
        way = ways.setdefault(result.trial_id, {})
        for report in history:
            value: Any = (
                lookup(report["config"], hyperparameter) if hyperparameter else lookup(report, metric)
            )
            if is_finite(value) and (value > 0 or not log_y):
                iteration = report["training_iteration"]
                way[iteration] = age(result.trial_id, iteration), float(value)
    return ways


def pieces_of(way: Way, cuts: Sequence[int]) -> list[list[tuple[int, float]]]:
    """Return the points of a path, cut at each takeover so that no line crosses it."""
    pieces: list[list[tuple[int, float]]] = [[]]
    left = sorted(cuts)
    for iteration in sorted(way):
        while left and iteration > left[0]:
            left.pop(0)
            pieces.append([])
        pieces[-1].append(way[iteration])
    return [piece for piece in pieces if piece]


def takeovers_of(ways: Mapping[str, Way], exchanges: Sequence[Exchange]) -> list[list[tuple[int, float]]]:
    """Return a line for each exploit, from the donor's report to the first report with the donor's state."""
    lines = []
    for each in exchanges:
        donor, member = ways.get(each.donor or "", {}), ways.get(each.trial_id, {})
        since, after = each.donor_iteration or 0, each.iteration + 1
        if since in donor and after in member:
            lines.append([donor[since], member[after]])
    return lines


def winner_of(ways: Mapping[str, Way], stretches: Sequence[Stretch]) -> list[tuple[int, float]]:
    """Return the points of the training that led to a trial's weights."""
    return [
        point
        for stretch in stretches
        for iteration, point in sorted(ways.get(stretch.trial_id, {}).items())
        if stretch.first < iteration <= stretch.last
    ]


def lanes(spans: Sequence[Span]) -> list[int]:
    """Return a row for each span, so that spans in a row don't overlap; spans are in the order of starts.

    In a simulation a row is a worker. In a real experiment a row is one of the concurrent slots; when a trial
    ends, the next trial takes its slot.
    """
    rows: list[int] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []  # each pair has an end and a row
    for span in spans:
        if span.place[0] == SIMULATED:
            rows.append(span.place[1])
            continue
        while busy and busy[0][0] <= span.started:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (float("inf") if span.ended is None else span.ended, row))
        rows.append(row)
    return rows
