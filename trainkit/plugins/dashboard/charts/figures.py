"""Charts of an experiment as Plotly figures, {"data": ..., "layout": ...}: pure functions of plain data.

Every trace is drawn as SVG, so that a figure works under a content security policy without `unsafe-eval`. A
figure sets no colours of background, text or grid, which belong to the viewer's theme. The `customdata` of a
point is the id of its trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise
from typing import Any

from trainkit.plugins.dashboard.plots.style import limit, number

Figure = dict[str, Any]
Points = Sequence[tuple[float, float]]

BEST = ("#3b78d8", "#d9772b", "#2a9d78", "#c2508f", "#8a67c9", "#1f9ab0", "#a98a12", "#d2555a")
"""Colours of highlighted trials, best first. All are readable on white and on near-black."""
OTHERS = "#8b95a1"
OUTCOMES = {
    "finished": BEST[2],
    "stopped": OTHERS,
    "paused": BEST[0],
    "failed": BEST[7],
    "cut": BEST[6],
    "running": BEST[1],
}
"""Colour of an attempt by its outcome, in the order of the legend."""
MAX_POINTS = 300
"""Maximum number of points of one curve; longer curves are thinned out."""


@dataclass(frozen=True)
class Line:
    """Curve of a trial."""

    trial_id: str
    points: Points


@dataclass(frozen=True)
class Scored:
    """Trials with their values of a metric: lists of ids, indices in the order suggested, and values."""

    trial_ids: Sequence[str]
    numbers: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class Arrival:
    """Arrival of a trial at a rung; `cutoff` is NaN if the rung had none yet."""

    trial_id: str
    value: float
    went_on: bool
    cutoff: float


@dataclass(frozen=True)
class Bar:
    """Attempt of a trial: its time in seconds since the first attempt, and the row in which it is drawn."""

    trial_id: str
    attempt: int
    start: float
    end: float
    row: int
    outcome: str


def text(name: object) -> str:
    """Return a name that Plotly shows literally, without interpreting tags, entities, templates or formulas.

    Unprintable characters are escaped.
    """
    shown = str(name)
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in shown)
    return escape(shown, quote=False).replace("%", "&#37;").replace("$", "&#36;")


def thinned(points: Points, most: int = MAX_POINTS) -> Points:
    """Return at most `most` points: the first, the last, and the extremes of each interval between them.

    This keeps all peaks of the curve.
    """
    if len(points) <= most:
        return points
    inner, runs = points[1:-1], (most - 2) // 2
    kept = [points[0]]
    for place in range(runs):
        run = inner[place * len(inner) // runs : (place + 1) * len(inner) // runs]
        heights = [up for _, up in run]
        ends = {heights.index(min(heights)), heights.index(max(heights))}
        kept += [run[end] for end in sorted(ends)]
    return [*kept, points[-1]]


def curves(
    lines: Sequence[Line],
    *,
    metric: str,
    mode: str,
    x: str = "training_iteration",
    best: int = 8,
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """Draw a metric over time for each trial.

    Args:
        lines: curves, best first.
        metric: name of the vertical axis.
        mode: "min" or "max".
        x: name of the horizontal axis.
        best: number of first curves that are coloured and named; the others form one grey trace.
        log_x: use a logarithmic horizontal axis.
        log_y: use a logarithmic vertical axis.
    """
    traces: list[Figure] = []
    others = lines[best:]
    if others:
        traces.append(
            {
                **joined([(line.trial_id, thinned(line.points)) for line in others]),
                "mode": "lines+markers" if all(len(line.points) == 1 for line in others) else "lines",
                "name": f"{len(others)} others",
                "line": {"color": OTHERS, "width": 1},
                "opacity": max(0.25, min(0.7, 4 / math.sqrt(len(others)))),
            }
        )
    for place, line in reversed(list(enumerate(lines[:best]))):
        points = thinned(line.points)
        traces.append(
            {
                **joined([(line.trial_id, points)]),
                "mode": "lines" if len(points) > 1 else "markers",
                "name": text(line.trial_id),
                "line": {"color": BEST[place % len(BEST)], "width": 3 if place == 0 else 2},
            }
        )
    layout = {"xaxis": axis_of(x.replace("_", " "), log=log_x), "yaxis": axis_of(metric, log=log_y)}
    if others and not log_y:
        values = [up for line in lines for _, up in line.points]
        if (ends := limit(values, mode)) is not None:
            layout["yaxis"]["range"] = list(ends)
    return figure_of(traces, **layout, legend={"traceorder": "reversed"}, hovermode="closest")


def history(
    trials: Scored, *, metric: str, mode: str, before: float | None = None, log_y: bool = False
) -> Figure:
    """Draw each trial's value in the order suggested, and the best value so far.

    Args:
        trials: trials to show.
        metric: name of the vertical axis.
        mode: "min" or "max".
        before: best value of earlier trials, which are not shown; None without earlier trials.
        log_y: use a logarithmic axis.
    """
    better = min if mode == "min" else max
    first = [] if before is None else [before]
    so_far = list(accumulate([*first, *trials.values], better))[len(first) :]
    layout = {"xaxis": axis_of("trial"), "yaxis": axis_of(metric, log=log_y)}
    if max(trials.numbers, default=0) < 10:
        layout["xaxis"]["dtick"] = 1  # ticks between two trials would have no meaning
    if not log_y and (ends := limit(trials.values, mode)) is not None:
        layout["yaxis"]["range"] = list(ends)
    return figure_of(
        [
            dots_of(trials, trials.numbers, trials.values, name="trials", color=OTHERS, size=6),
            {
                "type": "scatter",
                "mode": "lines",
                "x": list(trials.numbers),
                "y": so_far,
                "name": "best so far",
                "line": {"color": BEST[0], "width": 2.5, "shape": "hv"},
                "hoverinfo": "skip",
            },
        ],
        **layout,
    )


def rungs(
    levels: Mapping[float, Sequence[Arrival]], *, metric: str, mode: str, log_y: bool = False
) -> Figure:
    """Draw all trials' values at each rung, in order of arrival, with continued trials and the cutoff."""
    traces: list[Figure] = []
    at: dict[tuple[float, str], float] = {}
    order = sorted(levels)
    for place, level in enumerate(order):
        count = len(levels[level])
        for n, entry in enumerate(levels[level]):
            at[level, entry.trial_id] = place + 0.8 * ((n + 0.5) / count - 0.5)
    ways = [
        (entry.trial_id, [(at[below, entry.trial_id], value), (at[level, entry.trial_id], entry.value)])
        for below, level in pairwise(order)
        for before in [{entry.trial_id: entry.value for entry in levels[below]}]
        for entry in levels[level]
        if (value := before.get(entry.trial_id)) is not None
    ]
    if ways:
        looks = {"color": BEST[0], "width": 0.8}
        traces.append(
            {
                **joined(ways),
                "mode": "lines",
                "line": looks,
                "opacity": 0.3,
                "showlegend": False,
                "hoverinfo": "skip",
            }
        )
    for went_on, name in ((False, "stayed"), (True, "went on")):
        some = [(level, entry) for level in order for entry in levels[level] if entry.went_on is went_on]
        entries = [entry for _, entry in some]
        dots = dots_of(
            Scored([entry.trial_id for entry in entries], [0] * len(entries), []),
            [at[level, entry.trial_id] for level, entry in some],
            [entry.value for entry in entries],
            name=name,
            color=BEST[0] if went_on else OTHERS,
            size=7,
        )
        dots["marker"]["symbol"] = "circle" if went_on else "circle-open"
        traces.append(dots)
    steps: list[tuple[float | None, float | None]] = []
    for level in order:
        known = [(at[level, e.trial_id], e.cutoff) for e in levels[level] if math.isfinite(e.cutoff)]
        if known:
            place = order.index(level)
            steps += [(place - 0.4, known[0][1]), *known, (place + 0.4, known[-1][1]), (None, None)]
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": [x for x, _ in steps],
            "y": [y for _, y in steps],
            "name": "cutoff",
            "line": {"color": BEST[7], "width": 2, "shape": "hvh"},
            "hoverinfo": "y",
        }
    )
    words = [f"{level:g}<br>{len(levels[level])} came" for level in order]
    across = axis_of("rung") | {"tickvals": list(range(len(order))), "ticktext": words, "showgrid": False}
    layout = {"xaxis": across, "yaxis": axis_of(metric, log=log_y)}
    values = [entry.value for entries in levels.values() for entry in entries]
    if not log_y and (ends := limit(values, mode)) is not None:
        layout["yaxis"]["range"] = list(ends)
    return figure_of(traces, **layout, hovermode="closest")


