"""Plots of configurations and objectives: parallel coordinates, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.plugins.dashboard.plots import style
from trainkit.tune.core.checks import is_finite, load
from trainkit.tune.core.metrics import lookup
from trainkit.tune.display import count_words, shortened
from trainkit.tune.results.hyperparameters import Hyperparameter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trainkit.tune.results.result_grid import ResultGrid


INACTIVE = -0.12
"""Height at which a trial crosses the axis of a missing hyperparameter; axes reach from 0 to 1."""
MAX_CHOICES = 12
"""Number of ticks on an axis with listed values; longer lists name only some values."""


WIDTH = 18
"""Characters per line of an axis's name."""


@dataclass(frozen=True)
class Scale:
    """One axis: its name, the positions of values on it from 0 to 1, and its ticks."""

    name: str
    places: dict[int, float]
    ticks: list[tuple[float, str]]


def draw_parallel(
    grid: ResultGrid,
    *,
    ax: Axes | None = None,
    metric: str | None = None,
    mode: str | None = None,
    params: Sequence[str] | None = None,
    log_metric: bool = False,
    best: int = 5,
) -> Figure:
    """Draw the configuration of every trial, coloured by its last `metric`.

    Args:
        grid: the experiment.
        ax: axes to draw into; None: a new figure.
        metric: None: the experiment's.
        mode: None: the experiment's.
        params: names such as "optimizer/lr", in this order; None: all that vary.
        log_metric: use a logarithmic axis for the metric.
        best: number of trials that are highlighted.
    """
    metric, mode = style.metric_of(grid, metric, mode)
    results = style.ranked(grid, metric, mode)
    if log_metric:
        results = [result for result in results if lookup(result.metrics, metric) > 0]
    if not results:
        raise style.nothing_to_draw(grid, metric)
    parameters = _chosen(grid.hyperparameters(results), params)
    values = [float(lookup(result.metrics, metric)) for result in results]
    scales = [*map(_scale, parameters), _metric_scale(metric, values, mode, log=log_metric)]
    figure, axes = style.figure_of(ax, (max(6.0, 2.0 + 1.45 * len(scales)), 5))
    _draw_lines(axes, scales, len(results), best)
    _draw_axes(axes, scales)
    style.dress(axes, title=f"{count_words(len(results), 'trial')} by last {metric}, the best on top")
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.set_xticks(range(len(scales)), ["\n".join(wrap(scale.name, WIDTH)) for scale in scales])
    axes.set_xlim(-0.3, len(scales) - 0.6)
    complete = all(len(scale.places) == len(results) for scale in scales)
    axes.set_ylim(-0.04 if complete else INACTIVE - 0.04, 1.04)
    return figure


def _chosen(parameters: Sequence[Hyperparameter], names: Sequence[str] | None) -> list[Hyperparameter]:
    by_name = {parameter.name: parameter for parameter in parameters}
    unknown = [name for name in names or () if name not in by_name]
    if unknown or not by_name:
        raise ConfigError(
            f"params={list(names or ())!r}: the hyperparameters that vary are {', '.join(by_name) or 'none'}"
        )
    return [by_name[name] for name in names] if names is not None else list(parameters)


def _scale(parameter: Hyperparameter) -> Scale:
    if not parameter.is_numeric:
        choices = parameter.choices
        at = {repr(choice): (n + 0.5) / len(choices) for n, choice in enumerate(choices)}
        step = math.ceil(len(choices) / MAX_CHOICES)
        ticks = [(at[repr(choice)], shortened(str(choice), WIDTH)) for choice in choices[::step]]
        places = {place: at[repr(value)] for place, value in parameter.values.items()}
    else:
        low, high = parameter.bounds
        places = {
            place: share_between(value, low, high, log=parameter.is_log)
            for place, value in parameter.values.items()
        }
        ticks = _ticks(low, high, log=parameter.is_log, whole=parameter.is_whole)
    return Scale(parameter.name, places, ticks)


def _metric_scale(metric: str, values: Sequence[float], mode: str, *, log: bool) -> Scale:
    """Return the metric's axis; outliers at the worse side go to its end, so that the rest is readable."""
    ends = None if log else style.limit(values, mode)
    low, high = ends or (min(values), max(values))
    inside = [min(max(value, low), high) for value in values]
    low, high = min(inside), max(inside)
    places = {place: share_between(value, low, high, log=log) for place, value in enumerate(inside)}
    ticks = _ticks(low, high, log=log, whole=False)
    if ends is not None:
        wild, sign = (
            (1.0, "\N{GREATER-THAN OR EQUAL TO}") if mode == "min" else (0.0, "\N{LESS-THAN OR EQUAL TO}")
        )
        ticks = [tick for tick in ticks if abs(tick[0] - wild) > 0.05]
        ticks.append((wild, f"{sign} {style.number(high if mode == 'min' else low)}"))
    return Scale(metric, places, ticks)


