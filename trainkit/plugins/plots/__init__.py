"""Plots of an experiment with matplotlib, which is imported for the first plot.

Figures are made without pyplot, so that no global state changes, no window opens, and no display is needed.
The module `kinds` computes the charts, as for the dashboard, and the module `drawing` draws the charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError, MetricError, did_you_mean
from trainkit.plugins.plots import drawing, style
from trainkit.plugins.plots.kinds import KINDS, UNJUDGED
from trainkit.plugins.plots.rungs import CAME, JUDGED
from trainkit.plugins.plots.source import Options, Source
from trainkit.tune.core.checks import is_finite, load, require, require_one_of, require_whole
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.trial import state_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trainkit.tune.core.lineage import Exchange
    from trainkit.tune.core.objectives import Objective
    from trainkit.tune.results.result_grid import ResultGrid
    from trainkit.tune.store.reader import Span

_SPELLINGS = {
    "learning curves": "curves",
    "learning_curves": "curves",
    "parallel coordinates": "parallel",
    "parallel_coordinates": "parallel",
}
_LIBRARIES = {
    "matplotlib": ("matplotlib.figure", "plots", "tune"),
    "plotly": ("plotly.graph_objects", "plots", "notebook"),
}
BEST = 5
"""Number of trials with a colour and a name, if the user does not choose it."""


def plot(
    grid: ResultGrid, kind: str, *, ax: Axes | None = None, backend: str = "matplotlib", **options: Any
) -> Any:
    """Draw a chart of `grid` with Matplotlib or Plotly; see `ResultGrid.plot`.

    Raises:
        ConfigError: the kind or an option is unknown, or `grid` has no data for this kind.
        MetricError: no trial reported the metric.
        MissingDependencyError: matplotlib or plotly is not installed.
    """
    require_one_of("backend", backend, tuple(_LIBRARIES))
    if backend == "plotly":
        require(ax is None, "ax belongs to Matplotlib: leave out ax, or backend='plotly'")
    name = _SPELLINGS.get(kind, kind)
    if name not in KINDS:
        kinds = ", ".join(f"{known!r} ({what.description})" for known, what in KINDS.items())
        raise ConfigError(f"plot() has no kind {kind!r}: choose one of {kinds}")
    library = load(*_LIBRARIES[backend])
    known = KINDS[name].options
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known, cutoff=0.6)
            raise ConfigError(
                f"plot({name!r}) has no option {option!r}: choose from {', '.join(known)}.{hint}"
            )
    source = GridSource(grid, name, options)
    chart = KINDS[name].draw(source)
    if backend == "matplotlib":
        return drawing.draw(chart, ax)
    figure = library.Figure(chart["data"], chart["layout"])
    return figure.update_layout(title=chart["layout"]["meta"]["title"], template="simple_white")


class GridSource(Source):
    """Data for a chart, taken from results in memory or from an experiment of Ray Tune.

    Args:
        grid: results.
        kind: kind of the chart.
        given: options of the chart that the user has chosen.
    """

    def __init__(self, grid: ResultGrid, kind: str, given: Mapping[str, Any]) -> None:
        chosen = {name: value for name, value in given.items() if value is not None}
        for name in {"params", "more", "trials"} & chosen.keys():
            chosen[name] = (chosen[name],) if isinstance(chosen[name], str) else tuple(chosen[name])
        require_whole("columns", chosen.setdefault("columns", 3), 1)
        if kind == "pareto":
            self._front = chosen.pop("metric", None), chosen.pop("mode", None)
        elif kind not in UNJUDGED:
            chosen["metric"], chosen["mode"] = style.metric_of(grid, given.get("metric"), given.get("mode"))
        elif "mode" in chosen:
            require_one_of("mode", chosen["mode"], ("min", "max"))
        if "hyperparameter" in chosen:
            chosen["params"] = (chosen.pop("hyperparameter"),)
        if "log_metric" in chosen:
            chosen["log_y"] = chosen.pop("log_metric")
        require_whole("best", chosen.setdefault("best", BEST), 0)
        facts = {
            **grid.facts(),
            "objective": (grid.metric, grid.mode),
            "objectives": [(each.metric, each.mode) for each in grid.objectives],
        }
        reader = GridReader(grid)
        super().__init__(Path(grid.experiment_path), reader, facts, Options(**chosen), is_whole=True)
        self._grid = grid

    @property
    def grid(self) -> ResultGrid:
        """Results that are drawn."""
        return self._grid

    @property
    def objectives(self) -> Sequence[Objective]:
        """Objectives that the user has chosen, else the objectives of the experiment."""
        return self.grid.objectives_or(*self._front)

    def front(self, points: Mapping[str, tuple[float, float]]) -> list[str]:
        """Return the ids of the trials on the Pareto front, without failed trials."""
        return [result.trial_id for result in self.grid.pareto_front(*self._front)]


class GridReader:
    """Reader of results in memory or of an experiment of Ray Tune.

    Args:
        grid: results.
    """

    def __init__(self, grid: ResultGrid) -> None:
        self.grid = grid
        self._results = {result.trial_id: result for result in grid}
        self._read: dict[str, list[dict[str, Any]]] | None = None

    @property
    def _histories(self) -> dict[str, list[dict[str, Any]]]:
        if self._read is None:
            self._read = {result.trial_id: history for result, history in self.grid.histories()}
        return self._read

    def last_values(self, metric: str) -> dict[str, float]:
        """Map trial ids to finite last values of the metric, in the order of suggestion."""
        found = {trial_id: lookup(each.metrics or {}, metric) for trial_id, each in self._results.items()}
        return {trial_id: value for trial_id, value in found.items() if is_finite(value)}

    def numbers(self, trial_ids: Sequence[str]) -> dict[str, int]:
        """Map each trial id to the trial's number in the order of suggestion; unknown ids are left out."""
        order = {trial_id: place for place, trial_id in enumerate(self._results)}
        return {trial_id: order[trial_id] for trial_id in trial_ids if trial_id in order}

    def states(self, trial_ids: Sequence[str]) -> dict[str, str]:
        """Map trial ids to the states of the trials, such as "finished"."""
        results = ((trial_id, self._results[trial_id]) for trial_id in trial_ids)
        return {trial_id: state_of(result.status, result.reason) for trial_id, result in results}

    def first(self, count: int) -> list[str]:
        """Return the ids of the `count` trials that were suggested first."""
        return list(self._results)[:count]

    def configs(self, trial_ids: Sequence[str]) -> list[Any]:
        """Return the configurations of these trials."""
        return [self._results[trial_id].config for trial_id in trial_ids]

    def curve(self, trial_id: str, metric: str, x: str) -> list[tuple[float, float]]:
        """Return the pair (x, metric) for each report of a trial that contains both as finite numbers."""
        pairs = [(lookup(report, x), lookup(report, metric)) for report in self._histories.get(trial_id, [])]
        return [(float(across), float(up)) for across, up in pairs if is_finite(across) and is_finite(up)]

    def judgements(self, metric: str) -> tuple[list[dict[str, Any]], dict[tuple[str, int], Any]]:
        """Return the scheduler's decisions at rungs, and all reported values by trial id and iteration."""
        decisions = [each for each in self.grid.decisions() if each.get("rule") in (JUDGED, CAME)]
        return decisions, {
            (trial_id, report["training_iteration"]): lookup(report, metric)
            for trial_id, history in self._histories.items()
            for report in history
        }

    def exchanges(self) -> list[Exchange]:
        """Return all changes of trials' configurations during the experiment, in the order of time."""
        return self.grid.exchanges()

    def spans(self) -> list[Span]:
        """Return all attempts of trials with their times and outcomes, in the order of their starts."""
        return self.grid.timeline

    def last_date(self) -> float:
        """Return 0.0, so that running attempts are drawn up to the last start or end of any attempt."""
        return 0.0

    def nothing(self, *names: str) -> MetricError:
        """Return an error that says that no trial has a value of the metrics `names` to draw."""
        return style.nothing_to_draw(self.grid, *names)
