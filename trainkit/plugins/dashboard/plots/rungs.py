"""The rungs of a scheduler: the trials that reached each, in order, which of them went on, and the cutoff.

A trial that was paused at a rung went on if it was resumed from there at any time. If trials wait for each
other and are judged together, they are drawn in the order of arrival, with one cutoff for all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from trainkit.errors import ConfigError
from trainkit.plugins.dashboard.plots import style
from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.metrics import lookup
from trainkit.tune.display import count_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

    from trainkit.tune.results.result_grid import ResultGrid

WENT_ON = style.BEST[1]
CUTOFF = style.BEST[0]
JUDGED, CAME = "rung", "milestone"
"""Rules of decisions: a trial was judged at a rung; a trial has reached a rung, and is judged later."""
WIDTH = 0.8
"""Width of one rung; the distance between two rungs is 1."""


@dataclass(frozen=True)
class Entry:
    """A trial at a rung; `cutoff` is NaN if the rung had none yet."""

    trial_id: str
    value: float
    went_on: bool
    cutoff: float


@dataclass(frozen=True)
class RungLabels:
    """Legend of a rung: labels of the trials that left it, and of the others."""

    went_on: str
    stayed: str


STOPPING = RungLabels("went on", "stopped")
PROMOTION = RungLabels("promoted", "not promoted")
WAITING = RungLabels("went on", "stopped, or still waiting")


def draw_rungs(
    grid: ResultGrid,
    *,
    ax: Axes | None = None,
    metric: str | None = None,
    mode: str | None = None,
    bracket: int | None = None,
    log_y: bool = False,
) -> Figure:
    """Draw, for each rung, the value of every trial judged there, in the order of arrival.

    Args:
        grid: the experiment.
        ax: axes to draw into; None: a new figure.
        metric: None: the experiment's.
        mode: None: the experiment's.
        bracket: number of the bracket to draw, from 0; None: the bracket that judged most trials.
        log_y: use a logarithmic axis; values without a logarithm are left out.
    """
    metric, mode = style.metric_of(grid, metric, mode)
    decisions = judgements(grid.decisions())
    bracket, brackets = bracket_of(decisions, bracket)
    values = {
        (result.trial_id, report["training_iteration"]): lookup(report, metric)
        for result, history in grid.histories()
        for report in history
    }
    chosen = [each for each in decisions if each.get("bracket", 0) == bracket]
    rungs = rungs_of(chosen, values, log_y=log_y)
    if not rungs:
        raise style.nothing_to_draw(grid, metric)
    words = _words(decisions, rungs)
    figure, axes = style.figure_of(ax, (8.5, 5))
    levels = sorted(rungs)
    place: dict[tuple[float, str], float] = {}
    for index, level in enumerate(levels):
        entries = rungs[level]
        across = [index + WIDTH * ((n + 0.5) / len(entries) - 0.5) for n in range(len(entries))]
        place |= {(level, entry.trial_id): x for entry, x in zip(entries, across, strict=True)}
        _draw_rung(axes, index, entries, across, words, at_once=_at_once(decisions))
    _draw_ways(axes, rungs, place)
    trials = len({trial_id for _, trial_id in place})
    of = count_words(trials, "trial") if brackets == 1 else f"bracket {bracket}, of {brackets}"
    style.dress(axes, title=f"rungs of {of}", x="rung", y=metric, log_y=log_y)
    axes.grid(False, axis="x")
    labels = [
        f"{level:g}\n{len(rungs[level])} came\n{sum(entry.went_on for entry in rungs[level])} went on"
        for level in levels
    ]
    axes.set_xticks(range(len(levels)), labels)
    axes.set_xlim(-0.55, len(levels) - 0.45)
    ends = None if log_y else style.limit([entry.value for each in rungs.values() for entry in each], mode)
    if ends is not None:
        axes.set_ylim(*ends)
    for handle in style.legend(axes).legend_handles[:2]:
        cast("PathCollection", handle).set_sizes([36])  # readable even if the points are small
    return figure


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


def _at_once(decisions: Sequence[Mapping[str, Any]]) -> bool:
    """True if trials wait at a rung until they are judged together."""
    return any(each["rule"] == CAME for each in decisions)


def _words(decisions: Sequence[Mapping[str, Any]], rungs: Mapping[float, Sequence[Entry]]) -> RungLabels:
    if not _at_once(decisions):
        return PROMOTION if any(each["verdict"] == "PAUSE" for each in decisions) else STOPPING
    # A rung has a cutoff only once its trials have been judged.
    waits = any(math.isnan(entry.cutoff) for entries in rungs.values() for entry in entries)
    return WAITING if waits else STOPPING


def bracket_of(decisions: Sequence[Mapping[str, Any]], bracket: int | None) -> tuple[int, int]:
    """Return the bracket to draw, by default the one with most trials, and the number of brackets.

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
    """Return entries by level, in the order of arrival; entries without a finite value are left out.

    A rung judges a trial at most once on arrival. A second decision may follow: when the trial resumes after
    a pause, or when the trials that it waited for have arrived.

    Args:
        decisions: decisions of one bracket, made at rungs.
        values: of the metric, by trial and iteration.
        log_y: True leaves out values without a logarithm.
    """
    rungs: dict[float, dict[str, Entry]] = {}
    came: set[str] = set()
    for each in decisions:
        trial_id, rung = each["trial_id"], rungs.setdefault(each["rung"], {})
        went_on = each["verdict"] in ("CONTINUE", "RESUME")
        if trial_id in rung:
            entry = replace(rung[trial_id], went_on=went_on)
            if trial_id in came:  # it waited, and is judged now
                entry = replace(entry, cutoff=float(each.get("cutoff", math.nan)))
            rung[trial_id] = entry
            continue
        if each["rule"] == CAME:
            came.add(trial_id)
        value: Any = values.get((trial_id, each["iteration"]))
        if is_finite(value) and (value > 0 or not log_y):
            rung[trial_id] = Entry(trial_id, float(value), went_on, float(each.get("cutoff", math.nan)))
    return {level: list(entries.values()) for level, entries in rungs.items() if entries}


