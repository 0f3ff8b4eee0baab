"""Results as tables, for a prompt and for a notebook; made from what is in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainkit.tune.controller.rules import AUTOMATIC
from trainkit.tune.core.objectives import trial_score
from trainkit.tune.core.values import flatten, lookup
from trainkit.tune.display import Table, cell_text, count_words, pairs_text

if TYPE_CHECKING:
    from trainkit.tune.results.result import Result
    from trainkit.tune.results.result_grid import ResultGrid

MAX_ROWS = 10
"""Trials in the table of a grid."""
MAX_WIDTH = 40
"""Characters of one value."""


def result_text(result: Result) -> str:
    """Return a trial in a few lines: status, configuration, last report."""
    facts = (f"  {name}: {text}" for name, text in _facts(result))
    return "\n".join([f"Result({result.trial_id}", *facts, ")"])


def result_html(result: Result) -> str:
    """Return a trial as a table of status, configuration and last report."""
    return Table(["", result.trial_id], _facts(result)).html()


def grid_table(grid: ResultGrid) -> Table:
    """Return the best trials of an experiment by their last reports; the first ones without a metric."""
    counts = [count_words(len(grid), "trial"), f"{grid.num_terminated} terminated"]
    counts += [f"{grid.num_errors} failed"] if grid.num_errors else []
    counts += [f"{grid.num_unfinished} unfinished"] if grid.num_unfinished else []
    shown = _best_first(grid)[:MAX_ROWS]
    configs = [flatten(result.config) for result in shown]
    varied = [
        name
        for name in dict.fromkeys(name for config in configs for name in config)
        if len({repr(config.get(name)) for config in configs}) > 1
    ]
    rows = []
    for result, config in zip(shown, configs, strict=True):
        metric = [lookup(result.metrics, grid.metric)] if grid.metric else []
        cells = [result.trial_id, str(result.status), *metric, result.metrics.get("training_iteration", 0)]
        rows.append([cell_text(value, MAX_WIDTH) for value in (*cells, *map(config.get, varied))])
    by = f", best last {grid.metric} ({grid.mode}) first" if grid.metric and grid.mode else ""
    return Table(
        ["trial", "status", *([grid.metric] if grid.metric else []), "iteration", *varied],
        rows,
        [f"{type(grid).__name__}({', '.join(counts)}, in {grid.experiment_path})"],
        below=f"{len(shown)} of {len(grid)} trials{by}" if shown else "",
        strong=0,
    )


def _facts(result: Result) -> list[tuple[str, str]]:
    metrics = result.metrics
    own = {name: value for name, value in metrics.items() if name not in AUTOMATIC}
    counted = {name: metrics[name] for name in ("training_iteration",) if name in metrics}
    facts = [("status", f"{result.status} ({result.reason})" if result.reason else str(result.status))]
    if result.ranked_by:
        facts.append(("best by", f"{result.metric}, {result.mode}, scope={result.ranked_by!r}"))
    facts.append(("config", pairs_text(flatten(result.config), MAX_WIDTH) or "none"))
    facts.append(("metrics", pairs_text({**flatten(own), **counted}, MAX_WIDTH) or "none"))
    return [*facts, ("path", result.path)] if result.path else facts


def _best_first(grid: ResultGrid) -> Sequence[Result]:
    metric, mode = grid.metric, grid.mode
    if metric is None or mode is None:
        return list(grid)

    def score(result: Result) -> float:
        found = trial_score([result.metrics], metric, mode, "last", keep_all=False)
        return -math.inf if found is None else found

    return sorted(grid, key=score, reverse=True)
