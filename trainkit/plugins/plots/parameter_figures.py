"""Charts over hyperparameters: parallel coordinates, importances, slices, contours and a matrix."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from trainkit.plugins.plots.figures import (
    BEST,
    OTHERS,
    Figure,
    Points,
    Scored,
    axis_of,
    dots_of,
    figure_of,
    joined,
    limit,
    number,
    text,
    value_words,
)
from trainkit.tune.display import count_words

SHADES = 12
"""Number of groups into which parallel coordinates divide trials; each group has one colour and one trace."""


@dataclass(frozen=True)
class Parameter:
    """Values of one hyperparameter or metric, for each trial.

    Attributes:
        name: flat name of the hyperparameter, such as "optimizer/lr".
        values: one value per trial; None if the trial's configuration lacks the hyperparameter.
        log: True: use a logarithmic axis.
        whole: True: all values are integers.
        choices: possible values in order, if they are not numbers; None for numbers.
    """

    name: str
    values: Sequence[Any]
    log: bool = False
    whole: bool = False
    choices: Sequence[str] | None = None


def parallel(
    parameters: Sequence[Parameter],
    trials: Scored,
    *,
    metric: str,
    mode: str,
    best: int = 1,
    log_metric: bool = False,
) -> Figure:
    """Draw the configuration of each trial as a line across several axes, coloured by the rank of its metric.

    The metric is the last axis. If a trial's configuration lacks a hyperparameter, its line passes below that
    hyperparameter's axis.

    Args:
        parameters: hyperparameters to show, one axis for each.
        trials: trials to show, with their values of the metric.
        metric: name of the metric.
        mode: "min" or "max".
        best: number of best trials that are drawn on top, with their names.
        log_metric: True: use a logarithmic axis for the metric.
    """
    every = [*parameters, Parameter(metric, trials.values, log=log_metric)]
    scales = [*map(_scale, parameters), _metric_scale(every[-1], mode)]
    order = sorted(range(len(trials.values)), key=trials.values.__getitem__, reverse=mode == "min")
    traces: list[Figure] = []
    named = len(order) - min(best, len(order))
    groups = _groups(order[:named], SHADES)
    for shade, group in enumerate(groups):
        share = shade / max(1, len(groups) - 1)
        lines = [(trials.trial_ids[place], _across(scales, place)) for place in group]
        looks: dict[str, Any] = {"opacity": 0.35 + 0.5 * share, "showlegend": False}
        hover = [_words(every, place) for place in group]
        traces.append(joined(lines, _viridis(share), 1 + share, hover=hover, **looks))
    for rank, place in reversed(list(enumerate(reversed(order[named:])))):
        trial_id = trials.trial_ids[place]
        name = text(trial_id) if rank else f"best: {text(trial_id)}"
        color, width = BEST[(rank + 1) % len(BEST)], 3.5 if rank == 0 else 2
        line, words = [(trial_id, _across(scales, place))], [_words(every, place)]
        traces.append(joined(line, color, width, hover=words, name=name))
    ticks = [
        {
            "x": place,
            "y": height,
            "text": text(words),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 4,
            "font": {"size": 11},
        }
        for place, (_, marks) in enumerate(scales)
        for height, words in marks
    ]
    rules = [
        {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "line": {"color": OTHERS, "width": 1.5}}
        for place in range(len(every))
    ]
    names = [text(_shortened(each.name)) for each in every]
    across = {
        "tickvals": list(range(len(every))),
        "ticktext": names,
        "range": [-0.1, len(every) - 0.55],
        "side": "top",
        "showgrid": False,
        "zeroline": False,
    }
    up = {"visible": False, "range": [-0.16, 1.05]}
    title = f"{count_words(len(order), 'trial')} by last {metric}, the best on top"
    return figure_of(traces, title, xaxis=across, yaxis=up, annotations=ticks, shapes=rules)


def importances(shares: Mapping[str, float], *, metric: str, method: str) -> Figure:
    """Draw the share of the metric's variation that each hyperparameter explains, largest on top."""
    order = sorted(shares, key=shares.__getitem__)
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [shares[name] for name in order],
        "y": [text(name) for name in order],
        "text": [f"{shares[name]:.2f}" for name in order],
        "textposition": "auto",
        "hoverinfo": "x+y",
        "marker": {"color": BEST[0]},
        "showlegend": False,
    }
    return figure_of(
        [bars],
        f"importance for {metric}",
        xaxis=axis_of(f"share of {metric} explained ({method})"),
        yaxis={"automargin": True, "type": "category"},
        height=max(260, 90 + 26 * len(order)),
    )


