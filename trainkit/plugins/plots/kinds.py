"""Kinds of charts of an experiment. Each kind is a function that draws a chart from a `Source`.

The dashboard's page, notebooks and `results.plot` draw the same charts.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trainkit.errors import ConfigError
from trainkit.plugins.integrations.optuna_study import importances
from trainkit.plugins.plots import figures, parameter_figures
from trainkit.plugins.plots.figures import Figure, Line
from trainkit.plugins.plots.rungs import bracket_of, judgements, labels_of, rungs_of
from trainkit.plugins.plots.source import Source
from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.lineage import ages
from trainkit.tune.core.metrics import lookup
from trainkit.tune.store.reader import SIMULATED

if TYPE_CHECKING:
    from trainkit.tune.core.lineage import Exchange, Stretch
    from trainkit.tune.results.result_grid import ResultGrid
    from trainkit.tune.store.reader import Span

Draw = Callable[[Source], Figure]


class ChartKind(NamedTuple):
    """Kind of charts.

    Attributes:
        description: what a chart of this kind shows.
        options: options of `results.plot` for this kind.
        draw: function that draws a chart.
    """

    description: str
    options: list[str]
    draw: Draw


KINDS: dict[str, ChartKind] = {}
"""All kinds of charts, in the order in which pages show them."""

UNJUDGED = ("slice", "timeline", "edf", "compare")
"""Kinds of charts that do not depend on the mode of the metric."""

MOST_CURVES = 200
"""Maximum number of curves in a chart; the best trials are shown."""
MOST_TRIALS = 5_000
"""Maximum number of trials in a chart of points.

If the experiment has more trials, the latest trials are shown.
"""
MOST_LINES = 1_000
"""Maximum number of trials in parallel coordinates and for importances.

If the experiment has more trials, the latest trials are used.
"""

MOST_PAIRED = 300
"""Maximum number of trials in the scatter plots of pairs.

