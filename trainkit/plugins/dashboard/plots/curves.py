"""Plots over time: learning curves, and the timeline of the workers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.plugins.dashboard.plots import style
from trainkit.tune.core.checks import is_number, load, require_whole
from trainkit.tune.core.metrics import lookup
from trainkit.tune.display import count_words
from trainkit.tune.store.reader import SIMULATED, Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trainkit.tune.results.result_grid import ResultGrid


Points = list[tuple[float, float]]


def draw_curves(
    grid: ResultGrid,
    *,
    ax: Axes | None = None,
    metric: str | None = None,
    mode: str | None = None,
    x: str = "training_iteration",
    log_x: bool = False,
    log_y: bool = False,
    best: int = 5,
) -> Figure:
    """Draw `metric` over `x` for every trial.

    Args:
        grid: the experiment.
        ax: axes to draw into; None: a new figure.
        metric: None: the experiment's.
        mode: None: the experiment's.
        x: reported value that counts effort: "training_iteration", "time_total_s", "timesteps_total", yours.
        log_x: use a logarithmic axis; values without a logarithm are left out.
        log_y: use a logarithmic axis for the metric; values without a logarithm are left out.
        best: number of trials, by their last report, that are coloured and named.
    """
    metric, mode = style.metric_of(grid, metric, mode)
    require_whole("best", best, 0)
    curves: dict[str, Points] = {}
    for result, history in grid.histories():
        if points := _points(history, x, metric, log_x=log_x, log_y=log_y):
            curves[result.trial_id] = points
    if not curves:
        raise style.nothing_to_draw(grid, metric, x)
    figure, axes = style.figure_of(ax, (8.5, 5))
    named = [each for each in style.ranked(grid, metric, mode) if each.trial_id in curves][:best]
    shown = {each.trial_id for each in named}
    _draw_others(axes, [points for trial_id, points in curves.items() if trial_id not in shown])
    for place, result in reversed(list(enumerate(named))):
        points = curves[result.trial_id]
        colour = style.BEST[place % len(style.BEST)]
        width = 2.6 if place == 0 else 1.7
        axes.plot(
            *zip(*points, strict=True),
            color=colour,
            linewidth=width,
            zorder=4,
            solid_capstyle="round",
            label=f"{result.trial_id}   {style.number(points[-1][1])}",
        )
        axes.plot(*points[-1], "o", color=colour, markersize=5, zorder=5)
    title = f"{metric} of {count_words(len(curves), 'trial')}"
    style.dress(axes, title=title, x=x.replace("_", " "), y=metric, log_x=log_x, log_y=log_y)
    if not log_x and all(across.is_integer() for points in curves.values() for across, _ in points):
        ticker = load("matplotlib.ticker", "plots", "tune")
        axes.xaxis.set_major_locator(
            ticker.MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        )
    axes.autoscale_view()
    _cut(axes, curves, mode, log_y=log_y)
    if named:
        handles, labels = axes.get_legend_handles_labels()
        above = f"best last {metric}" if len(named) > 1 else None
        style.legend(axes, handles[::-1], labels[::-1], title=above, title_fontsize=9)
    return figure


def _points(history: Sequence[Mapping[str, Any]], x: str, metric: str, *, log_x: bool, log_y: bool) -> Points:
    points = []
    for report in history:
        across, up = lookup(report, x), lookup(report, metric)
        if not (is_number(across) and is_number(up) and math.isfinite(across) and math.isfinite(up)):
            continue
        if (across > 0 or not log_x) and (up > 0 or not log_y):
            points.append((float(across), float(up)))
    return points


def _draw_others(axes: Axes, lines: Sequence[Points]) -> None:
    if not lines:
        return
    alpha = style.faint(len(lines), 3, 0.08, 0.75)
    lone = [points[0] for points in lines if len(points) == 1]
    style.draw_lines(
        axes, lines, colors=style.OTHERS, linewidths=0.9, alpha=alpha, zorder=2, capstyle="round"
    )
    ends = lone if len(lines) > 400 else [points[-1] for points in lines]
    if ends:
        points = zip(*ends, strict=True)
        axes.plot(*points, ".", color=style.OTHERS, alpha=min(1.0, alpha * 2), markersize=4, zorder=2)


def _cut(axes: Axes, curves: Mapping[str, Points], mode: str, *, log_y: bool) -> None:
    values = [up for points in curves.values() for _, up in points]
    ends = None if log_y else style.limit(values, mode)
    if ends is None:
        return
    axes.set_ylim(*ends)
    beyond = sum(not ends[0] <= value <= ends[1] for value in values)
    axes.annotate(
        f"{beyond} of {len(values)} values lie beyond",
        (0.995, 0.99 if mode == "min" else 0.01),
        xycoords="axes fraction",
        ha="right",
        va="top" if mode == "min" else "bottom",
        fontsize=8,
        color=style.TEXT,
    )


COLOURS = {
    "finished": "#3a9a6b",
    "stopped": "#b6bec6",
    "paused": "#7fb0dc",
    "failed": "#c8404f",
    "cut": "#ead9a8",
    "running": "#e08a2e",
}
"""Colours by outcome, in the order of the legend."""


def draw_timeline(grid: ResultGrid, *, ax: Axes | None = None) -> Figure:
    """Draw every attempt as a bar over time, in the row of its worker, with its outcome as the colour.

    In a simulation a row is a worker. In an experiment of processes a row is one of the concurrent slots,
    which a trial takes over when another one has ended.

    Args:
        grid: the experiment.
        ax: axes to draw into; None: a new figure.
    """
    spans = grid.timeline
    if not spans:
        raise ConfigError("there is no timeline to draw: no trial has run")
    begin = 0.0 if spans[0].place[0] == SIMULATED else spans[0].started
    ends = [span.ended for span in spans if span.ended is not None]
    last = max([span.started for span in spans] + ends)
    rows = lanes(spans)
    height = max(rows) + 1
    figure, axes = style.figure_of(ax, (9.5, min(9.0, 2.2 + 0.14 * height)))
    collection = load("matplotlib.collections", "plots", "tune").PolyCollection
    gap = 0.08 if height <= 100 else 0.0
    for outcome, colour in COLOURS.items():
        bars = []
        for span, row in zip(spans, rows, strict=True):
            if span.outcome == outcome:
                left = span.started - begin
                right = (last if span.ended is None else span.ended) - begin
                low, high = row + gap, row + 1 - gap
                bars.append([(left, low), (left, high), (right, high), (right, low)])
        if bars:
            # Thin lines separate the attempts of a row, unless they are too many to distinguish.
            width = 0.5 if len(spans) <= 2000 else 0.0
            label = f"{outcome} ({len(bars)})"
            axes.add_collection(
                collection(bars, facecolors=colour, edgecolors="white", linewidths=width, label=label)
            )
    style.dress(axes, title=_title(spans, height), x="seconds", y="worker")
    axes.grid(visible=False)
    axes.set_xlim(0, (last - begin) or 1.0)
    axes.set_ylim(height, 0)
    ticker = load("matplotlib.ticker", "plots", "tune")
    axes.yaxis.set_major_locator(ticker.MaxNLocator("auto", integer=True))
    style.legend(axes)
    return figure


def lanes(spans: Sequence[Span]) -> list[int]:
    """Return a row for each span, such that rows don't overlap; spans come in the order of their starts."""
    rows: list[int] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []  # pairs of end and row
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


def _title(spans: Sequence[Span], height: int) -> str:
    trials = len({span.trial_id for span in spans})
    again = f", {len(spans)} attempts" if len(spans) > trials else ""
    return f"{count_words(trials, 'trial')} on {count_words(height, 'worker')}{again}"