def slices(
    parameters: Sequence[Parameter], trials: Scored, *, metric: str, log_y: bool = False, columns: int = 3
) -> Figure:
    """Draw one plot for each hyperparameter: its values and the metric, with later trials darker."""
    layout: Figure = {"showlegend": False}
    traces: list[Figure] = []
    rows = math.ceil(len(parameters) / columns)
    for place, each in enumerate(parameters):
        row, column = divmod(place, columns)
        mark = "" if place == 0 else str(place + 1)
        axis = _parameter_axis(each)
        axis |= {"domain": _part(column, columns, 0.05), "anchor": f"y{mark}"}
        layout[f"xaxis{mark}"] = axis
        layout[f"yaxis{mark}"] = {
            **axis_of(metric if column == 0 else "", log=log_y),
            "domain": _part(rows - 1 - row, rows, min(0.12, 0.3 / rows)),
            "anchor": f"x{mark}",
            **({"matches": "y"} if mark else {}),
        }
        chosen, xs, ys = _pair(each, Parameter(metric, trials.values), trials)
        dots = dots_of(chosen, xs, ys, name=text(each.name), color=chosen.numbers, size=6)
        dots["marker"] |= {"colorscale": [[0, "#b9c6d6"], [1, "#2f6bd0"]]}
        traces.append({**dots, "xaxis": f"x{mark}", "yaxis": f"y{mark}"})
    title = f"{metric} of {count_words(len(trials.values), 'trial')}"
    return figure_of(traces, title, **layout, height=max(320, 260 * rows))


def contour(across: Parameter, up: Parameter, trials: Scored, *, metric: str, mode: str) -> Figure:
    """Draw the metric over two hyperparameters, as contours interpolated by inverse distance."""
    chosen, xs, ys = _pair(across, up, trials)
    traces: list[Figure] = []
    if across.choices is None and up.choices is None and len(set(zip(xs, ys, strict=True))) > 3:
        traces.append(
            {
                **_surface(across, up, xs, ys, chosen.values),
                **_shades(metric, mode),
                "type": "contour",
                "contours": {"coloring": "heatmap"},
                "line": {"width": 0.5},
                "hoverinfo": "skip",
            }
        )
    color, size = ("#10151c", 5) if traces else (chosen.values, 7)
    dots = dots_of(chosen, xs, ys, name="trials", color=color, size=size)
    dots["marker"] |= {"line": {"color": "#ffffff", "width": 1}}
    if not traces:
        dots["marker"] |= {**_shades(metric, mode), "showscale": True, "opacity": 1}
    dots["text"] = [
        f"{text(trial)}<br>{text(metric)} {number(value)}"
        for trial, value in zip(chosen.trial_ids, chosen.values, strict=True)
    ]
    return figure_of(
        [*traces, dots],
        f"{metric} of {count_words(len(chosen.values), 'trial')}",
        xaxis=_parameter_axis(across),
        yaxis=_parameter_axis(up),
        showlegend=False,
    )


