"""Charts as Plotly figures, {"data": ..., "layout": ...}, computed by pure functions from plain data.

Every trace is drawn as SVG, because other kinds of traces in Plotly need `unsafe-eval` in the content
security policy. A figure sets no colours of background, text or grid, because the theme of the page sets
these colours. The value `customdata` of a point is the id of the point's trial.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise
from typing import Any

from trainkit.plugins.plots.rungs import Entry, RungLabels
from trainkit.tune.display import count_words

Figure = dict[str, Any]
Points = Sequence[tuple[float, float]]

BEST = ("#3b78d8", "#d9772b", "#2a9d78", "#c2508f", "#8a67c9", "#1f9ab0", "#a98a12", "#d2555a")
"""Colours of highlighted trials, best first. All colours are readable on white and on near-black."""
OTHERS = "#8b95a1"
OUTCOMES = {
    "finished": BEST[2],
    "stopped": BEST[4],
    "paused": BEST[0],
    "failed": BEST[7],
    "cut": BEST[6],
    "running": BEST[1],
}
"""Maps each outcome of an attempt, and each state of a trial, to its colour, in the order of the legend."""
MAX_POINTS = 300
"""Maximum number of points of one curve; some points of longer curves are left out."""


@dataclass(frozen=True)
class Line:
    """Curve of a trial."""

    trial_id: str
    points: Points


@dataclass(frozen=True)
class Scored:
    """Trials with their values of a metric; `numbers` are their indices in the order of suggestion."""

    trial_ids: Sequence[str]
    numbers: Sequence[int]
    values: Sequence[float]

    def at(self, places: Sequence[int]) -> Scored:
        """Return the trials at these places."""
        ids, numbers, values = self.trial_ids, self.numbers, self.values
        return Scored([ids[n] for n in places], [numbers[n] for n in places], [values[n] for n in places])


@dataclass(frozen=True)
class Bar:
    """One attempt of a trial: start and end in seconds since the first attempt, and the row in the chart."""

    trial_id: str
    attempt: int
    start: float
    end: float
    row: int
    outcome: str


def text(name: object) -> str:
    """Return `name` so that Plotly shows it literally, without interpreting tags, entities, templates or
    formulas.

    Unprintable characters are escaped.
    """
    shown = str(name)
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in shown)
    return escape(shown, quote=False).replace("%", "&#37;").replace("$", "&#36;")


def thinned(points: Points, most: int = MAX_POINTS) -> Points:
    """Return at most `most` points of a curve, so that a long curve is still drawn quickly.

    A longer curve is divided into intervals. The curve's first and last point and each interval's minimum and
    maximum are kept, so all peaks stay visible.
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


