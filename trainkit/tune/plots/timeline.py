"""The timeline: who worked when, and what became of it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import load
from trainkit.tune.plots import style
from trainkit.tune.store.records import SIMULATED, Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trainkit.tune.results.result_grid import ResultGrid

COLOURS = {
    "finished": "#3a9a6b",
    "stopped": "#b6bec6",
    "paused": "#7fb0dc",
    "failed": "#c8404f",
    "cut": "#ead9a8",
    "running": "#e08a2e",
}
"""By outcome, in the order of the legend."""


def draw(grid: ResultGrid, *, ax: Axes | None = None) -> Figure:
    """Draw every attempt as a bar: over time, in the row of its worker, coloured by what became of it.

    In a simulation a row is a worker. In an experiment of processes it is a place among those that ran at
    once, which a trial takes over from one that has ended.

    Args:
        grid: the experiment.
        ax: to draw into.
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
            # Thin lines part the attempts of a row, where there are few enough to be told apart.
            width = 0.5 if len(spans) <= 2000 else 0.0
            axes.add_collection(
                collection(
                    bars,
                    facecolors=colour,
                    edgecolors="white",
                    linewidths=width,
                    label=f"{outcome} ({len(bars)})",
                )
            )
    style.dress(axes, title=_title(spans, height), x="seconds", y="worker")
    axes.grid(visible=False)
    axes.set_xlim(0, (last - begin) or 1.0)
    axes.set_ylim(height, 0)
    ticker = load("matplotlib.ticker", "plots", "tune")
    axes.yaxis.set_major_locator(ticker.MaxNLocator("auto", integer=True))
    axes.legend(frameon=False, fontsize=9, labelcolor=style.TEXT, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def lanes(spans: Sequence[Span]) -> list[int]:
    """Return the row of each, which come in the order of their starts: no two of a row overlap."""
    rows: list[int] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []  # until when, which
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
    at_once = f"{height} worker{'s' * (height != 1)}"
    again = f", {len(spans)} attempts" if len(spans) > trials else ""
    return f"{style.trials(trials)} on {at_once}{again}"