def matrix(columns: Sequence[Parameter], trials: Scored, *, metric: str, mode: str) -> Figure:
    """Draw one plot for each pair of `columns`: a point for each trial, coloured by the metric.

    Args:
        columns: at least two hyperparameters or metrics.
        trials: trials to show, with their values of the metric.
        metric: name of the metric.
        mode: "min" or "max".
    """
    count = len(columns) - 1
    layout: Figure = {"showlegend": False, "height": max(420, 140 * count)}
    for place in range(count):
        mark = "" if place == 0 else str(place + 1)
        layout[f"xaxis{mark}"] = {
            **_parameter_axis(columns[place]),
            "domain": _part(place, count, 0.03),
            "anchor": f"y{count if count > 1 else ''}",
        }
        layout[f"yaxis{mark}"] = {
            **_parameter_axis(columns[place + 1]),
            "domain": _part(count - 1 - place, count, 0.03),
            "anchor": "x",
        }
    traces: list[Figure] = []
    for row in range(count):
        for column in range(row + 1):
            chosen, xs, ys = _pair(columns[column], columns[row + 1], trials)
            dots = dots_of(chosen, xs, ys, name="trials", color=chosen.values, size=5)
            del dots["marker"]["opacity"]
            dots["marker"]["coloraxis"] = "coloraxis"
            traces.append({**dots, "xaxis": f"x{column + 1}", "yaxis": f"y{row + 1}"})
    layout["coloraxis"] = _shades(metric, mode)
    return figure_of(traces, f"{metric} of {count_words(len(trials.values), 'trial')}", **layout)


def _pair(across: Parameter, up: Parameter, trials: Scored) -> tuple[Scored, list[Any], list[Any]]:
    """Return the trials that have both values, and lists of these values in the form that Plotly draws."""
    count = len(trials.values)
    there = [n for n in range(count) if across.values[n] is not None and up.values[n] is not None]
    chosen = trials.at(there)
    xs, ys = ([_plain(each, each.values[n]) for n in there] for each in (across, up))
    return chosen, xs, ys


def _plain(parameter: Parameter, value: Any) -> Any:
    return value if parameter.choices is None else text(value)


def _shades(metric: str, mode: str) -> Figure:
    scale = {"title": {"text": text(metric)}, "thickness": 12}
    return {"colorscale": "Viridis", "reversescale": mode == "min", "colorbar": scale}


def _parameter_axis(parameter: Parameter) -> Figure:
    axis = axis_of(parameter.name, log=parameter.log)
    if parameter.choices is not None:
        axis |= {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [text(each) for each in parameter.choices],
        }
    return axis


def _part(place: int, count: int, gap: float) -> list[float]:
    width = (1 - gap * (count - 1)) / count
    return [place * (width + gap), min(1.0, place * (width + gap) + width)]


def _shortened(name: str, most: int = 22) -> str:
    return name if len(name) <= most else f"…{name[-most + 1 :]}"


Scale = tuple[list[float], list[tuple[float, str]]]
"""Heights of all trials on an axis, from 0 to 1; and the axis ticks, each a height and a text."""


INACTIVE = -0.1


def _scale(parameter: Parameter) -> Scale:
    heights, ticks = _places(parameter)
    return heights, [*ticks, (INACTIVE, "inactive")] if None in parameter.values else ticks


def _metric_scale(metric: Parameter, mode: str) -> Scale:
    """Return the metric's heights; outliers with bad values are moved to the axis end for readability."""
    ends = None if metric.log else limit(metric.values, mode)
    if ends is None:
        return _places(metric)
    low, high = ends
    heights, ticks = _places(replace(metric, values=[min(max(value, low), high) for value in metric.values]))
    wild, sign = (1.0, "≥") if mode == "min" else (0.0, "≤")
    inside = [tick for tick in ticks if abs(tick[0] - wild) > 0.05]
    return heights, [*inside, (wild, f"{sign} {number(high if mode == 'min' else low)}")]


def _places(parameter: Parameter) -> Scale:
    if parameter.choices is not None:
        count = len(parameter.choices)
        at = {choice: (n + 0.5) / count for n, choice in enumerate(parameter.choices)}
        marks = [(at[each], _shortened(each)) for each in parameter.choices[:: math.ceil(count / 12)]]
        return [at.get(str(value), INACTIVE) for value in parameter.values], marks
    known = [value for value in parameter.values if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    heights = [
        INACTIVE if value is None else share_between(value, low, high, log=parameter.log)
        for value in parameter.values
    ]
    return heights, _ticks(low, high, log=parameter.log, whole=parameter.whole)


def share_between(value: float, low: float, high: float, *, log: bool) -> float:
    """Return where `value` lies between `low` (0.0) and `high` (1.0), on a linear or logarithmic axis."""
    if low == high:
        return 0.5
    if log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)


