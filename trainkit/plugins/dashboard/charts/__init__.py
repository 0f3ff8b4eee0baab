"""Charts of a running or finished experiment, drawn from data in the experiment's file.

SQLite does the work that grows with the number of reports. `results.plot` draws the charts with Matplotlib.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.errors import ConfigError, MetricError, did_you_mean
from trainkit.plugins.dashboard.charts import figures, parameter_figures
from trainkit.plugins.dashboard.charts.figures import Figure, Line, Scored
from trainkit.plugins.dashboard.charts.parameter_figures import Parameter
from trainkit.plugins.dashboard.experiments.courses import (
    bracket_of,
    judgements,
    labels_of,
    lanes,
    pieces_of,
    rungs_of,
    takeovers_of,
    ways_of,
    winner_of,
)
from trainkit.plugins.dashboard.experiments.reading import RowReader
from trainkit.tune.core.checks import require_one_of
from trainkit.tune.core.objectives import Objective, front_of
from trainkit.tune.results.hyperparameters import Hyperparameter, hyperparameters_of, importances
from trainkit.tune.results.reading import known_objectives, metric_and_mode
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.store.reader import SIMULATED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainkit.tune.core.lineage import Exchange
    from trainkit.tune.store.reader import Span

KINDS = {
    "history": "values of all trials, and the best so far",
    "curves": "learning curves of the best trials",
    "parallel": "parallel coordinates",
    "importances": "importance of each hyperparameter",
    "slice": "the metric over each hyperparameter",
    "contour": "the metric over two hyperparameters",
    "matrix": "each two of the hyperparameters and metrics",
    "rungs": "rungs of a scheduler",
    "lineage": "where the members of a population got their weights",
    "timeline": "workers against time",
    "pareto": "the Pareto front of two objectives",
    "edf": "share of the trials up to each value",
    "compare": "learning curves of chosen trials",
}
"""Description of each kind of chart."""

UNJUDGED = ("slice", "timeline", "edf", "compare")
"""Kinds of charts that do not rank trials."""

MOST_CURVES = 200
"""Maximum number of curves in a chart; the best trials are shown."""
MOST_TRIALS = 5_000
"""Maximum number of trials in a chart of points; the latest are shown."""
MOST_LINES = 1_000
"""Maximum number of trials in parallel coordinates and for importances; the latest are used."""

MOST_PAIRED = 300
"""Maximum number of trials in each scatter plot of a pair; the latest and the best are shown."""
PAIRED = 4
"""Number of hyperparameters to pair by default."""
MAX_PAIRED = 12
"""Maximum number of hyperparameters and metrics to pair, because each pair is a plot."""

FEWEST = 4
"""Minimum number of trials for importances."""
LOOKED_AT = 200
"""Number of trials whose configurations are compared to find the hyperparameters that vary."""


@dataclass(frozen=True)
class Options:
    """Options of a chart, read from a URL's query.

    Attributes:
        metric, mode: metric and mode; "" means the experiment's own.
        x: horizontal axis of curves: "training_iteration", "time_total_s", or any reported number.
        log_x, log_y: True: use logarithmic axes.
        best: number of named trials in `curves` and `parallel`.
        most: maximum number of curves.
        trials: ids of the trials in `compare`.
        params: names of hyperparameters; empty means all that vary.
        bracket: bracket in `rungs`; None means the bracket with the most trials.
        method: method for `importances`: "forest" or "ped_anova"; "" means the first that is installed.
        columns: number of plots in a row of `slice`.
        more: further metrics in `matrix`.
    """

    metric: str = ""
    mode: str = ""
    x: str = "training_iteration"
    log_x: bool = False
    log_y: bool = False
    best: int = 8
    most: int = 100
    trials: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    bracket: int | None = None
    method: str = ""
    columns: int = 3
    more: tuple[str, ...] = ()

    @property
    def metrics(self) -> list[str]:
        """Names in `metric`, which contains several names for a Pareto front."""
        return [name for name in self.metric.split(",") if name]

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Options:
        """Return the options of a query.

        Raises:
            ConfigError: an option is unknown, or its value is invalid.
        """
        known = {name: field.type for name, field in cls.__dataclass_fields__.items()}
        chosen: dict[str, Any] = {}
        for name, value in query.items():
            if name not in known:
                raise ConfigError(
                    f"a chart has no option {name!r}: the options are {', '.join(known)}."
                    f"{did_you_mean(name, known, cutoff=0.6)}"
                )
            kind = str(known[name])
            if kind == "bool":
                require_one_of(name, value, ("0", "1"))
                chosen[name] = value == "1"
            elif kind.startswith("int"):
                if not (value.isascii() and value.isdecimal() and len(value) < 7):
                    raise ConfigError(f"{name}={value[:40]!r}: give a whole number from 0")
                chosen[name] = int(value)
            elif kind.startswith("tuple"):
                chosen[name] = tuple(dict.fromkeys(part for part in value.split(",") if part))
            else:
                chosen[name] = value
        made = cls(**chosen)
        if made.mode:
            require_one_of("mode", made.mode, ("min", "max"))
        return made


class ChartReader(Protocol):
    """Reader of an experiment's data for charts."""

    def last_values(self, metric: str) -> dict[str, float]:
        """Return the metric of each trial whose last report has a finite value, in the order suggested."""

    def numbers(self, trial_ids: Sequence[str]) -> dict[str, int]:
        """Return the index of each trial in the order suggested, by id; unknown ids are left out."""

    def first(self, count: int) -> list[str]:
        """Return the ids of the first `count` suggested trials."""

    def configs(self, trial_ids: Sequence[str]) -> list[Any]:
        """Return the configuration of each of these trials."""

    def curve(self, trial_id: str, metric: str, x: str) -> list[tuple[float, float]]:
        """Return (x, metric) of each report of a trial in which both are finite numbers, in order."""

    def judgements(self, metric: str) -> tuple[list[dict[str, Any]], dict[tuple[str, int], float]]:
        """Return the decisions made at rungs, and the values of the reports behind them."""

    def exchanges(self) -> list[Exchange]:
        """Return all later changes of trials' configurations, in order."""

    def spans(self) -> list[Span]:
        """Return all attempts with their times and outcomes, in the order of their starts."""

    def last_date(self) -> float:
        """Return the time up to which a running attempt is drawn at least, in seconds since 1970."""

    def nothing(self, *names: str) -> MetricError:
        """Return the error that explains why the metrics `names` have no value to draw."""


