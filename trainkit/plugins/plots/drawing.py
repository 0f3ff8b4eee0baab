"""Renderer that draws Plotly figures with Matplotlib, as far as the charts of `charts` need it."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from trainkit.errors import ConfigError
from trainkit.plugins.plots import style
from trainkit.tune.core.checks import is_finite, load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Part = Mapping[str, Any]
"""Trace, axis or layout of a chart."""

_STEPS = {"hv": "steps-post", "hvh": "steps-mid"}
_MOST_EDGES = 2000
"""Maximum number of bars that get an edge; more bars would be indistinguishable."""


def draw(chart: Part, ax: Axes | None) -> Figure:
    """Draw a chart.

    Args:
        chart: Plotly figure.
        ax: axes to draw into; None means new axes in a new figure.

    Raises:
        ConfigError: `ax` is given, but the chart needs several axes.
    """
    layout, traces = chart["layout"], dict[tuple[str, str], list[Part]]()
    for trace in chart["data"]:
        pair = _key(trace.get("xaxis", "x")), _key(trace.get("yaxis", "y"))
        traces.setdefault(pair, []).append(trace)
    if len(traces) > 1 and ax is not None:
        raise ConfigError("this plot has several axes and needs its own figure: leave ax out")
    columns = len(layout["xaxis"].get("tickvals", ()))
    figure, axes = style.figure_of(ax, (max(8.5, 2 + 1.45 * columns), layout.get("height", 500) / 100))
    if len(traces) > 1:
        axes.remove()
        figure.set_layout_engine("none")
    places: list[Axes] = []
    for pair, some in traces.items():
        if len(traces) > 1:
            shared = places[0] if "matches" in layout[pair[1]] else None
            axes = figure.add_axes(_rectangle(*(layout[name]["domain"] for name in pair)), sharey=shared)
        _fill(axes, some, layout, *pair)
        places.append(axes)
    title = _plain(layout["meta"]["title"])
    if len(traces) > 1:
        figure.suptitle(title, color=style.TEXT, fontsize=11)
    else:
        axes.set_title(title, loc="left", color=style.TEXT, fontsize=11)
    _add_scale(figure, places, chart["data"], layout)
    return figure


def _key(name: str) -> str:
    """Convert a trace's name of an axis to the layout's name: "x2" -> "xaxis2", "x1" -> "xaxis"."""
    return f"{name[0]}axis{name[1:].removeprefix('1') if len(name) == 2 else name[1:]}"


def _rectangle(across: Sequence[float], up: Sequence[float]) -> tuple[float, float, float, float]:
    low, high = (0.08 + 0.84 * end for end in across)
    bottom, top = (0.1 + 0.82 * end for end in up)
    return low, bottom, high - low, top - bottom


def _plain(text: str) -> str:
    return html.unescape(text.replace("<br>", "\n")).replace("$", r"\$")


def _fill(axes: Axes, traces: Sequence[Part], layout: Part, x: str, y: str) -> None:
    across, up = layout[x], layout[y]
    style.dress(
        axes,
        x=_title(across) if _stands_at(across, y) else "",
        y=_title(up) if _stands_at(up, x) else "",
        log_x=across.get("type") == "log",
        log_y=up.get("type") == "log",
    )
    for trace in traces:
        xs, ys = _numbers(trace["x"], across), _numbers(trace["y"], up)
        _KINDS[trace["type"]](axes, trace, xs, ys, layout)
    axes.autoscale_view()
    for each in layout.get("shapes", ()):
        ends = (each["x0"], each["x1"]), (each["y0"], each["y1"])
        axes.plot(*ends, color=style.TEXT, linewidth=1.1, zorder=5)
    for each in layout.get("annotations", ()):
        box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
        looks: dict[str, Any] = {"fontsize": 8, "color": style.TEXT, "va": "center", "bbox": box}
        place = each["x"], each["y"]
        axes.annotate(_plain(each["text"]), place, (4, 0), textcoords="offset points", zorder=6, **looks)
    whole = all(float(value).is_integer() for trace in traces for value in trace["x"] if is_finite(value))
    axes.tick_params(labelbottom=_stands_at(across, y), labelleft=_stands_at(up, x))
    _mark(axes, "x", across, [value for trace in traces for value in trace["x"]], whole=whole)
    _mark(axes, "y", up, [value for trace in traces for value in trace["y"]], whole=False)
    handles, labels = axes.get_legend_handles_labels()
    if labels and layout.get("showlegend", len(traces) > 1):
        way = -1 if layout.get("legend", {}).get("traceorder") == "reversed" else 1
        style.legend(axes, handles[::way], labels[::way])


def _title(axis: Part) -> str:
    return _plain(axis["title"]["text"]) if "title" in axis else ""


def _stands_at(axis: Part, other: str) -> bool:
    """Return True if `axis` is drawn at the axis `other`, not at a different plot in its row or column."""
    return "anchor" not in axis or _key(axis["anchor"]) == other


def _choices(axis: Part, values: Sequence[Any]) -> list[str]:
    if axis.get("type") != "category":
        return []
    return list(axis.get("categoryarray") or dict.fromkeys(values))


def _numbers(values: Sequence[Any], axis: Part) -> Sequence[Any]:
    places = {choice: place for place, choice in enumerate(_choices(axis, values))}
    return [places[value] for value in values] if places else values


def _mark(axes: Axes, name: Literal["x", "y"], part: Part, values: Sequence[Any], *, whole: bool) -> None:
    ticker = load("matplotlib.ticker", "plots", "tune")
    axis: Any = axes.xaxis if name == "x" else axes.yaxis
    if choices := _choices(part, values):
        axis.set_ticks(range(len(choices)), list(map(_plain, choices)))
    elif "ticktext" in part:
        axis.set_ticks(part["tickvals"], list(map(_plain, part["ticktext"])))
    elif part.get("type") != "log" and (whole or "dtick" in part):
        axis.set_major_locator(ticker.MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if "range" in part:
        axes.set(**{f"{name}lim": part["range"]})
    if part.get("autorange") == "reversed":
        axis.set_inverted(True)
    if part.get("showgrid") is False:
        axes.grid(False, axis=name)
    if part.get("visible") is False:
        axis.set_visible(False)
        axes.spines[["left", "bottom"]].set_visible(False)
    if part.get("side") == "top":
        axis.set_ticks_position("top")


def _draw_scatter(axes: Axes, trace: Part, xs: Sequence[Any], ys: Sequence[Any], layout: Part) -> None:
    label = _plain(trace["name"]) if trace.get("showlegend", True) and "name" in trace else "_"
    runs = list(_runs(xs, ys))
    if "lines" in trace["mode"]:
        line = trace["line"]
        looks = {
            "color": line.get("color", trace.get("marker", {}).get("color")),
            "linewidth": 0.8 * line["width"],
            "linestyle": "--" if "dash" in line else "-",
            "alpha": trace.get("opacity"),
            "zorder": 2 + line["width"],
        }
        if len(runs) < 2 or line.get("shape") in _STEPS:
            for place, run in enumerate(runs or [[]]):
                steps = _STEPS.get(line.get("shape", ""), "default")
                named = label if place == 0 else "_"
                axes.plot(*_columns(run), drawstyle=steps, label=named, **looks)
        else:
            collections = load("matplotlib.collections", "plots", "tune")
            axes.add_collection(collections.LineCollection(runs, label=label, **looks))
        label = "_"  # The dots get no second entry in the legend, because the line already has one.
    if "markers" in trace["mode"]:
        marker = trace.get("marker", {"color": trace.get("line", {}).get("color"), "size": 5})
        _draw_dots(axes, marker, [point for run in runs for point in run], label, layout)


def _draw_dots(axes: Axes, marker: Part, points: Sequence[Any], label: str, layout: Part) -> None:
    looks: dict[str, Any] = {"s": 0.6 * marker["size"] ** 2, "alpha": marker.get("opacity"), "zorder": 4}
    if isinstance(marker["color"], str):
        is_open = "open" in marker.get("symbol", "")
        looks["facecolors"] = "none" if is_open else marker["color"]
        looks["edgecolors"] = marker["color"] if is_open else "none"
    else:
        looks |= {"c": marker["color"], "cmap": _colours({**marker, **layout.get("coloraxis", {})})}
    axes.scatter(*_columns(points), label=label, **looks)


def _runs(xs: Sequence[Any], ys: Sequence[Any]) -> Iterator[list[tuple[Any, Any]]]:
    for is_gap, run in groupby(zip(xs, ys, strict=True), key=lambda point: point[1] is None):
        if not is_gap:
            yield list(run)


def _columns(points: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    return [x for x, _ in points], [y for _, y in points]


def _colours(scale: Part) -> Any:
    found = scale["colorscale"]
    if isinstance(found, str):
        return found.lower() + ("_r" if scale.get("reversescale") else "")
    colours = load("matplotlib.colors", "plots", "tune")
    return colours.LinearSegmentedColormap.from_list("scale", [colour for _, colour in found])


def _draw_bars(axes: Axes, trace: Part, xs: Sequence[Any], ys: Sequence[Any], layout: Part) -> None:
    collections = load("matplotlib.collections", "plots", "tune")
    half = 0.42 if len(ys) <= _MOST_EDGES else 0.5
    bars = [
        [(left, row - half), (left, row + half), (left + size, row + half), (left + size, row - half)]
        for left, size, row in zip(trace.get("base", [0.0] * len(ys)), xs, ys, strict=True)
    ]
    width = 0.5 if len(ys) <= _MOST_EDGES else 0.0
    looks = {"facecolors": trace["marker"]["color"], "edgecolors": "white", "linewidths": width}
    axes.add_collection(collections.PolyCollection(bars, label=_plain(trace.get("name", "_")), **looks))


def _draw_contour(axes: Axes, trace: Part, xs: Sequence[Any], ys: Sequence[Any], layout: Part) -> None:
    axes.contourf(xs, ys, trace["z"], levels=15, cmap=_colours(trace))


_KINDS = {"scatter": _draw_scatter, "bar": _draw_bars, "contour": _draw_contour}


def _add_scale(figure: Figure, places: Sequence[Axes], traces: Sequence[Part], layout: Part) -> None:
    """Add a colour scale if colours represent values; all axes share one scale."""
    parts = [layout.get("coloraxis", {}), *traces, *(trace.get("marker", {}) for trace in traces)]
    bars = [each.get("colorbar", {}) for each in parts if "colorbar" in each or "showscale" in each]
    if not bars:
        return
    shown = [each for axes in places for each in axes.collections if each.get_array() is not None]
    ends = [end for each in shown for end in each.get_clim()]
    for each in shown:
        each.set_clim(min(ends), max(ends))
    figure.colorbar(shown[0], ax=places, label=_plain(bars[0].get("title", {"text": ""})["text"]))
