"""Charts of a running or finished experiment, drawn from data in the experiment's file.

Work that grows with the number of reports is done by SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trainkit.plugins.dashboard.experiments.reading import NotFoundError, RowReader
from trainkit.plugins.integrations.hyperparameters import hyperparameters_of
from trainkit.plugins.plots import figures
from trainkit.plugins.plots.figures import Figure
from trainkit.plugins.plots.kinds import FEWEST, KINDS, UNJUDGED
from trainkit.plugins.plots.source import Options, Source
from trainkit.tune.results.reading import known_objectives, metric_and_mode

LOOKED_AT = 200
"""Number of trials that are read to find out which hyperparameters vary."""


def chart(folder: Path, kind: str, query: Mapping[str, str]) -> Figure:
    """Draw a chart of the experiment in `folder`, as a Plotly figure.

    Args:
        folder: folder of the experiment; another process may be running the experiment.
        kind: one of `KINDS`.
        query: options of the chart as strings; see `Options`.

    Returns:
        {"data": traces, "layout": ...}, which contains only values that JSON supports.

    Raises:
        NotFoundError: the kind is unknown.
        ConfigError: an option is unknown, or the experiment has no data for this kind.
        MetricError: no trial has reported the metric.
        MissingDependencyError: the chart shows importances, and a package for them is not installed.
        StoreError: the experiment does not exist, or its file is damaged.
    """
    if kind not in KINDS:
        raise NotFoundError(f"{kind[:100]!r} is not a chart: choose one of {', '.join(KINDS)}")
    options = Options.of(query)
    with _opened(folder) as reader:
        source = Source(folder, reader, reader.facts(), options)
        figure = KINDS[kind].draw(source)
        if source.assumed and kind not in UNJUDGED:
            figures.say(figure, "; ".join(map(_assumption, source.assumed.items())))
        return figure


def _assumption(assumed: tuple[str, str]) -> str:
    metric, mode = assumed
    return f"{metric} has no mode: {'smaller' if mode == 'min' else 'larger'} values count as better"


def available(folder: Path) -> list[str]:
    """Return the kinds of charts that can be drawn from the present data, in the order of `KINDS`.

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