@dataclass
class Source:
    """Data for a chart: an open experiment, its settings, and the options of the chart.

    Attributes:
        folder: folder of the experiment.
        reader: open reader of the experiment.
        facts: facts about the experiment.
        options: options of the chart.
        is_whole: True: draw all trials, without a maximum number.
    """

    folder: Path
    reader: ChartReader
    facts: Mapping[str, Any]
    options: Options
    is_whole: bool = False
    assumed: dict[str, str] = field(default_factory=dict)
    """Modes that were assumed for metrics without a mode, by metric."""

    @property
    def modes(self) -> dict[str, str]:
        """Modes that the experiment defines, by metric."""
        usual, mode = metric_and_mode(self.facts)
        known = {each.metric: each.mode for each in known_objectives(self.facts)}
        if usual is not None and mode is not None:
            known[usual] = mode
        return known

    def mode_of(self, metric: str) -> str:
        """Return the mode for a metric: the query's, the experiment's, or an assumed one."""
        if (given := self.options.mode or self.modes.get(metric)) is None:
            given = self.assumed[metric] = metric_and_mode(self.facts)[1] or "min"
        return given

    @property
    def judged_by(self) -> tuple[str, str]:
        """Metric of the query, or else of the experiment, and its mode.

        Raises:
            ConfigError: neither the query nor the experiment names a metric.
        """
        objectives = [each.metric for each in known_objectives(self.facts)]
        usual = metric_and_mode(self.facts)
        metric = self.options.metric or usual[0] or next(iter(objectives), None)
        if metric is None:
            raise ConfigError("which metric is drawn? The experiment names none: choose one")
        return metric, self.mode_of(metric)

    @cached_property
    def values(self) -> list[tuple[str, float]]:
        """Trials with the metric in their last report, and its value, in the order suggested.

        Raises:
            MetricError: no trial has a value.
        """
        metric, _ = self.judged_by
        values = [
            (trial_id, float(value))
            for trial_id, value in self.reader.last_values(metric).items()
            if value > 0 or not self.options.log_y
        ]
        if not values:
            raise self.reader.nothing(metric)
        return values

    def latest(self, values: Sequence[Any], most: int) -> Sequence[Any]:
        """Return the last `most` values, or all of them if all trials are drawn."""
        return values if self.is_whole else values[-most:]

    def scored(self, most: int, *, with_best: bool = False) -> Scored:
        """Return the latest trials whose last report has the metric, in the order suggested.

        Args:
            most: maximum number of trials.
            with_best: include the best of all trials, even if it is an early one.

        Raises:
            MetricError: no trial has the metric.
        """
        values = self.latest(self.values, most)
        if with_best and (best := self.best_of(self.values)) not in values:
            values = [best, *values[1:]]
        trial_ids = [trial_id for trial_id, _ in values]
        numbers = self.reader.numbers(trial_ids)
        return Scored(
            trial_ids,
            [numbers[trial_id] for trial_id, _ in values],
            [value for _, value in values],
        )

    def best_of(self, values: Sequence[tuple[str, float]]) -> tuple[str, float]:
        """Return the best trial, the first of equal ones, with its value."""
        best = min if self.judged_by[1] == "min" else max
        return best(values, key=lambda each: each[1])

    @property
    def grid(self) -> ResultGrid:
        """Results of the experiment."""
        metric, mode = self.judged_by
        return ResultGrid.load(self.folder, metric=metric, mode=mode)

    @property
    def objectives(self) -> Sequence[Objective]:
        """Objectives of the query, or else of the experiment."""
        if names := self.options.metrics:
            # A metric's own mode takes precedence over the requested mode.
            return [Objective(name, self.modes.get(name) or self.mode_of(name)) for name in names]
        return known_objectives(self.facts)

    def front(self, points: Mapping[str, tuple[float, float]]) -> list[str]:
        """Return the ids of the trials that no other trial beats in both objectives."""
        ids, signs = list(points), [-1.0 if each.mode == "min" else 1.0 for each in self.objectives]
        return [ids[place] for place in front_of([(signs[0] * x, signs[1] * y) for x, y in points.values()])]

    def hyperparameters(self, trials: Scored) -> list[Hyperparameter]:
        """Return the requested hyperparameters, or all that vary.

        Raises:
            ConfigError: a requested hyperparameter does not vary or exist, or none varies.
        """
        found = hyperparameters_of(self.reader.configs(trials.trial_ids), self.facts.get("space"))
        by_name = {each.name: each for each in found}
        unknown = [name for name in self.options.params if name not in by_name]
        if not by_name:
            raise ConfigError("no hyperparameter varies in this experiment")
        if unknown:
            raise ConfigError(
                f"no hyperparameter {', '.join(map(repr, unknown))}: the hyperparameters that vary are "
                f"{', '.join(by_name)}"
            )
        return [by_name[name] for name in self.options.params] if self.options.params else found

    def parameters(self, trials: Scored) -> list[Parameter]:
        """Return the hyperparameters of `hyperparameters`, each with a value for every trial."""
        return [_parameter(each, len(trials.values)) for each in self.hyperparameters(trials)]


