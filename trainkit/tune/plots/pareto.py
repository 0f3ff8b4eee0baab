"""The Pareto front: a point per trial over two objectives, those that none dominates in colour and joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.values import lookup
from trainkit.tune.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trainkit.tune.results.result_grid import ResultGrid


def draw(
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
        ax: to draw into.
        metric: two reported values; None: the experiment's objectives, of which it must have two.
        mode: "min" or "max" for each; None: the experiment's.
        log_x: a logarithmic axis.
        log_y: the same for the second.

    Raises:
        ConfigError: there are not two objectives.
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
    style.dress(
        axes, title=f"{len(front)} of {style.trials(len(front) + len(others))} on the front", x=x, y=y
    )
    axes.set_xscale("log" if log_x else "linear")
    axes.set_yscale("log" if log_y else "linear")
    axes.legend(frameon=False)
    return figure
