"""`trainkit ls` and `trainkit show`: experiments in a folder, and trials as a table, CSV or JSON."""

from __future__ import annotations

import argparse
import csv
import io
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trainkit.cli import ALIASES, HELP, Command
from trainkit.cli.experiments import (
    add_experiment,
    experiment_folder,
    folder_of_experiments,
    is_experiment,
    near_experiment,
    whole_number,
)
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, StoreError, did_you_mean
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.constraints import VIOLATION
from trainkit.tune.core.metrics import encode, flatten, without_objects
from trainkit.tune.core.stoppers import AUTOMATIC
from trainkit.tune.core.trial import Trial
from trainkit.tune.display import Table, cell_text, duration, wide_console
from trainkit.tune.results.overview import Overview, experiments_in

Row = Mapping[str, Any]

_FIRST = ("trial_id", "state", "iteration")
MAX_WIDTH = 200
"""Maximum number of characters of a value in a printed table."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


class ListExperiments(Command):
    """`trainkit ls`."""

    help = HELP["ls"]
    aliases = ALIASES["ls"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", metavar="DIR", nargs="?", help="default: where experiments are written")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.folder is not None and is_experiment(arguments.folder):
            return show(arguments.folder, TableOptions())
        root = folder_of_experiments(arguments.folder)
        if not root.is_dir():
            near = "" if arguments.folder is None else near_experiment(arguments.folder)
            raise ConfigError(f"{root} is not a folder{near and f'.{near}'}")
        return list_experiments(root)


class Show(Command):
    """`trainkit show`."""

    help = HELP["show"]
    aliases = ALIASES["show"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_experiment(parser)
        parser.add_argument("--sort", metavar="COLUMNS", help="columns to sort by, separated by commas")
        parser.add_argument("--desc", dest="descending", action="store_true", help="sort in descending order")
        parser.add_argument(
            "--filter",
            dest="condition",
            metavar="CONDITION",
            help="condition of the shown rows, such as 'loss < 0.5' or 'state == failed'",
        )
        parser.add_argument(
            "--columns",
            metavar="COLUMNS",
            help="columns to show, separated by commas, such as trial_id,config/lr",
        )
        parser.add_argument("--limit", metavar="ROWS", type=whole_number, help="maximum number of rows")
        parser.add_argument("--output", "-o", metavar="FORM", help="csv, json, or a .csv or .json file")

    def run(self, arguments: argparse.Namespace) -> int:
        options = TableOptions(**{each.name: getattr(arguments, each.name) for each in fields(TableOptions)})
        return show(arguments.experiment, options)


def list_experiments(root: Path) -> int:
    """Print the experiments in the folder `root`; return 1 if an experiment can't be read."""
    found = experiments_in(root)
    now, rows, problems = SYSTEM.now(), [], []
    for path in found:
        try:
            seen = Overview.of(path, now, with_trials=False)
        except StoreError as error:
            problems.append(str(error))
            continue
        age = duration(max(0.0, now - seen.created))
        rows.append([path.name, seen.state, seen.counts, seen.best_words, age])
    columns = ["experiment", "state", "trials", "best by last report", "age"]
    wide_console().print(Table(columns, rows, [] if found else [f"{root} contains no experiment"]))
    sys.stderr.write("".join(f"trainkit: {problem}\n" for problem in problems))
    return 1 if problems else 0


@dataclass(frozen=True)
class TableOptions:
    """Options of `trainkit show`: the rows to show, their order, and the output format.

    Attributes:
        sort: columns to sort by, separated by commas; rows without a value come last.
        condition: condition on a column, such as "loss < 0.5" or "state == failed".
        columns: names of columns, separated by commas; None: the metric and the configuration.
        limit: maximum number of rows to show.
        descending: True sorts in descending order.
        output: "csv" or "json", or the name of a file with that extension; None: a printed table.
    """

    sort: str | None = None
    condition: str | None = None
    columns: str | None = None
    limit: int | None = None
    descending: bool = False
    output: str | None = None


def show(word: str, options: TableOptions) -> int:
    """Print the trials of the experiment `word`.

    Raises:
        ConfigError: the experiment or a column does not exist, or the condition is malformed.
    """
    overview = Overview.of(experiment_folder(word), SYSTEM.now())
    rows, columns = selected([row_of(trial) for trial in overview.trials], options, overview.metric)
    if options.output is None:
        _print_table(overview, rows, columns)
        return 0
    kind = options.output.rpartition(".")[2]
    if kind not in ("csv", "json"):
        raise ConfigError(f"--output must be csv, json, or a file with that ending, not {options.output}")
    text = as_csv(rows, columns) if kind == "csv" else as_json(rows, columns)
    if options.output == kind:
        sys.stdout.write(text)
    else:
        try:
            Path(options.output).write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigError(f"--output {options.output} cannot be written: {error}") from error
    return 0


