"""Style that all plots share: figures, colours and axes; and the choice of the metric to draw."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any, cast

from trainkit.errors import ConfigError, MetricError
from trainkit.plugins.plots.figures import BEST as BEST
from trainkit.plugins.plots.figures import OTHERS as OTHERS
from trainkit.tune.controller.rules import missing_metric
from trainkit.tune.core.checks import load, require_one_of
from trainkit.tune.core.metrics import lookup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

    from trainkit.tune.results.result_grid import ResultGrid

STOPPED = "#a9b1ba"
TEXT = "#3b424a"
FAINT = "#e4e8ec"


def figure_of(ax: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """Return the figure and axes to draw into; if a new figure is made, its size is `size` in inches."""
    if ax is not None:
        return cast("Figure", ax.get_figure(root=True)), ax
    figure = load("matplotlib.figure", "plots", "tune").Figure(figsize=size, layout="constrained")
    # IPython shows figures only if they are made with pyplot, but it calls the method `_repr_png_` of every
    # result.
    figure._repr_png_ = functools.partial(as_png, figure)
    return figure, figure.add_subplot()


def as_png(figure: Figure) -> bytes:
    """Return the figure as PNG data."""
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
    """Remove unneeded lines, and set the axes' titles and their linear or logarithmic scales."""
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
    """Add a legend to the right of the axes."""
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    return ax.legend(*entries, frameon=False, fontsize=9, labelcolor=TEXT, **beside, **options)


def metric_of(grid: ResultGrid, metric: str | None, mode: str | None) -> tuple[str, str]:
    """Return the name of the metric to draw, and its mode.

    Raises:
        ConfigError: neither the arguments nor the experiment define a single metric and its mode.
    """
    modes = {each.metric: each.mode for each in grid.objectives}
    metric = metric or grid.metric
    if metric is None and modes:
        raise ConfigError(
            f"the experiment has several objectives, {list(modes)}: choose one to plot, "
            f"results.plot(..., metric={next(iter(modes))!r})"
        )
    # The mode of an objective takes precedence, because the experiment's mode belongs to the scheduler's
    # metric.
    mode = mode or modes.get(metric or "") or grid.mode
    if metric is None or mode is None:
        raise ConfigError(
            "the experiment has no metric and mode to plot: pass results.plot(..., metric='loss', mode='min')"
        )
    require_one_of("mode", mode, ("min", "max"))
    return metric, mode


def nothing_to_draw(grid: ResultGrid, *names: str) -> MetricError:
    """Return an error that says why the metrics `names` have no values to draw."""
    reports = [report for _, history in grid.histories() for report in history]
    for name in names:
        if all(lookup(report, name) is None for report in reports):
            return MetricError(f"the plot needs {missing_metric(name, reports)}")
    called = " and ".join(map(repr, names))
    return MetricError(
        f"{called} cannot be plotted: no report has finite numbers for it, or, on a logarithmic axis, "
        "numbers above 0"
    )
