"""`trainkit show`: trials of an experiment as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.cli.experiments import experiment_folder
from trainkit.cli.sessions import duration, wide_console
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.stoppers import AUTOMATIC
from trainkit.tune.core.trial import Trial
from trainkit.tune.core.values import encode, flatten, without_objects
from trainkit.tune.results.overview import Overview

Row = Mapping[str, Any]

_FIRST = ("trial_id", "status", "iteration")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class TableOptions:
    """Which rows and columns are shown.

    Attributes:
        sort: columns, separated by commas; rows that lack one come last.
        condition: such as "loss < 0.5" or "status == ERROR".
        columns: names, separated by commas; None: the most telling.
        limit: rows at most.
        descending: the largest first.
        output: "csv" or "json", or a file whose name ends so; None: a table.
    """

    sort: str | None = None
    condition: str | None = None
    columns: str | None = None
    limit: int | None = None
    descending: bool = False
    output: str | None = None


def show(word: str, view: TableOptions) -> int:
    """Show the trials of the experiment that `word` means.

    Raises:
        ConfigError: there is no such experiment or column, or the condition can't be read.
    """
    overview = Overview.of(experiment_folder(word), SYSTEM.now())
    rows, columns = selected([row_of(trial) for trial in overview.trials], view, overview.metric)
    if view.output is None:
        _print_table(overview, rows, columns)
        return 0
    kind = view.output.rpartition(".")[2]
    if kind not in ("csv", "json"):
        raise ConfigError(f"--output {view.output}: give csv or json, or a file whose name ends so")
    text = as_csv(rows, columns) if kind == "csv" else as_json(rows, columns)
    if view.output == kind:
        sys.stdout.write(text)
    else:
        try:
            Path(view.output).write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigError(f"--output {view.output} cannot be written: {error}") from error
    return 0


def row_of(trial: Trial) -> dict[str, Any]:
    """All that can be shown of a trial, by column."""
    reported = {
        name: value
        for name, value in flatten({k: v for k, v in trial.last_result.items() if k != "config"}).items()
        if name not in _FIRST
    }
    return {
        "trial_id": trial.trial_id,
        "status": str(trial.status),
        "iteration": trial.iteration,
        **reported,
        **{f"config/{name}": value for name, value in flatten(trial.config).items()},
        "failures": trial.failures,
        "attempt": trial.attempt,
        "name": trial.name,
        "folder": trial.dirname,
        "reason": trial.reason,
    }


def selected(
    rows: Sequence[Row], view: TableOptions, metric: str | None = None
) -> tuple[list[Row], list[str]]:
    """Return the rows and columns that `view` shows; pure."""
    known = list(dict.fromkeys(name for row in rows for name in row))
    if view.condition is not None:
        holds = _condition(view.condition, known)
        rows = [row for row in rows if holds(row)]
    for name in reversed(_names(view.sort, known)):  # stable: the first named decides last
        rows = sorted(rows, key=lambda row, name=name: _rank(row.get(name)), reverse=view.descending)  # type: ignore[misc]
        rows = sorted(rows, key=lambda row, name=name: row.get(name) is None)  # type: ignore[misc]
    columns = _names(view.columns, known) or _telling(known, metric)
    return list(rows[: view.limit]), columns


def _telling(known: Sequence[str], metric: str | None) -> list[str]:
    reported = [
        name
        for name in known
        if not name.startswith("config/")
        and name not in AUTOMATIC
        and name not in (*_FIRST, "failures", "attempt", "name", "folder", "reason")
    ]
    shown = [metric] if metric in reported else reported[:4]
    config = [name for name in known if name.startswith("config/")][:6]
    return [*_FIRST, *filter(None, shown), *config, "reason"]


def _names(text: str | None, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if known and name not in known:
            raise ConfigError(f"there is no column {name!r}; there are {', '.join(known)}")
    return names


def _condition(text: str, known: Sequence[str]) -> Callable[[Row], bool]:
    parts = re.fullmatch(r"\s*(.+?)\s*(<=|>=|==|!=|<|>)\s*(.+?)\s*", text)
    if parts is None:
        raise ConfigError(f"--filter {text!r}: give a column, one of < <= == != >= >, and a value")
    name, sign, wanted = parts[1], parts[2], parts[3].strip("'\"")
    _names(name, known)
    try:
        number = float(wanted)
    except ValueError:
        number = None

    def holds(row: Row) -> bool:
        value = row.get(name)
        if value is None:
            return False
        if number is not None and is_number(value):
            return _COMPARE[sign](value, number)
        return _COMPARE[sign](str(value), wanted)

    return holds


def _rank(value: Any) -> tuple[int, float, str]:
    """Numbers before texts, NaN after all numbers."""
    if is_number(value):
        return (0, float(value), "") if value == value else (1, 0.0, "")
    return (2, 0.0, str(value))


# --- forms ----------------------------------------------------------------------------------------


def as_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """One line for each row, below the names of the columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A list of objects; what JSON has no word for is a text."""
    shown = [{name: without_objects(row[name]) for name in columns if name in row} for row in rows]
    return "[" + ",\n ".join(map(encode, shown)) + "]\n"


def _print_table(overview: Overview, rows: Sequence[Row], columns: Sequence[str]) -> None:
    from rich.table import Table

    console = wide_console()
    total = "" if overview.total is None else f" of {overview.total}"
    left = overview.remaining_s
    console.print(f"{overview.folder}: {overview.state}", style="bold", soft_wrap=True)
    console.print(f"{len(overview.trials)}{total} trials: {overview.counts}", soft_wrap=True)
    if words := overview.best_words:
        console.print(f"best by last report: {words}", soft_wrap=True)
    if left is not None:
        console.print(f"about {duration(left)} left")
    table = Table(box=None, header_style="dim")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())[:200]