def chart(folder: Path, kind: str, query: Mapping[str, str]) -> Figure:
    """Draw a chart of the experiment in `folder`, as a Plotly figure.

    Args:
        folder: folder of the experiment, which another process may be running.
        kind: one of `KINDS`.
        query: options as strings, see `Options`.

    Returns:
        {"data": traces, "layout": ...}, with values that JSON supports.

    Raises:
        ConfigError: the kind or an option does not exist, or there is no data for this kind.
        MetricError: no trial has reported the metric.
        MissingDependencyError: importances need a package that is not installed.
        StoreError: the experiment does not exist, or its file is damaged.
    """
    if kind not in DRAWN:
        raise ConfigError(f"there is no chart {kind[:40]!r}: the kinds are {', '.join(DRAWN)}")
    options = Options.of(query)
    with _opened(folder) as reader:
        source = Source(folder, reader, reader.facts(), options)
        figure = DRAWN[kind](source)
        if source.assumed and kind not in UNJUDGED:
            figures.say(figure, "; ".join(map(_assumption, source.assumed.items())))
        return figure


def _assumption(assumed: tuple[str, str]) -> str:
    metric, mode = assumed
    return f"no mode is given for {metric}: {'smaller' if mode == 'min' else 'larger'} is taken as better"


def available(folder: Path) -> list[str]:
    """Return the kinds of charts that an experiment has data for now, in the order of `KINDS`.

    Raises:
        StoreError: the experiment does not exist, or its file is damaged.
    """
    with _opened(folder) as reader:
        facts = reader.facts()
        objectives = known_objectives(facts)
        metric = metric_and_mode(facts)[0] or next((each.metric for each in objectives), None)
        found = {"timeline"} if reader.has_run() else set()
        if metric is None or not reader.has_reports(metric):
            return [kind for kind in KINDS if kind in found]
        found |= {"history", "curves", "edf", "compare"}
        varied = hyperparameters_of(reader.configs(reader.first(LOOKED_AT)), facts.get("space"))
        found |= {"parallel", "slice", "matrix"} if varied else set()
        found |= {"contour"} if len(varied) > 1 else set()
        found |= {"importances"} if varied and reader.has_reports(metric, FEWEST) else set()
        found |= {"rungs"} if reader.has_judged() else set()
        found |= {"lineage"} if any(each.donor is not None for each in reader.exchanges()) else set()
        found |= {"pareto"} if len(objectives) == 2 and reader.has_reports(objectives[1].metric) else set()
    return [kind for kind in KINDS if kind in found]