If the experiment has more trials, the latest trials and the best trial are shown.
"""
PAIRED = 4
"""Number of hyperparameters in the matrix of scatter plots, if the user chooses no hyperparameters."""
MAX_PAIRED = 12
"""Maximum number of hyperparameters and metrics in the matrix, because each pair of them is a plot."""

FEWEST = 4
"""Minimum number of trials for importances."""


def _kind(description: str, options: str = "metric mode") -> Callable[[Draw], Draw]:
    """Return a decorator that adds a function to `KINDS`.

    For example, the function `_history` draws the kind "history".
    """

    def add(draw: Draw) -> Draw:
        KINDS[draw.__name__.removeprefix("_")] = ChartKind(description, options.split(), draw)
        return draw

    return add


@_kind("values of all trials, and the best so far", "metric mode log_y")
def _history(source: Source) -> Figure:
    metric, mode = source.judged_by
    trials = source.scored(MOST_TRIALS)
    earlier = [each for each in source.values[: -len(trials.values)] if source.is_feasible(each[0])]
    return figures.history(
        trials,
        metric=metric,
        mode=mode,
        before=source.best_of(earlier)[1] if earlier else None,
        infeasible=[each for each in trials.trial_ids if not source.is_feasible(each)],
        states=source.reader.states(trials.trial_ids),
        log_y=source.options.log_y,
    )


@_kind("learning curves of the best trials", "metric mode x log_x log_y best")
def _curves(source: Source) -> Figure:
    (metric, mode), options = source.judged_by, source.options
    values = source.reader.last_values(metric)
    ranked = sorted(values, key=values.__getitem__, reverse=mode == "max")
    ranked.sort(key=source.is_feasible, reverse=True)
    most = sys.maxsize if source.is_whole else min(options.most, MOST_CURVES)
    lost = [trial_id for trial_id in source.reader.first(most) if trial_id not in values]
    return _lines(source, [*ranked, *lost][:most], min(options.best, len(ranked)))


def _lines(source: Source, trial_ids: Sequence[str], best: int) -> Figure:
    (metric, mode), options = source.judged_by, source.options
    lines = []
    for trial_id in trial_ids:
        points = source.reader.curve(trial_id, metric, options.x)
        if options.log_x or options.log_y:
            points = [
                (across, up)
                for across, up in points
                if (across > 0 or not options.log_x) and (up > 0 or not options.log_y)
            ]
        if points:
            lines.append(Line(trial_id, points))
    if not lines:
        raise source.reader.nothing(metric, options.x)
    return figures.curves(
        lines,
        metric=metric,
        mode=mode,
        x=options.x,
        best=best,
        log_x=options.log_x,
        log_y=options.log_y,
    )


@_kind("parallel coordinates", "metric mode params log_metric best")
def _parallel(source: Source) -> Figure:
    metric, mode = source.judged_by
    trials = source.scored(MOST_LINES, with_best=True)
    return parameter_figures.parallel(
        source.parameters(trials),
        trials,
        metric=metric,
        mode=mode,
        best=source.options.best if source.is_whole else 1,
        log_metric=source.options.log_y,
    )


@_kind("importance of each hyperparameter", "metric mode params method")
def _importances(source: Source) -> Figure:
    metric, mode = source.judged_by
    trials = source.scored(MOST_LINES)
    parameters = source.hyperparameters(trials)
    if len(trials.values) < FEWEST or len(set(trials.values)) < 2:
        raise ConfigError("importances need at least four trials with at least two different values")
    shares, method = importances(parameters, trials.values, mode, source.options.method)
    return parameter_figures.importances(shares, metric=metric, method=method)


@_kind("the metric over each hyperparameter", "metric mode params log_y columns")
def _slice(source: Source) -> Figure:
    metric, _ = source.judged_by
    trials = source.scored(MOST_LINES)
    return parameter_figures.slices(
        source.parameters(trials),
        trials,
        metric=metric,
        log_y=source.options.log_y,
        columns=min(max(source.options.columns, 1), 6),
    )


@_kind("the metric over two hyperparameters", "metric mode params")
def _contour(source: Source) -> Figure:
    metric, mode = source.judged_by
    trials = source.scored(MOST_LINES)
    parameters = source.parameters(trials)
    if len(parameters) < 2:
        raise ConfigError("a contour chart needs two hyperparameters that vary")
    across, up = parameters[:2]
    return parameter_figures.contour(across, up, trials, metric=metric, mode=mode)


@_kind("scatter plots of each pair of hyperparameters and metrics", "metric mode params more")
def _matrix(source: Source) -> Figure:
    metric, mode = source.judged_by
    trials = source.scored(MOST_PAIRED, with_best=True)
    columns = source.parameters(trials)
    if not source.options.params:
        columns = columns[:PAIRED]
    columns.append(parameter_figures.Parameter(metric, trials.values))
    more = [name for name in source.options.more if name != metric]
    if (count := len(columns) + len(more)) > MAX_PAIRED:
        raise ConfigError(
            f"{count} hyperparameters and metrics are too many to pair: choose at most {MAX_PAIRED}"
        )
    for name in more:
        values = source.reader.last_values(name)
        if not values:
            raise source.reader.nothing(name)
        columns.append(parameter_figures.Parameter(name, [values.get(each) for each in trials.trial_ids]))
    return parameter_figures.matrix(columns, trials, metric=metric, mode=mode)


@_kind("rungs of a scheduler", "metric mode bracket log_y")
def _rungs(source: Source) -> Figure:
    metric, mode = source.judged_by
    decisions, values = source.reader.judgements(metric)
    decisions = judgements(decisions)
    bracket, count = bracket_of(decisions, source.options.bracket)
    chosen = [each for each in decisions if each.get("bracket", 0) == bracket]
    levels = rungs_of(chosen, values, log_y=source.options.log_y)
    if not levels:
        raise source.reader.nothing(metric)
    return figures.rungs(
        levels,
        metric=metric,
        mode=mode,
        labels=labels_of(decisions, levels),
        name="" if count == 1 else f"bracket {bracket} of {count}",
        log_y=source.options.log_y,
    )


Way = dict[int, tuple[int, float]]
"""Maps each iteration of a trial to the number of reports in its weights' history and the reported value."""


def ways_of(
    grid: ResultGrid, metric: str, hyperparameter: str | None, exchanges: Sequence[Exchange], *, log_y: bool
) -> dict[str, Way]:
    """Return the path of each trial, which consists of the reports with a finite value."""
    ways: dict[str, Way] = {}
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
    """Return a path's points, divided at each copy of another trial's state, so that no line crosses the
    copy.
    """
    pieces: list[list[tuple[int, float]]] = [[]]
    left = sorted(cuts)
    for iteration in sorted(way):
        while left and iteration > left[0]:
            left.pop(0)
            pieces.append([])
        pieces[-1].append(way[iteration])
    return [piece for piece in pieces if piece]


def takeovers_of(ways: Mapping[str, Way], exchanges: Sequence[Exchange]) -> list[list[tuple[int, float]]]:
    """Return a line of the chart for each copy of a trial's state.

    The line goes from the donor's report to the next report of the trial that has copied the state.
    """
    lines = []
    for each in exchanges:
        donor, member = ways.get(each.donor or "", {}), ways.get(each.trial_id, {})
        since, after = each.donor_iteration or 0, each.iteration + 1
        if since in donor and after in member:
            lines.append([donor[since], member[after]])
    return lines


