"""Results as text and HTML for a prompt and a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.tune.controller.rules import AUTOMATIC
from trainkit.tune.core.objectives import trial_score
from trainkit.tune.core.values import flatten, lookup

if TYPE_CHECKING:
    from trainkit.tune.results.result import Result
    from trainkit.tune.results.result_grid import ResultGrid

MAX_ROWS = 10
"""Of the table of a grid; the rest is counted."""
MAX_WIDTH = 40
"""Characters of one value."""


def result_text(result: Result) -> str:
    """A trial in a few lines: status, configuration, last report."""
    return "\n".join(
        [f"Result({result.trial_id}", *(f"  {name}: {text}" for name, text in _facts(result)), ")"]
    )


def result_html(result: Result) -> str:
    """The same as a table."""
    return _table(["", result.trial_id], [[name, text] for name, text in _facts(result)])


def grid_text(grid: ResultGrid) -> str:
    """An experiment in one line, and its best trials in one each."""
    head = f"{type(grid).__name__}({_counts(grid)}, in {grid.experiment_path})"
    names, rows = _rows(grid)
    if not rows:
        return head
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [names, *rows]
    ]
    return "\n".join([head, *lines, *_rest(grid)])


def grid_html(grid: ResultGrid) -> str:
    """The same as a table."""
    head = f"<p><b>{_counts(grid)}</b> in <code>{html.escape(grid.experiment_path)}</code></p>"
    rest = "".join(f"<p>{html.escape(line)}</p>" for line in _rest(grid))
    return f"{head}{_table(*_rows(grid))}{rest}"


def _facts(result: Result) -> Iterable[tuple[str, str]]:
    yield "status", f"{result.status} ({result.reason})" if result.reason else str(result.status)
    if result.ranked_by:
        yield "best by", f"{result.metric}, {result.mode}, scope={result.ranked_by!r}"
    yield "config", _pairs(flatten(result.config))
    yield "metrics", _pairs(_reported(result.metrics))
    if result.path:
        yield "path", result.path


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items()) or "none"


def _reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in metrics.items() if key not in AUTOMATIC}
    return {**flatten(own), **{key: metrics[key] for key in ("training_iteration",) if key in metrics}}


def _counts(grid: ResultGrid) -> str:
    counts = [f"{len(grid)} trial{'s' * (len(grid) != 1)}", f"{grid.num_terminated} terminated"]
    if grid.num_errors:
        counts.append(f"{grid.num_errors} failed")
    if grid.num_unfinished:
        counts.append(f"{grid.num_unfinished} unfinished")
    return ", ".join(counts)


def _rows(grid: ResultGrid) -> tuple[list[str], list[list[str]]]:
    """The columns' names, and the best trials by their last report; without a metric the first ones."""
    shown = _best_first(grid)[:MAX_ROWS]
    configs = [flatten(result.config) for result in shown]
    varied = [
        name
        for name in dict.fromkeys(name for config in configs for name in config)
        if len({repr(config.get(name)) for config in configs}) > 1
    ]
    names = ["trial", "status", *([grid.metric] if grid.metric else []), "iteration", *varied]
    rows = []
    for result, config in zip(shown, configs, strict=True):
        metric = [_short(lookup(result.metrics, grid.metric))] if grid.metric else []
        iteration = _short(result.metrics.get("training_iteration", 0))
        values = [_short(config[name]) if name in config else "" for name in varied]
        rows.append([result.trial_id, str(result.status), *metric, iteration, *values])
    return names, rows


def _best_first(grid: ResultGrid) -> Sequence[Result]:
    metric, mode = grid.metric, grid.mode
    if metric is None or mode is None:
        return list(grid)

    def score(result: Result) -> float:
        found = trial_score([result.metrics], metric, mode, "last", keep_all=False)
        return -math.inf if found is None else found

    return sorted(grid, key=score, reverse=True)


def _rest(grid: ResultGrid) -> list[str]:
    by = f", best last {grid.metric} ({grid.mode}) first" if grid.metric and grid.mode else ""
    return [f"{min(MAX_ROWS, len(grid))} of {len(grid)} trials{by}"] if len(grid) else []


def _short(value: Any) -> str:
    text = (
        "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value).replace("\n", " ")
    )
    return text if len(text) <= MAX_WIDTH else f"{text[: MAX_WIDTH - 3]}..."


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