def _draw_rung(
    axes: Axes,
    index: int,
    entries: Sequence[Entry],
    across: Sequence[float],
    words: RungLabels,
    *,
    at_once: bool,
) -> None:
    size = max(8.0, 46 - 0.25 * len(entries))
    # Named once for the legend; a rung where every trial, or no trial, went on draws an empty set too.
    label = (lambda text: text) if index == 0 else (lambda text: f"_{text}")
    for went_on in (False, True):
        some = [
            (x, entry.value) for entry, x in zip(entries, across, strict=True) if entry.went_on is went_on
        ]
        xs, ys = zip(*some, strict=True) if some else ((), ())
        name = label(words.went_on if went_on else words.stayed)
        looks: dict[str, Any] = {"color": WENT_ON, "linewidths": 0.0, "zorder": 4}
        if not went_on:
            looks = {"color": "none", "edgecolors": style.OTHERS, "linewidths": 1.1, "zorder": 3}
        axes.scatter(xs, ys, s=size, label=name, **looks)
    finite = [
        (x, entry.cutoff) for entry, x in zip(entries, across, strict=True) if math.isfinite(entry.cutoff)
    ]
    if finite:
        xs, ys = zip(*finite, strict=True)
        edges, cutoffs = (index - WIDTH / 2, *xs, index + WIDTH / 2), (ys[0], *ys, ys[-1])
        name = label("cutoff" if at_once else "cutoff, as it moved")
        axes.step(edges, cutoffs, where="mid", color=CUTOFF, linewidth=1.6, zorder=5, label=name)
    left, right = index - WIDTH / 2 - 0.04, index + WIDTH / 2 + 0.04
    axes.axvspan(left, right, color=style.FAINT, alpha=0.35, zorder=0, linewidth=0)


def _draw_ways(
    axes: Axes, rungs: Mapping[float, Sequence[Entry]], place: Mapping[tuple[float, str], float]
) -> None:
    """Draw a line for each trial from each rung to the next."""
    levels = sorted(rungs)
    lines = []
    for below, level in pairwise(levels):
        before = {entry.trial_id: entry for entry in rungs[below]}
        lines += [
            [
                (place[below, entry.trial_id], before[entry.trial_id].value),
                (place[level, entry.trial_id], entry.value),
            ]
            for entry in rungs[level]
            if entry.trial_id in before
        ]
    alpha = style.faint(len(lines), 1, 0.04, 0.35)
    style.draw_lines(axes, lines, colors=WENT_ON, linewidths=0.7, alpha=alpha, zorder=2)