def _ticks(low: float, high: float, *, log: bool, whole: bool) -> list[tuple[float, str]]:
    """Return axis ticks at round numbers, or at both ends if fewer than two round numbers lie between the
    ends.
    """
    if low == high:
        return [(0.5, number(low))]
    marks = _powers(low, high) if log else _multiples(low, high, whole=whole)
    inside = [mark for mark in marks if low <= mark <= high]
    shown = inside[:: math.ceil(len(inside) / 7)] if len(inside) > 1 else [low, high]
    return [(share_between(mark, low, high, log=log), number(mark)) for mark in shown]


def _powers(low: float, high: float) -> list[float]:
    """Return powers of 10 from about `low` to `high`; over a short range, also their multiples by 2 and 5."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [factor * 10.0**power for power in powers for factor in ((1, 2, 5) if len(powers) < 4 else (1,))]


def _multiples(low: float, high: float, *, whole: bool) -> list[float]:
    least = max(1e-300, min(high - low, sys.float_info.max) / 5)
    unit = 10.0 ** math.floor(math.log10(least))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= least)
    if whole:
        step = max(1, step)
    # Ticks are rounded, because a tick such as 3 * 0.1 would lie beyond an end at 0.3.
    return [
        float(f"{step * place:.12g}")
        for place in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)
    ]


def _across(scales: Sequence[Scale], place: int) -> Points:
    return [(float(x), heights[place]) for x, (heights, _) in enumerate(scales)]


def _words(parameters: Sequence[Parameter], place: int) -> str:
    shown = [each for each in parameters if each.values[place] is not None]
    return "<br>".join(f"{text(each.name)}: {text(value_words(each.values[place]))}" for each in shown)


def _groups(order: Sequence[int], count: int) -> list[Sequence[int]]:
    count = min(count, len(order))
    edges = [round(len(order) * place / max(1, count)) for place in range(count + 1)]
    return [order[low:high] for low, high in pairwise(edges)]


_VIRIDIS = ((253, 231, 37), (94, 201, 98), (33, 145, 140), (59, 82, 139), (68, 1, 84))


def _viridis(share: float) -> str:
    at = 0.15 + 0.6 * share
    place = min(int(at * (len(_VIRIDIS) - 1)), len(_VIRIDIS) - 2)
    rest = at * (len(_VIRIDIS) - 1) - place
    mixed = zip(_VIRIDIS[place], _VIRIDIS[place + 1], strict=True)
    red, green, blue = (round(low + (high - low) * rest) for low, high in mixed)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _surface(
    across: Parameter, up: Parameter, xs: Sequence[float], ys: Sequence[float], values: Sequence[float]
) -> Figure:
    """Return a grid with an interpolated value at each point, a mean weighted by inverse squared distance."""
    import numpy as np

    steps = np.linspace(0.0, 1.0, 32)
    ends = [(min(each), max(each)) for each in (xs, ys)]
    logs = [across.log, up.log]
    at = np.array(
        [
            [share_between(value, *end, log=log) for value in each]
            for each, end, log in zip((xs, ys), ends, logs, strict=True)
        ]
    )
    squared = (steps[None, :, None] - at[0]) ** 2 + (steps[:, None, None] - at[1]) ** 2
    weights = 1.0 / (squared + 1e-4)
    z = (weights * np.array(values)).sum(axis=2) / weights.sum(axis=2)
    lines = [
        [low * (high / low) ** float(s) if log else low + (high - low) * float(s) for s in steps]
        for (low, high), log in zip(ends, logs, strict=True)
    ]
    return {"x": lines[0], "y": lines[1], "z": z.tolist()}
