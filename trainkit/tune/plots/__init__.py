"""Pictures of an experiment, with matplotlib: a kind each in a file of its own, loaded when it is drawn.

A figure is made without pyplot: nothing global changes, no window opens, and it works without a display.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trainkit.tune.results.result_grid import ResultGrid

KINDS = {
    "curves": "learning curves",
    "lineage": "where the members of a population got their weights",
    "parallel": "parallel coordinates",
    "pareto": "the Pareto front of two objectives",
    "rungs": "rungs of a scheduler",
    "timeline": "workers against time",
}
"""By name, which is that of its file too, what a kind is."""
_SPELLINGS = {
    "learning curves": "curves",
    "learning_curves": "curves",
    "parallel coordinates": "parallel",
    "parallel_coordinates": "parallel",
}


def plot(grid: ResultGrid, kind: str, *, ax: Axes | None = None, **options: Any) -> Figure:
    """Draw `grid`; see `ResultGrid.plot`, and the function `draw` of the kind's file for its options.

    Raises:
        ConfigError: there is no such kind or option.
        MetricError: no trial reported the metric.
        MissingDependencyError: matplotlib is not installed.
    """
    name = _SPELLINGS.get(kind, kind)
    if name not in KINDS:
        kinds = ", ".join(f"{known!r} ({what})" for known, what in KINDS.items())
        raise ConfigError(f"plot(kind={kind!r}): the kinds are {kinds}")
    load("matplotlib.figure", "plots", "tune")
    draw = importlib.import_module(f"{__name__}.{name}").draw
    known = [each for each in draw.__kwdefaults__ if each != "ax"]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            raise ConfigError(
                f"plot({name!r}, {option}=...): the options are {', '.join(known)}"
                + (f". Did you mean {near[0]!r}?" if near else "")
            )
    figure: Figure = draw(grid, ax=ax, **options)
    return figure
