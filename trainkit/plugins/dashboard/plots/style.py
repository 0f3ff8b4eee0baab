"""Common style of the plots: figures, colours, and axes that outliers don't distort."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from trainkit.errors import ConfigError, MetricError
from trainkit.tune.controller.rules import missing_metric
from trainkit.tune.core.checks import load, require_one_of
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.objectives import trial_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

    from trainkit.tune.results.result import Result
    from trainkit.tune.results.result_grid import ResultGrid

BEST = ("#c8404f", "#2f6db3", "#3a9a6b", "#e08a2e", "#7a5ba8", "#2a9aa8", "#b8558f", "#7d8a2e")
"""Colours of the best trials, best first."""
OTHERS = "#8d97a3"
STOPPED = "#a9b1ba"
TEXT = "#3b424a"
FAINT = "#e4e8ec"


def figure_of(ax: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """Return figure and axes to draw into; a new figure has `size` inches."""
    if ax is not None:
        return cast("Figure", ax.get_figure(root=True)), ax
    figure = load("matplotlib.figure", "plots", "tune").Figure(figsize=size, layout="constrained")
    # IPython only knows how to show figures once pyplot is imported, but it calls this method without it.
    figure._repr_png_ = functools.partial(as_png, figure)
    return figure, figure.add_subplot()


def as_png(figure: Figure) -> bytes:
    """Return the figure as PNG, for a notebook."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", bbox_inches="tight")
    return stream.getvalue()


def dress(
    ax: Axes,
    *,
    title: str = "",
    x: str = "",
    y: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> None:
    """Remove distracting lines, name the axes, and scale them."""
    ax.set_xscale("log" if log_x else "linear")
    ax.set_yscale("log" if log_y else "linear")
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(OTHERS)
    ax.tick_params(colors=TEXT, labelsize=9)
    ax.grid(True, color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    if title:
        ax.set_title(title, loc="left", color=TEXT, fontsize=11)
    ax.set_xlabel(x, color=TEXT)
    ax.set_ylabel(y, color=TEXT)


def legend(ax: Axes, *entries: Any, **options: Any) -> Legend:
    """Add a legend beside the axes."""
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    return ax.legend(*entries, frameon=False, fontsize=9, labelcolor=TEXT, **beside, **options)


def draw_lines(ax: Axes, lines: Sequence[Any], **options: Any) -> None:
    """Draw many lines in one call; each line is a list of points."""
    collection = load("matplotlib.collections", "plots", "tune").LineCollection
    ax.add_collection(collection(lines, **options))


def faint(count: int, share: float, least: float, most: float) -> float:
    """Return the opacity of `count` lines; many lines are fainter, so that crowded areas look darkest."""
    return min(most, max(least, share / math.sqrt(count or 1)))


def metric_of(grid: ResultGrid, metric: str | None, mode: str | None) -> tuple[str, str]:
    """Return the metric to draw and its mode.

    Raises:
        ConfigError: neither the arguments nor the experiment name a single metric and its mode.
    """
    modes = {each.metric: each.mode for each in grid.objectives}
    metric = metric or grid.metric
    if metric is None and modes:
        raise ConfigError(
            f"which metric is drawn? The objectives are {list(modes)}: give one of them, "
            f"results.plot(..., metric={next(iter(modes))!r})"
        )
    # Each objective has its own mode; the experiment's mode belongs to the scheduler's metric.
    mode = mode or modes.get(metric or "") or grid.mode
    if metric is None or mode is None:
        raise ConfigError(
            "which metric is drawn, and which end of it is better? Give both: "
            "results.plot(..., metric='loss', mode='min')"
        )
    require_one_of("mode", mode, ("min", "max"))
    return metric, mode


def nothing_to_draw(grid: ResultGrid, *names: str) -> MetricError:
    """Return the error that explains why the values `names` have no number to draw."""
    reports = [report for _, history in grid.histories() for report in history]
    for name in names:
        if all(lookup(report, name) is None for report in reports):
            return MetricError(f"there is nothing to draw of {missing_metric(name, reports)}")
    called = " and ".join(map(repr, names))
    return MetricError(
        f"there is nothing to draw of {called}: no report has finite numbers there, or, on a logarithmic "
        "axis, none above 0"
    )


def ranked(results: Iterable[Result], metric: str, mode: str) -> list[Result]:
    """Return the trials whose last report has the metric, best first."""
    scores = [
        (score, result)
        for result in results
        if (score := trial_score([result.metrics], metric, mode, "last", keep_all=False)) is not None
    ]
    return [result for _, result in sorted(scores, key=lambda pair: -pair[0])]


def limit(values: Sequence[float], mode: str) -> tuple[float, float] | None:
    """Return limits for an axis that outliers at the worse side would squeeze; None without outliers.

    Values at the better side always stay inside. A value is an outlier if it lies more than five times the
    interquartile range beyond the middle half.
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
    """Return a number in few characters."""
    return f"{value:.4g}"
