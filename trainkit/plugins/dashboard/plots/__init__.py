"""Plots of an experiment, with matplotlib, which is imported for the first plot.

Figures are made without pyplot, so no global state changes, no window opens, and no display is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError, did_you_mean
from trainkit.tune.core.checks import load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trainkit.tune.results.result_grid import ResultGrid

KINDS = {
    "curves": ("curves:draw_curves", "learning curves"),
    "lineage": ("lineage:draw_lineage", "where the members of a population got their weights"),
    "parallel": ("parallel:draw_parallel", "parallel coordinates"),
    "pareto": ("parallel:draw_pareto", "the Pareto front of two objectives"),
    "rungs": ("rungs:draw_rungs", "rungs of a scheduler"),
    "timeline": ("curves:draw_timeline", "workers against time"),
}
"""Module, function and content of each kind of plot."""
_SPELLINGS = {
    "learning curves": "curves",
    "learning_curves": "curves",
    "parallel coordinates": "parallel",
    "parallel_coordinates": "parallel",
}


def plot(grid: ResultGrid, kind: str, *, ax: Axes | None = None, **options: Any) -> Figure:
    """Draw `grid`; see `ResultGrid.plot`, and the function of each kind for its options.

    Raises:
        ConfigError: the kind or an option is unknown.
        MetricError: no trial reported the metric.
        MissingDependencyError: matplotlib is not installed.
    """
    name = _SPELLINGS.get(kind, kind)
    if name not in KINDS:
        kinds = ", ".join(f"{known!r} ({what})" for known, (_, what) in KINDS.items())
        raise ConfigError(f"plot(kind={kind!r}): the kinds are {kinds}")
    load("matplotlib.figure", "plots", "tune")
    module, _, function = KINDS[name][0].partition(":")
    draw = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    known = [each for each in draw.__kwdefaults__ if each != "ax"]
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known, cutoff=0.6)
            raise ConfigError(f"plot({name!r}, {option}=...): the options are {', '.join(known)}.{hint}")
    figure: Figure = draw(grid, ax=ax, **options)
    return figure
