"""The rungs of a scheduler: who came to each, in which order, who went on, and the cutoff.

A trial that was paused at a rung went on if it was resumed from there, whenever that was. Where trials wait
for each other, and are judged together, they are drawn as they came, with the one cutoff for all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import is_finite, load
from trainkit.tune.core.values import lookup
from trainkit.tune.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

    from trainkit.tune.results.result_grid import ResultGrid

WENT_ON = style.BEST[1]
CUTOFF = style.BEST[0]
JUDGED, CAME = "rung", "milestone"
"""Rules of decisions: a trial was judged at a rung; it has come there, and is judged later."""
WIDTH = 0.8
"""Of one rung; the distance between two is 1."""


@dataclass(frozen=True)
class Entry:
    """A trial that came to a rung; NaN for the cutoff where there was none yet."""

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
    """Draw, for each rung, the value of every trial judged there, in the order they came.

    Args:
        grid: the experiment.
        ax: to draw into.
        metric: None: the experiment's.
        mode: None: the experiment's.
        bracket: of several, the one to draw, from 0; None: the one that judged most trials.
        log_y: logarithmic values; those that have no logarithm are left out.
    """
    metric, mode = style.metric_of(grid, metric, mode)
    decisions = _judgements(grid)
    bracket, brackets = _bracket(decisions, bracket)
    rungs = _rungs(
        grid, metric, [each for each in decisions if each.get("bracket", 0) == bracket], log_y=log_y
    )
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
    style.dress(axes, title=f"rungs of {style.trials(len({each[1] for each in place}))}", x="rung", y=metric)
    if brackets > 1:
        axes.set_title(
            f"rungs of bracket {bracket}, of {brackets}", loc="left", color=style.TEXT, fontsize=11
        )
    axes.grid(False, axis="x")
    axes.set_xticks(range(len(levels)), [_label(level, rungs[level]) for level in levels])
    axes.set_xlim(-0.55, len(levels) - 0.45)
    axes.set_yscale("log" if log_y else "linear")
    ends = None if log_y else style.limit([entry.value for each in rungs.values() for entry in each], mode)
    if ends is not None:
        axes.set_ylim(*ends)
    legend = axes.legend(
        frameon=False, fontsize=9, labelcolor=style.TEXT, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    for handle in legend.legend_handles[:2]:
        cast("PathCollection", handle).set_sizes([36])  # readable, however small the points are
    return figure


def _judgements(grid: ResultGrid) -> list[dict[str, Any]]:
    decisions = [each for each in grid.decisions() if each.get("rule") in (JUDGED, CAME)]
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
    # The rung's cutoff is known once its trials have been judged.
    waits = any(math.isnan(entry.cutoff) for entries in rungs.values() for entry in entries)
    return WAITING if waits else STOPPING


def _bracket(decisions: Sequence[Mapping[str, Any]], bracket: int | None) -> tuple[int, int]:
    """Which bracket to draw, and how many brackets there are."""
    judged = (each for each in decisions if each["rule"] == JUDGED)
    counts = Counter(each.get("bracket", 0) for each in judged if each["verdict"] != "RESUME")
    if bracket is None:
        bracket = max(counts, key=lambda number: (counts[number], -number))
    elif bracket not in counts:
        raise ConfigError(f"bracket={bracket!r}: trials were judged in {', '.join(map(str, sorted(counts)))}")
    return bracket, len(counts)


def _rungs(
    grid: ResultGrid, metric: str, decisions: Sequence[Mapping[str, Any]], *, log_y: bool
) -> dict[float, list[Entry]]:
    """By level, the entries in the order they came.

    A trial is judged there at most once as it comes, and maybe once more later: when it goes on after a
    pause, or when those that it waited for have come.
    """
    values: dict[tuple[str, int], Any] = {}  # by trial and iteration
    for result, history in grid.histories():
        values |= {
            (result.trial_id, report["training_iteration"]): lookup(report, metric) for report in history
        }
    rungs: dict[float, dict[str, Entry]] = {}
    came: set[str] = set()
    for each in decisions:
        trial_id, rung = each["trial_id"], rungs.setdefault(each["rung"], {})
        went_on = each["verdict"] in ("CONTINUE", "RESUME")
        if trial_id in rung:
            entry = replace(rung[trial_id], went_on=went_on)
            if trial_id in came:  # and is judged now
                entry = replace(entry, cutoff=float(each.get("cutoff", math.nan)))
            rung[trial_id] = entry
            continue
        if each["rule"] == CAME:
            came.add(trial_id)
        value: Any = values.get((trial_id, each["iteration"]))
        if is_finite(value) and (value > 0 or not log_y):
            rung[trial_id] = Entry(trial_id, float(value), went_on, float(each.get("cutoff", math.nan)))
    if not any(rungs.values()):
        raise style.nothing_to_draw(grid, metric)
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
    # Named once for the legend; a rung at which nobody fell or passed draws an empty set.
    label = (lambda text: text) if index == 0 else (lambda text: f"_{text}")
    for went_on in (False, True):
        some = [
            (x, entry.value) for entry, x in zip(entries, across, strict=True) if entry.went_on is went_on
        ]
        xs, ys = zip(*some, strict=True) if some else ((), ())
        axes.scatter(
            xs,
            ys,
            s=size,
            color=WENT_ON if went_on else "none",
            edgecolors=WENT_ON if went_on else style.OTHERS,
            linewidths=0.0 if went_on else 1.1,
            zorder=4 if went_on else 3,
            label=label(words.went_on if went_on else words.stayed),
        )
    finite = [
        (x, entry.cutoff) for entry, x in zip(entries, across, strict=True) if math.isfinite(entry.cutoff)
    ]
    if finite:
        xs, ys = zip(*finite, strict=True)
        edges = (index - WIDTH / 2, *xs, index + WIDTH / 2)
        axes.step(
            edges,
            (ys[0], *ys, ys[-1]),
            where="mid",
            color=CUTOFF,
            linewidth=1.6,
            zorder=5,
            label=label("cutoff" if at_once else "cutoff, as it moved"),
        )
    axes.axvspan(
        index - WIDTH / 2 - 0.04,
        index + WIDTH / 2 + 0.04,
        color=style.FAINT,
        alpha=0.35,
        zorder=0,
        linewidth=0,
    )


def _draw_ways(
    axes: Axes, rungs: Mapping[float, Sequence[Entry]], place: Mapping[tuple[float, str], float]
) -> None:
    """From each rung to the next, a line for each trial; the more there are, the fainter."""
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
    alpha = min(0.35, max(0.04, 1 / math.sqrt(len(lines) or 1)))
    collection = load("matplotlib.collections", "plots", "tune").LineCollection
    axes.add_collection(collection(lines, colors=WENT_ON, linewidths=0.7, alpha=alpha, zorder=2))


def _label(level: float, entries: Sequence[Entry]) -> str:
    return f"{level:g}\n{len(entries)} came\n{sum(entry.went_on for entry in entries)} went on"
