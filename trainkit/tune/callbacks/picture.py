"""A few lines and a table, and how they look in a terminal, in a notebook and as plain text. Pure."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainkit.resources import describe_use
from trainkit.tune.callbacks.standing import (
    Standing,
    config_words,
    duration,
    number_words,
    one_line,
    short_reason,
)
from trainkit.tune.trial import Trial
from trainkit.tune.values import lookup

if TYPE_CHECKING:
    from rich.console import RenderableType


METRIC = "metric"
COLUMNS = {
    "trial": 10,
    "status": 10,
    "iteration": 9,
    METRIC: 10,
    "seconds": 7,
    "parameters": 10,
    "why": 10,
}
"""Of the table of trials, with the width that each keeps in a narrow terminal."""


@dataclass(frozen=True)
class Picture:
    """What is to be shown.

    Attributes:
        lines: above the table.
        columns: their names, with the width that each keeps in a narrow terminal.
        rows: texts, one for each column.
        below: a line below the table; "": none.
        strong: the line of `lines` that matters most; None: none does.
    """

    lines: Sequence[str]
    columns: Mapping[str, int]
    rows: Sequence[Sequence[str]]
    below: str = ""
    strong: int | None = None


def picture_of(standing: Standing, info: Mapping[str, Any], path: str, ending: str = "") -> Picture:
    """The experiment as the console shows it.

    Args:
        standing: of the experiment.
        info: what callbacks hear at a step's end.
        path: of the experiment's folder; "": it is not kept.
        ending: why it has ended; "" while it runs.
    """
    now, total = info["time"], info["total_samples"]
    left = info.get("remaining_s")
    clock = f"{duration(now - standing.started)} gone"
    if ending:
        clock = f"ended after {duration(now - standing.started)}: {ending}"
    elif left:
        clock += f", about {duration(left)} left"
    lines = [
        clock,
        standing.progress_words(total),
        f"in use: {describe_use(info['resources_used'], info['resources'])}",
        f"kept in {path or 'memory'}",
    ]
    best = standing.best
    if words := standing.best_config_words():
        lines.append(words)
    if ending and (failed := standing.failed_words(path)):
        lines.append(failed)
    shown = standing.shown(ended=bool(ending))
    below = f"{len(shown)} of {standing.created} trials"
    if best is not None:
        below += f", best last {standing.metric} ({standing.mode}) first"
    table = [_cells(trial, standing.metric) for trial in shown]
    metric = standing.metric or ""
    idle = {METRIC if not metric else "", "" if any(row["parameters"] for row in table) else "parameters"}
    columns = [name for name in COLUMNS if name not in idle]
    if metric in COLUMNS and metric != METRIC:
        metric += " "  # a column beside ours of that name
    headings = {metric if name == METRIC else name: COLUMNS[name] for name in columns}
    return Picture(
        lines,
        headings,
        [[row[name] for name in columns] for row in table],
        below=below if best is not None or len(shown) < standing.created else "",
        strong=4 if best is not None else None,
    )


def _cells(trial: Trial, metric: str | None) -> dict[str, str]:
    result = trial.last_result
    seconds = number_words(result.get("time_total_s"))
    return {
        "trial": trial.trial_id,
        "status": str(trial.status),
        "iteration": str(trial.iteration or ""),
        METRIC: number_words(lookup(result, metric)) if metric else "",
        "seconds": f"{float(seconds):.1f}" if seconds else "",
        "parameters": config_words(trial.evaluated_params),
        "why": short_reason(trial.reason),
    }


def in_terminal(picture: Picture) -> RenderableType:
    """For rich: what is too wide is cut, the names and reasons first."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    # Each text says itself that it is not wrapped: columns that do are not narrowed, but left out.
    cell = partial(Text, no_wrap=True, overflow="ellipsis")
    for column, width in picture.columns.items():
        table.add_column(cell(one_line(column)), min_width=width)
    for row in picture.rows:
        table.add_row(*map(cell, map(one_line, row)))
    lines = [
        Text(one_line(line), style="bold" if place == picture.strong else "")
        for place, line in enumerate(picture.lines)
    ]
    return Group(*lines, table, *([Text(picture.below)] if picture.below else []))


def as_html(picture: Picture) -> str:
    """For a notebook."""
    lines = [
        f"<b>{html.escape(line)}</b>" if place == picture.strong else html.escape(line)
        for place, line in enumerate(picture.lines)
    ]
    head = "".join(f"<th style='text-align:left'>{html.escape(column)}</th>" for column in picture.columns)
    cells = [
        "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
        for row in picture.rows
    ]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    below = f"<div>{html.escape(picture.below)}</div>" if picture.below else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if picture.rows else ""
    return f"<div>{'<br>'.join(lines)}</div>{table}{below}"


def as_text(picture: Picture) -> str:
    """For where nothing else is understood: aligned columns."""
    text = list(map(one_line, picture.lines))
    if picture.rows:
        table = [[*map(one_line, row)] for row in [list(picture.columns), *picture.rows]]
        widths = [max(_places(row[place]) for row in table) for place in range(len(picture.columns))]
        text += [
            "  ".join(
                cell + " " * (width - _places(cell)) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in table
        ]
    return "\n".join([*text, *([picture.below] if picture.below else [])])


def _places(text: str) -> int:
    """How many characters wide a terminal shows it."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)