def share_between(value: float, low: float, high: float, *, log: bool) -> float:
    """Return the position of `value` from `low` (0) to `high` (1), optionally on a logarithmic axis."""
    if low == high:
        return 0.5
    if log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)


def _ticks(low: float, high: float, *, log: bool, whole: bool) -> list[tuple[float, str]]:
    ticker = load("matplotlib.ticker", "plots", "tune")
    if low == high:
        return [(0.5, style.number(low))]
    locator = ticker.LogLocator(numticks=6) if log else ticker.MaxNLocator(5, integer=whole)
    inside = [float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high]
    if len(inside) < 2:
        inside = [low, high]
    return [(share_between(tick, low, high, log=log), style.number(tick)) for tick in inside]


def _draw_lines(axes: Axes, scales: Sequence[Scale], count: int, best: int) -> None:
    """Draw the worst trials first, coloured by rank, because good values lie close together."""
    lines = [
        [(float(x), scale.places.get(place, INACTIVE)) for x, scale in enumerate(scales)]
        for place in range(count)
    ]
    colours = load("matplotlib", "plots", "tune").colormaps["viridis_r"]
    shades: list[Any] = []
    widths: list[float] = []
    crowd = min(0.75, max(0.05, 12 / count))
    for place in range(count):
        red, green, blue, _ = colours(0.08 + 0.8 * (1 - place / max(1, count - 1)))
        shades.append((red, green, blue, 0.95 if place < best else crowd))
        widths.append(3.0 if place == 0 else 1.8 if place < best else 1.0)
    if best > 0:
        shades[0] = style.BEST[0]
    smooth = [_smooth(line) for line in lines[::-1]]
    style.draw_lines(axes, smooth, colors=shades[::-1], linewidths=widths[::-1], zorder=2)


def _smooth(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the line with eased steps, so that lines through the same value can be distinguished."""
    points = []
    for (x, y), (_, after) in pairwise(line):
        for step in range(12):
            share = step / 12
            points.append((x + share, y + (after - y) * share * share * (3 - 2 * share)))
    return [*points, line[-1]]


def _draw_axes(axes: Axes, scales: Sequence[Scale]) -> None:
    box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
    looks: dict[str, Any] = {"fontsize": 8, "color": style.TEXT, "va": "center", "zorder": 6, "bbox": box}
    for x, scale in enumerate(scales):
        axes.plot([x, x], [0, 1], color=style.TEXT, linewidth=1.1, zorder=5)
        everyone = scales[-1].places.keys()  # trials without the metric are not drawn
        lacking = [(INACTIVE, "inactive")] if everyone - scale.places.keys() else []
        for y, text in [*scale.ticks, *lacking]:
            axes.plot([x - 0.015, x + 0.015], [y, y], color=style.TEXT, linewidth=1.1, zorder=5)
            axes.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", **looks)


def draw_pareto(
    grid: ResultGrid,
    *,
    ax: Axes | None = None,
    metric: Any = None,
    mode: Any = None,
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """Draw the last reports of all trials.

    Args:
        grid: the experiment.
        ax: axes to draw into; None: a new figure.
        metric: two reported values; None: the experiment's two objectives.
        mode: "min" or "max" for each; None: the experiment's.
        log_x: use a logarithmic axis for the first value.
        log_y: use a logarithmic axis for the second value.

    Raises:
        ConfigError: the number of objectives is not two.
    """
    objectives = grid.objectives_or(metric, mode)
    if len(objectives) != 2:
        names = [each.metric for each in objectives]
        raise ConfigError(
            f"plot('pareto') has two axes, and the objectives are {names}: give metric=[...] two"
        )
    front = grid.pareto_front(metric, mode)
    x, y = (each.metric for each in objectives)
    if not front:
        raise style.nothing_to_draw(grid, x, y)
    figure, axes = style.figure_of(ax, (6.5, 5))
    best = {result.trial_id for result in front}

    def place(result: Any) -> tuple[float, float]:
        return lookup(result.metrics, x), lookup(result.metrics, y)

    others = [
        place(result)
        for result in grid
        if result.trial_id not in best and result.metrics and all(map(is_finite, place(result)))
    ]
    if others:
        axes.plot(*zip(*others, strict=True), "o", color=style.OTHERS, markersize=5, label="dominated")
    line = sorted(map(place, front))
    axes.plot(*zip(*line, strict=True), "o-", color=style.BEST[0], linewidth=1.7, label="front", zorder=4)
    title = f"{len(front)} of {count_words(len(front) + len(others), 'trial')} on the front"
    style.dress(axes, title=title, x=x, y=y, log_x=log_x, log_y=log_y)
    axes.legend(frameon=False)
    return figure