def row_of(trial: Trial) -> dict[str, Any]:
    """Return all data of a trial, by column name."""
    reported = {
        name: value
        for name, value in flatten({k: v for k, v in trial.last_result.items() if k != "config"}).items()
        if name not in _FIRST
    }
    return {
        "trial_id": trial.trial_id,
        "state": trial.state,
        "iteration": trial.iteration,
        **reported,
        **{f"config/{name}": value for name, value in flatten(trial.config).items()},
        "status": str(trial.status),
        "failures": trial.failures,
        "attempt": trial.attempt,
        "name": trial.name,
        "folder": trial.dirname,
        "reason": trial.reason,
    }


def selected(
    rows: Sequence[Row], options: TableOptions, metric: str | None = None
) -> tuple[list[Row], list[str]]:
    """Return the rows and column names that `options` select."""
    known = list(dict.fromkeys(name for row in rows for name in row))
    if options.condition is not None:
        holds = _condition(options.condition, known)
        rows = [row for row in rows if holds(row)]
    # Each sort keeps the order of equal rows. So the first column, which is the most important, is sorted
    # last.
    for name in reversed(_names(options.sort, known)):
        rows = sorted(rows, key=lambda row, name=name: _rank(row.get(name)), reverse=options.descending)  # type: ignore[misc]
        rows = sorted(rows, key=lambda row, name=name: row.get(name) is None)  # type: ignore[misc]
    columns = _names(options.columns, known) or _default_columns(known, metric)
    return list(rows[: options.limit]), columns


def _default_columns(known: Sequence[str], metric: str | None) -> list[str]:
    reported = [
        name
        for name in known
        if not name.startswith("config/")
        and name not in AUTOMATIC
        and name not in (*_FIRST, "failures", "attempt", "name", "folder", "reason")
    ]
    shown = [metric] if metric in reported else reported[:4]
    shown += [VIOLATION] if VIOLATION in known else []
    config = [name for name in known if name.startswith("config/")][:6]
    return [*_FIRST, *filter(None, shown), *config, "reason"]


def _names(text: str | None, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in sorted({*names}.difference(known)) if known else ():
        raise ConfigError(f"there is no column {name!r}: use {', '.join(known)}.{did_you_mean(name, known)}")
    return names


def _condition(text: str, known: Sequence[str]) -> Callable[[Row], bool]:
    parts = re.fullmatch(r"\s*(.+?)\s*(<=|>=|==|!=|<(?!=)|>(?!=))\s*(\S.*?)\s*", text)
    if parts is None:
        raise ConfigError(f"--filter must be a column, one of < <= == != >= >, and a value, not {text!r}")
    name, sign, wanted = parts[1], parts[2], parts[3].strip("'\"")
    _names(name, known)
    try:
        number = float(wanted)
    except ValueError:
        number = None

    def holds(row: Row) -> bool:
        value = row.get(name)
        compared = (value, number) if number is not None and is_number(value) else (str(value), wanted)
        return value is not None and _COMPARE[sign](*compared)

    return holds


def _rank(value: Any) -> tuple[int, float, str]:
    """Return a sort key for `value`. Numbers come first, then NaN, then strings."""
    if is_number(value):
        return (0, float(value), "") if value == value else (1, 0.0, "")
    return (2, 0.0, str(value))


# --- output ---------------------------------------------------------------------------------------


def as_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return CSV text with a header line and a line for each row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return a JSON list of objects; values that JSON does not support become strings."""
    shown = [{name: without_objects(row[name]) for name in columns if name in row} for row in rows]
    return "[" + ",\n ".join(map(encode, shown)) + "]\n"


def _print_table(overview: Overview, rows: Sequence[Row], columns: Sequence[str]) -> None:
    total = "" if overview.total is None else f" of {overview.total}"
    words, left = overview.best_words, overview.remaining_s
    lines = [
        f"{overview.folder}: {overview.state}",
        f"{len(overview.trials)}{total} trials: {overview.counts}",
        *([f"best by last report: {words}"] if words else []),
        *([f"{len(rows)} of them are shown"] if len(rows) < len(overview.trials) else []),
        *([f"about {duration(left)} left"] if left is not None else []),
    ]
    cells = [[cell_text(row.get(column), MAX_WIDTH) for column in columns] for row in rows]
    wide_console().print(Table(columns, cells, lines, strong=0))