def limit(values: Sequence[float], mode: str) -> tuple[float, float] | None:
    """Return limits for an axis, if outliers with bad values would compress the other values; otherwise None.

    All values on the better side are inside the limits. An outlier is worse than the nearer quartile by more
    than five times the interquartile range.
    """
    finite = sorted(value for value in values if math.isfinite(value))
    if len(finite) < 8:
        return None
    low, high = finite[len(finite) // 4], finite[3 * len(finite) // 4]
    reach = 5 * (high - low)
    if reach == 0 or (finite[-1] <= high + reach if mode == "min" else finite[0] >= low - reach):
        return None
    inside = [value for value in finite if (value <= high + reach if mode == "min" else value >= low - reach)]
    margin = 0.04 * (inside[-1] - inside[0])
    return inside[0] - margin, inside[-1] + margin


def number(value: float) -> str:
    """Return a number as text with four significant digits."""
    return f"{value:.4g}"


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
        metric: name of the metric, the title of the vertical axis.
        mode: "min" or "max".
        x: name of the reported value on the horizontal axis.
        best: number of curves that have a colour and a name; all other curves form one grey trace.
        log_x: True: use a logarithmic horizontal axis.
        log_y: True: use a logarithmic vertical axis.
    """
    traces: list[Figure] = []
    others = lines[best:]
    if others:
        drawn = [(line.trial_id, thinned(line.points)) for line in others]
        mode_of_all = "lines+markers" if all(len(line.points) == 1 for line in others) else "lines"
        faint = max(0.25, min(0.7, 4 / math.sqrt(len(others))))
        name = f"{len(others)} others"
        traces.append(joined(drawn, OTHERS, 1, mode=mode_of_all, name=name, opacity=faint))
    for place, line in reversed(list(enumerate(lines[:best]))):
        points = thinned(line.points)
        name = f"{text(line.trial_id)}   {number(line.points[-1][1])}"
        looks = {"name": name, "mode": "lines" if len(points) > 1 else "markers"}
        width = 3 if place == 0 else 2
        traces.append(joined([(line.trial_id, points)], BEST[place % len(BEST)], width, **looks))
    values = [up for line in lines for _, up in line.points] if others else []
    return figure_of(
        traces,
        f"{metric} of {count_words(len(lines), 'trial')}",
        xaxis=axis_of(x.replace("_", " "), log=log_x),
        yaxis=value_axis(metric, values, mode, log=log_y),
        legend={"traceorder": "reversed"},
    )


def history(
    trials: Scored,
    *,
    metric: str,
    mode: str,
    before: float | None = None,
    log_y: bool = False,
    infeasible: Collection[str] = (),
    states: Mapping[str, str] | None = None,
) -> Figure:
    """Draw each trial's value in the order of suggestion, by state, and the best value up to each trial.

    Args:
        trials: trials to show.
        metric: name of the metric, the title of the vertical axis.
        mode: "min" or "max".
        before: best value of the earlier trials that are not shown; None if all trials are shown.
        infeasible: ids of the trials that can't be the best, because they violate a constraint.
        states: maps the trials' ids to their states; None: all trials look alike.
        log_y: True: use a logarithmic vertical axis.
    """
    better = min if mode == "min" else max
    first = [] if before is None else [before]
    worst = math.inf if mode == "min" else -math.inf
    counted = [
        worst if trial_id in infeasible else value
        for trial_id, value in zip(trials.trial_ids, trials.values, strict=True)
    ]
    so_far = list(accumulate([*first, *counted], better))[len(first) :]
    steps = [(number, best) for number, best in zip(trials.numbers, so_far, strict=True) if best != worst]
    across = axis_of("trial")
    if max(trials.numbers, default=0) < 10:
        # Ticks are at whole numbers, because a tick between two trials would have no meaning.
        across["dtick"] = 1
    by_state: dict[str, list[int]] = {}
    for place, trial_id in enumerate(trials.trial_ids):
        state = "infeasible" if trial_id in infeasible else (states or {}).get(trial_id, "trials")
        by_state.setdefault(state, []).append(place)
    dots = []
    for state in sorted(by_state, key=[*OUTCOMES, "trials", *by_state].index):
        some = trials.at(by_state[state])
        color, name = OUTCOMES.get(state, OTHERS), "stopped early" if state == "stopped" else state
        dots.append(dots_of(some, some.numbers, some.values, name=name, color=color, size=6))
        if state == "infeasible":
            dots[-1]["marker"]["symbol"] = "circle-open"
    return figure_of(
        [*dots, path(steps, "best so far", BEST[0], 2.5, "hv", hover="skip")],
        f"{metric} of {count_words(len(trials.values), 'trial')}",
        xaxis=across,
        yaxis=value_axis(metric, trials.values, mode, log=log_y),
    )


def rungs(
    levels: Mapping[float, Sequence[Entry]],
    *,
    metric: str,
    mode: str,
    labels: RungLabels,
    name: str = "",
    log_y: bool = False,
) -> Figure:
    """Draw each rung's trials in order of arrival, mark the trials that continued, and draw the cutoff.

    Args:
        levels: maps each rung to the trials that reached it.
        metric: name of the metric, the title of the vertical axis.
        mode: "min" or "max".
        labels: legend.
        name: name of the bracket; "" if only one bracket exists.
        log_y: True: use a logarithmic vertical axis.
    """
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
        traces.append(joined(ways, BEST[0], 0.8, opacity=0.3, showlegend=False, hoverinfo="skip"))
    for went_on, label in ((False, labels.stayed), (True, labels.went_on)):
        some = [(level, entry) for level in order for entry in levels[level] if entry.went_on is went_on]
        entries = [entry for _, entry in some]
        dots = dots_of(
            Scored([entry.trial_id for entry in entries], [0] * len(entries), []),
            [at[level, entry.trial_id] for level, entry in some],
            [entry.value for entry in entries],
            name=label,
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
    traces.append(path(steps, labels.cutoff, BEST[7], 2, "hvh", hover="y"))
    words = [
        f"{level:g}<br>{len(levels[level])} arrived<br>{sum(e.went_on for e in levels[level])} continued"
        for level in order
    ]
    across = axis_of("rung") | {"tickvals": list(range(len(order))), "ticktext": words, "showgrid": False}
    values = [entry.value for entries in levels.values() for entry in entries]
    trials = len({entry.trial_id for entries in levels.values() for entry in entries})
    return figure_of(
        traces,
        f"rungs of {name or count_words(trials, 'trial')}",
        xaxis=across,
        yaxis=value_axis(metric, values, mode, log=log_y),
    )


def lineage(
    ways: Sequence[Line],
    takeovers: Sequence[Points],
    winner: Points,
    *,
    shown: str,
    mode: str | None = None,
    exchanges: int = 0,
    log_y: bool = False,
) -> Figure:
    """Draw the curves of a population's members, the copies of state between them, and the best path.

    Args:
        ways: curves of the members, each divided where the member copies another member's state.
        takeovers: lines for the copies, from the donor's report to the copying member's next report.
        winner: points of the reports whose training led to the best member's last report.
        shown: name of the metric or hyperparameter on the vertical axis.
        mode: "min" or "max" if the axis shows the metric, so that outliers with bad values are cut off; else
            None.
        exchanges: number of exploits.
        log_y: True: use a logarithmic vertical axis.
    """
    traces = [
        joined([(way.trial_id, way.points) for way in ways], OTHERS, 1.3, name="members"),
        joined(
            [("", points) for points in takeovers], BEST[0], 1, "dot", name="takes over", hoverinfo="skip"
        ),
        path(winner, "path of the best", BEST[1], 3),
    ]
    values = [up for way in ways for _, up in way.points] if mode is not None else []
    members = count_words(len({way.trial_id for way in ways}), "trial")
    return figure_of(
        traces,
        f"lineage of {members}, {exchanges} exchanges",
        xaxis=axis_of("reports in the history of the weights"),
        yaxis=value_axis(shown, values, mode or "min", log=log_y),
    )


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
    trials = len({bar.trial_id for bar in bars})
    again = f", {len(bars)} attempts" if len(bars) > trials else ""
    return figure_of(
        traces,
        f"{count_words(trials, 'trial')} on {count_words(rows, 'worker')}{again}",
        xaxis=axis_of("seconds") | {"range": [0, max((bar.end for bar in bars), default=0) or 1]},
        yaxis=up,
        showlegend=True,
        barmode="overlay",
        bargap=0.15,
        height=min(720, max(300, 130 + 22 * rows)),
    )


def pareto(
    points: Mapping[str, tuple[float, float]],
    front: Iterable[str],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """Draw all trials by two objectives; the Pareto front has the trials that no other trial beats in both
    objectives.
    """
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
    return figure_of(
        traces,
        f"{len(best)} of {count_words(len(points), 'trial')} on the front",
        xaxis=axis_of(x, log=log_x),
        yaxis=axis_of(y, log=log_y),
    )


def edf(series: Mapping[str, Sequence[float]], *, metric: str) -> Figure:
    """Draw for each name the cumulative distribution of its values: the share of values up to each value."""
    traces = []
    for place, (name, values) in enumerate(series.items()):
        steps = [(value, (n + 1) / len(values)) for n, value in enumerate(sorted(values))]
        traces.append(path(steps, text(name), BEST[place % len(BEST)], 2, "hv"))
    up = axis_of("share of trials") | {"range": [0, 1.02]}
    title = f"{metric} of {count_words(sum(map(len, series.values())), 'trial')}"
    return figure_of(traces, title, xaxis=axis_of(metric), yaxis=up, showlegend=True)


# --- helpers --------------------------------------------------------------------------------------


def figure_of(data: Sequence[Figure], title: str, **layout: Any) -> Figure:
    """Return a figure. The title appears only in saved pictures, because pages have their own headings."""
    return {"data": list(data), "layout": {"hovermode": "closest", "meta": {"title": text(title)}, **layout}}


def say(figure: Figure, words: str) -> None:
    """Add a remark above a figure, at its right end."""
    place = {"xref": "paper", "yref": "paper", "x": 1, "y": 1, "xanchor": "right", "yanchor": "bottom"}
    remark = {**place, "text": text(words), "showarrow": False, "font": {"size": 11}}
    figure["layout"]["annotations"] = [*figure["layout"].get("annotations", ()), remark]


def axis_of(name: str, *, log: bool = False) -> Figure:
    """Return an axis with a title."""
    axis: Figure = {"title": {"text": text(name)}, "automargin": True, "zeroline": False}
    return axis | {"type": "log"} if log else axis


def value_axis(name: str, values: Sequence[float], mode: str, *, log: bool) -> Figure:
    """Return an axis of a metric; a few extremely bad values do not compress the other values."""
    axis = axis_of(name, log=log)
    ends = None if log else limit(values, mode)
    return axis if ends is None else axis | {"range": list(ends)}


def path(
    points: Iterable[tuple[Any, Any]],
    name: str,
    color: str,
    width: float,
    shape: str = "linear",
    *,
    hover: str = "x+y",
) -> Figure:
    """Return a trace that is one line; its shape is "linear", or "hv" or "hvh" for steps."""
    places = list(points)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "name": name,
        "line": {"color": color, "width": width, "shape": shape},
        "hoverinfo": hover,
    }


def joined(
    lines: Sequence[tuple[str, Points]],
    color: str,
    width: float,
    dash: str = "solid",
    *,
    hover: Sequence[str] | None = None,
    **looks: Any,
) -> Figure:
    """Return one trace that contains many lines, separated by gaps."""
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
    line = {"color": color, "width": width, **({} if dash == "solid" else {"dash": dash})}
    data = {"type": "scatter", "x": xs, "y": ys, "customdata": ids, "text": words, "hoverinfo": "text"}
    return {**data, "mode": "lines", "line": line, **looks}


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