def lineage(
    ways: Sequence[Line], takeovers: Sequence[Points], winner: Points, *, shown: str, log_y: bool = False
) -> Figure:
    """Draw the paths of a population's members, with copies of another's state, and the best path.

    Args:
        ways: paths of the members, cut where another's state was copied.
        takeovers: lines from the donor's report to the first report with its state.
        winner: path of the training that led to the best member's last report.
        shown: name of the vertical axis.
        log_y: use a logarithmic axis.
    """
    traces = [
        {
            **joined([(way.trial_id, way.points) for way in ways]),
            "mode": "lines",
            "name": "members",
            "line": {"color": OTHERS, "width": 1.3},
        },
        {
            **joined([("", points) for points in takeovers]),
            "mode": "lines",
            "name": "takes over",
            "line": {"color": BEST[0], "width": 1, "dash": "dot"},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "lines",
            "x": [x for x, _ in winner],
            "y": [y for _, y in winner],
            "name": "way of the best",
            "line": {"color": BEST[1], "width": 3},
            "hoverinfo": "x+y",
        },
    ]
    return figure_of(traces, xaxis=axis_of("reports along the weights"), yaxis=axis_of(shown, log=log_y))


def timeline(bars: Sequence[Bar]) -> Figure:
    """Draw every attempt as a bar over time, in the row of its worker, coloured by its outcome."""
    traces = []
    for outcome, color in OUTCOMES.items():
        some = [bar for bar in bars if bar.outcome == outcome]
        if not some:
            continue
        words = [
            f"{text(bar.trial_id)}, attempt {bar.attempt}<br>{bar.end - bar.start:.3g} s, {outcome}"
            for bar in some
        ]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "base": [bar.start for bar in some],
                "x": [bar.end - bar.start for bar in some],
                "y": [bar.row for bar in some],
                "customdata": [bar.trial_id for bar in some],
                "hovertext": words,
                "hoverinfo": "text",
                "name": f"{outcome} ({len(some)})",
                "marker": {"color": color, "line": {"width": 0.5, "color": "rgba(127,127,127,0.4)"}},
            }
        )
    rows = max((bar.row for bar in bars), default=0) + 1
    up = axis_of("worker") | {"autorange": "reversed", "showgrid": False, "dtick": max(1, rows // 10)}
    return figure_of(
        traces,
        xaxis=axis_of("seconds"),
        yaxis=up,
        barmode="overlay",
        bargap=0.15,
        height=min(720, max(300, 130 + 22 * rows)),
    )


def pareto(points: Mapping[str, tuple[float, float]], front: Iterable[str], *, x: str, y: str) -> Figure:
    """Draw two objectives of all trials, and the Pareto front, whose trials no other trial beats in both."""
    on_front = set(front)
    best = sorted((trial for trial in points if trial in on_front), key=points.__getitem__)
    others = [trial for trial in points if trial not in on_front]
    traces = []
    for name, some, color in (("dominated", others, OTHERS), ("front", best, BEST[1])):
        dots = dots_of(
            Scored(some, [0] * len(some), []),
            [points[trial][0] for trial in some],
            [points[trial][1] for trial in some],
            name=f"{name} ({len(some)})",
            color=color,
            size=7,
        )
        traces.append(dots if name != "front" else {**dots, "mode": "lines+markers", "line": {"width": 2}})
    return figure_of(traces, xaxis=axis_of(x), yaxis=axis_of(y), hovermode="closest")


def edf(series: Mapping[str, Sequence[float]], *, metric: str) -> Figure:
    """Draw, for each name, the share of its trials whose value is at most the value on the axis."""
    traces = []
    for place, (name, values) in enumerate(series.items()):
        order = sorted(values)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": order,
                "y": [(n + 1) / len(order) for n in range(len(order))],
                "name": text(name),
                "line": {"color": BEST[place % len(BEST)], "width": 2, "shape": "hv"},
                "hoverinfo": "x+y",
            }
        )
    up = axis_of("share of trials") | {"range": [0, 1.02]}
    return figure_of(traces, xaxis=axis_of(metric), yaxis=up, showlegend=True)