def winner_of(ways: Mapping[str, Way], stretches: Sequence[Stretch]) -> list[tuple[int, float]]:
    """Return the points of the reports whose training led to a trial's final weights."""
    return [
        point
        for stretch in stretches
        for iteration, point in sorted(ways.get(stretch.trial_id, {}).items())
        if stretch.first < iteration <= stretch.last
    ]


@_kind("origin of the weights in a population", "metric mode hyperparameter log_y")
def _lineage(source: Source) -> Figure:
    metric, mode = source.judged_by
    shown = next(iter(source.options.params), None)
    changes = source.reader.exchanges()
    exchanges = [each for each in changes if each.donor is not None]
    if not exchanges:
        raise ConfigError(
            "the experiment has no lineage to draw: no trial has taken over another's state. Set "
            "TuneConfig(scheduler=PopulationBasedTraining(...)), and wait for its perturbation_interval"
        )
    grid = source.grid
    ways = ways_of(grid, metric, shown, changes, log_y=source.options.log_y)
    pieces = [
        Line(trial_id, piece)
        for trial_id, way in ways.items()
        for piece in pieces_of(way, [each.iteration for each in exchanges if each.trial_id == trial_id])
    ]
    if not pieces:
        raise source.reader.nothing(shown or metric)
    values = source.reader.last_values(metric)
    best = (max if mode == "max" else min)(values, key=values.__getitem__, default=None)
    result = next((each for each in grid if each.trial_id == best), None)
    return figures.lineage(
        pieces,
        takeovers_of(ways, exchanges),
        [] if result is None else winner_of(ways, result.lineage()),
        shown=shown or metric,
        mode=None if shown else mode,
        exchanges=len(exchanges),
        log_y=source.options.log_y,
    )


def lanes(spans: Sequence[Span]) -> list[int]:
    """Return a row for each attempt, so that attempts in one row don't overlap; sort `spans` by start.

    In a simulated experiment, each row is a worker. In a real experiment, a row is reused: when a trial ends,
    the next trial that starts takes its row.
    """
    rows: list[int] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []  # Each pair consists of the end time of an attempt and its row.
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


@_kind("attempts of trials over time, by worker", "")
def _timeline(source: Source) -> Figure:
    every = source.reader.spans()
    if not every:
        raise ConfigError("the experiment has no timeline to draw: no trial has run")
    spans = source.latest(every, MOST_TRIALS)
    begin = 0.0 if spans[0].place[0] == SIMULATED else spans[0].started
    last = max([source.reader.last_date(), *(span.ended or span.started for span in spans)])
    return figures.timeline(
        [
            figures.Bar(
                span.trial_id,
                span.attempt,
                span.started - begin,
                (last if span.ended is None else span.ended) - begin,
                row,
                span.outcome,
            )
            for span, row in zip(spans, lanes(spans), strict=True)
        ]
    )


@_kind("the Pareto front of two objectives", "metric mode log_x log_y")
def _pareto(source: Source) -> Figure:
    objectives = source.objectives
    if len(objectives) != 2:
        raise ConfigError(
            "a Pareto front needs two metrics, but the objectives are "
            f"{[each.metric for each in objectives]}: pass two metrics"
        )
    columns = [source.reader.last_values(each.metric) for each in objectives]
    points = {
        trial_id: (float(value), float(columns[1][trial_id]))
        for trial_id, value in columns[0].items()
        if trial_id in columns[1]
    }
    x, y = (each.metric for each in objectives)
    front = source.front(points) if points else []
    if not front:
        raise source.reader.nothing(x, y)
    return figures.pareto(points, front, x=x, y=y, log_x=source.options.log_x, log_y=source.options.log_y)


@_kind("cumulative share of trials over the metric")
def _edf(source: Source) -> Figure:
    metric, _ = source.judged_by
    return figures.edf({source.folder.name: source.scored(100_000).values}, metric=metric)


@_kind("learning curves of chosen trials", "metric mode trials x log_x log_y")
def _compare(source: Source) -> Figure:
    if not source.options.trials:
        form = "[ID, ID]" if source.is_whole else "ID,ID"
        raise ConfigError(f"the chart needs trials to compare: pass trials={form}")
    known = source.reader.numbers(source.options.trials)
    unknown = [trial_id for trial_id in source.options.trials if trial_id not in known]
    if unknown:
        raise ConfigError(f"the experiment has no trial {unknown[0][:60]!r}")
    return _lines(source, source.options.trials[:MOST_CURVES], len(source.options.trials))