@contextmanager
def _opened(folder: Path) -> Iterator[RowReader]:
    with RowReader(folder) as reader:
        reader.stand_still()
        yield reader


def _curves(source: Source) -> Figure:
    (metric, mode), options = source.judged_by, source.options
    values = source.reader.last_values(metric)
    ranked = sorted(values, key=values.__getitem__, reverse=mode == "max")
    most = sys.maxsize if source.is_whole else min(options.most, MOST_CURVES)
    lost = [trial_id for trial_id in source.reader.first(most) if trial_id not in values]
    return _lines(source, [*ranked, *lost][:most], min(options.best, len(ranked)))


def _compare(source: Source) -> Figure:
    if not source.options.trials:
        raise ConfigError(
            f"which trials are compared? Give trials={'[ID, ID]' if source.is_whole else 'ID,ID'}"
        )
    known = source.reader.numbers(source.options.trials)
    unknown = [trial_id for trial_id in source.options.trials if trial_id not in known]
    if unknown:
        raise ConfigError(f"the experiment has no trial {unknown[0][:60]!r}")
    return _lines(source, source.options.trials[:MOST_CURVES], len(source.options.trials))


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


def _history(source: Source) -> Figure:
    metric, mode = source.judged_by
    trials = source.scored(MOST_TRIALS)
    earlier = source.values[: -len(trials.values)]
    return figures.history(
        trials,
        metric=metric,
        mode=mode,
        before=source.best_of(earlier)[1] if earlier else None,
        log_y=source.options.log_y,
    )


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


