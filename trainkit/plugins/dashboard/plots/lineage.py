"""The lineage of a population: each member's course, exchanges of state, and the course that remains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.plugins.dashboard.plots import style
from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.lineage import Exchange, Stretch, ages
from trainkit.tune.core.metrics import lookup
from trainkit.tune.display import count_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trainkit.tune.results.result_grid import ResultGrid

WINNER = style.BEST[0]
TAKES_OVER = style.BEST[1]


def draw_lineage(
    grid: ResultGrid,
    *,
    ax: Axes | None = None,
    metric: str | None = None,
    mode: str | None = None,
    hyperparameter: str | None = None,
    log_y: bool = False,
) -> Figure:
    """Draw the metric, or a hyperparameter, of every member's reports, with every exchange.

    Reports are counted along the weights: after an exchange the count continues from the donor's, so that
    every course leads to the right, even if members differ in pace. A thin line leads from the donor
    to the member that took over its state. The course that led to the best member's last report is
    highlighted, including the training of its donors.

    Args:
        grid: the experiment.
        ax: axes to draw into; None: a new figure.
        metric: the metric that ranks members and is drawn; None: the experiment's.
        mode: None: the experiment's.
        hyperparameter: drawn instead of the metric, such as "lr" or "net/width".
        log_y: use a logarithmic axis; values without a logarithm are left out.
    """
    metric, mode = style.metric_of(grid, metric, mode)
    changes = grid.exchanges()
    exchanges = [each for each in changes if each.donor is not None]
    if not exchanges:
        raise ConfigError(
            "there is no lineage to draw: no trial has taken over the state of another. That comes with "
            "TuneConfig(scheduler=PopulationBasedTraining(...)), once trials have reached its "
            "perturbation_interval"
        )
    drawn = hyperparameter or metric
    ways = ways_of(grid, metric, hyperparameter, changes, log_y=log_y)
    if not any(ways.values()):
        raise style.nothing_to_draw(grid, drawn)
    figure, axes = style.figure_of(ax, (8.5, 5))
    best = next(iter(style.ranked(grid, metric, mode)), None)
    _draw_members(axes, ways, exchanges)
    _draw_exchanges(axes, ways, exchanges)
    if best is not None:
        _draw_winner(axes, ways, best.lineage())
    title = f"lineage of {count_words(len(ways), 'trial')}, {len(exchanges)} exchanges"
    style.dress(axes, title=title, x="reports along the weights", y=drawn, log_y=log_y)
    values = [value for way in ways.values() for _, value in way.values()]
    ends = None if log_y else style.limit(values, mode)
    if ends is not None and hyperparameter is None:
        axes.set_ylim(*ends)
    style.legend(axes)
    return figure


Way = Mapping[int, tuple[int, float]]
"""By iteration of a trial: number of reports in the history of its weights, and the reported value."""


def ways_of(
    grid: ResultGrid,
    metric: str,
    hyperparameter: str | None,
    exchanges: Sequence[Exchange],
    *,
    log_y: bool,
) -> dict[str, dict[int, tuple[int, float]]]:
    """Return the reports with a finite value, by trial and iteration."""
    ways: dict[str, dict[int, tuple[int, float]]] = {}
    age = ages(exchanges)
    for result, history in grid.histories():
        way = ways.setdefault(result.trial_id, {})
        for report in history:
            value: Any = (
                lookup(report["config"], hyperparameter) if hyperparameter else lookup(report, metric)
            )
            if is_finite(value) and (value > 0 or not log_y):
                iteration = report["training_iteration"]
                way[iteration] = age(result.trial_id, iteration), float(value)
    return ways


def pieces_of(way: Way, cuts: Sequence[int]) -> list[list[tuple[int, float]]]:
    """Return the points of a course, cut at each takeover so that no line crosses it."""
    pieces: list[list[tuple[int, float]]] = [[]]
    left = sorted(cuts)
    for iteration in sorted(way):
        while left and iteration > left[0]:
            left.pop(0)
            pieces.append([])
        pieces[-1].append(way[iteration])
    return [piece for piece in pieces if piece]


def _draw_members(axes: Axes, ways: Mapping[str, Way], exchanges: Sequence[Exchange]) -> None:
    pieces = [
        piece
        for trial_id, way in ways.items()
        for piece in pieces_of(way, [each.iteration for each in exchanges if each.trial_id == trial_id])
    ]
    alpha = style.faint(len(pieces), 4, 0.2, 0.9)
    style.draw_lines(
        axes, pieces, colors=style.OTHERS, linewidths=1.1, alpha=alpha, zorder=2, label="members"
    )
    axes.autoscale_view()


def takeovers_of(ways: Mapping[str, Way], exchanges: Sequence[Exchange]) -> list[list[tuple[int, float]]]:
    """Return a line per exchange, from the donor's report to the member's first report with its state."""
    lines = []
    for each in exchanges:
        donor, member = ways.get(each.donor or "", {}), ways.get(each.trial_id, {})
        since, after = each.donor_iteration or 0, each.iteration + 1
        if since in donor and after in member:
            lines.append([donor[since], member[after]])
    return lines


def winner_of(ways: Mapping[str, Way], stretches: Sequence[Stretch]) -> list[tuple[int, float]]:
    """Return the points of the training that led to a trial's weights."""
    return [
        point
        for stretch in stretches
        for iteration, point in sorted(ways.get(stretch.trial_id, {}).items())
        if stretch.first < iteration <= stretch.last
    ]


def _draw_exchanges(axes: Axes, ways: Mapping[str, Way], exchanges: Sequence[Exchange]) -> None:
    lines = takeovers_of(ways, exchanges)
    looks = {"colors": TAKES_OVER, "linewidths": 0.9, "linestyles": "--", "zorder": 3}
    style.draw_lines(axes, lines, alpha=style.faint(len(lines), 3, 0.15, 0.8), label="takes over", **looks)


def _draw_winner(axes: Axes, ways: Mapping[str, Way], stretches: Sequence[Stretch]) -> None:
    points = winner_of(ways, stretches)
    across, up = zip(*points, strict=True) if points else ((), ())
    axes.plot(across, up, color=WINNER, linewidth=2.2, zorder=5, label="way of the best")
    begins = [ways.get(stretch.trial_id, {}).get(stretch.first + 1) for stretch in stretches[1:]]
    marks = [mark for mark in begins if mark is not None]
    if marks:
        xs, ys = zip(*marks, strict=True)
        axes.scatter(xs, ys, s=26, color=WINNER, zorder=6)