# --- helpers --------------------------------------------------------------------------------------


def figure_of(data: Sequence[Figure], **layout: Any) -> Figure:
    """Return a figure."""
    return {"data": list(data), "layout": {"hovermode": "closest", **layout}}


def say(figure: Figure, words: str) -> None:
    """Add a remark above a figure, at its right end."""
    place = {"xref": "paper", "yref": "paper", "x": 1, "y": 1, "xanchor": "right", "yanchor": "bottom"}
    remark = {**place, "text": text(words), "showarrow": False, "font": {"size": 11}}
    figure["layout"]["annotations"] = [*figure["layout"].get("annotations", ()), remark]


def axis_of(name: str, *, log: bool = False) -> Figure:
    """Return an axis with a title."""
    axis: Figure = {"title": {"text": text(name)}, "automargin": True, "zeroline": False}
    return axis | {"type": "log"} if log else axis


def joined(lines: Sequence[tuple[str, Points]], hover: Sequence[str] | None = None) -> Figure:
    """Return one trace of many lines, separated by gaps."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    ids: list[str | None] = []
    words: list[str] = []
    for place, (trial_id, points) in enumerate(lines):
        if xs:
            xs.append(None)
            ys.append(None)
            ids.append(None)
            words.append("")
        xs += [x for x, _ in points]
        ys += [y for _, y in points]
        ids += [trial_id] * len(points)
        words += (
            [f"{text(trial_id)}<br>{number(y)} at {number(x)}" for x, y in points]
            if hover is None
            else [f"{text(trial_id)}<br>{hover[place]}"] * len(points)
        )
    return {"type": "scatter", "x": xs, "y": ys, "customdata": ids, "text": words, "hoverinfo": "text"}


def dots_of(
    trials: Scored, x: Sequence[Any], y: Sequence[Any], *, name: str, color: Any, size: int
) -> Figure:
    """Return a trace with one point per trial."""
    words = [
        f"{text(trial)}<br>{value_words(across)}, {value_words(up)}"
        for trial, across, up in zip(trials.trial_ids, x, y, strict=True)
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(x),
        "y": list(y),
        "customdata": list(trials.trial_ids),
        "text": words,
        "hoverinfo": "text",
        "name": name,
        "marker": {"color": color if isinstance(color, str) else list(color), "size": size, "opacity": 0.8},
    }


def value_words(value: Any) -> str:
    """Return a short text for a value."""
    return number(value) if isinstance(value, (int, float)) else str(value)