def _contour(source: Source) -> Figure:
    metric, mode = source.judged_by
    trials = source.scored(MOST_LINES)
    parameters = source.parameters(trials)
    if len(parameters) < 2:
        raise ConfigError("contours need two hyperparameters that vary")
    across, up = parameters[:2]
    return parameter_figures.contour(across, up, trials, metric=metric, mode=mode)


def _matrix(source: Source) -> Figure:
    metric, mode = source.judged_by
    trials = source.scored(MOST_PAIRED, with_best=True)
    columns = source.parameters(trials)
    if not source.options.params:
        columns = columns[:PAIRED]
    columns.append(parameter_figures.Parameter(metric, trials.values))
    more = [name for name in source.options.more if name != metric]
    if len(columns) + len(more) > MAX_PAIRED:
        raise ConfigError(f"{len(columns) + len(more)} columns to pair: ask for {MAX_PAIRED} at most")
    for name in more:
        values = source.reader.last_values(name)
        if not values:
            raise source.reader.nothing(name)
        columns.append(parameter_figures.Parameter(name, [values.get(each) for each in trials.trial_ids]))
    return parameter_figures.matrix(columns, trials, metric=metric, mode=mode)


def _edf(source: Source) -> Figure:
    metric, _ = source.judged_by
    return figures.edf({source.folder.name: source.scored(100_000).values}, metric=metric)


def _importances(source: Source) -> Figure:
    metric, mode = source.judged_by
    trials = source.scored(MOST_LINES)
    parameters = source.hyperparameters(trials)
    if len(trials.values) < FEWEST or len(set(trials.values)) < 2:
        raise ConfigError("importances need four trials, with more than one value among them")
    shares, method = importances(parameters, trials.values, mode, source.options.method)
    return parameter_figures.importances(shares, metric=metric, method=method)


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
        name="" if count == 1 else f"bracket {bracket}, of {count}",
        log_y=source.options.log_y,
    )


def _lineage(source: Source) -> Figure:
    metric, mode = source.judged_by
    shown = next(iter(source.options.params), None)
    changes = source.reader.exchanges()
    exchanges = [each for each in changes if each.donor is not None]
    if not exchanges:
        raise ConfigError(
            "there is no lineage to draw: no trial has taken over the state of another. That comes with "
            "TuneConfig(scheduler=PopulationBasedTraining(...)), once trials have reached its "
            "perturbation_interval"
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


def _timeline(source: Source) -> Figure:
    every = source.reader.spans()
    if not every:
        raise ConfigError("there is no timeline to draw: no trial has run")
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


def _pareto(source: Source) -> Figure:
    objectives = source.objectives
    if len(objectives) != 2:
        raise ConfigError(
            f"a Pareto front has two axes, and the objectives are {[each.metric for each in objectives]}: "
            "give two metrics"
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


DRAWN: dict[str, Callable[[Source], Figure]] = {
    "history": _history,
    "curves": _curves,
    "parallel": _parallel,
    "importances": _importances,
    "slice": _slice,
    "contour": _contour,
    "matrix": _matrix,
    "rungs": _rungs,
    "lineage": _lineage,
    "timeline": _timeline,
    "pareto": _pareto,
    "edf": _edf,
    "compare": _compare,
}


def _parameter(each: Hyperparameter, count: int) -> Parameter:
    values = [each.values.get(place) for place in range(count)]
    if each.is_numeric:
        return Parameter(each.name, values, log=each.is_log, whole=each.is_whole)
    there = each.values.keys()
    return Parameter(
        each.name,
        [str(value) if place in there else None for place, value in enumerate(values)],
        choices=list(dict.fromkeys(map(str, each.choices))),
    )
