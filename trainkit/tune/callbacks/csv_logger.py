"""For each trial `progress.csv`: a row per report, a column per flattened key; late keys widen the table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from trainkit.tune.callbacks.logger import LoggerCallback
from trainkit.tune.trial import Trial
from trainkit.tune.values import flatten

FILENAME = "progress.csv"
_LONGEST = 2**31 - 1
"""Characters of a cell that is read back; the csv module's own limit is less than a text may have."""
_AS_TEXT: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}


class CSVLoggerCallback(LoggerCallback):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._columns: dict[str, list[str]] = {}
        """By trial, the header of the table that is there."""

    def log_trial_results(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        path = self.trial_dir(trial) / FILENAME
        rows = list(map(flatten, results))
        with open(path, "a+", **_AS_TEXT) as file:
            columns = self._columns.pop(trial.trial_id, None) or _header(file)
            more = _further_keys(columns, rows)
            late = bool(columns and more)
            columns = columns + more
            if not late:
                lines = _cells(rows, columns)
                csv.writer(file).writerows([columns, *lines] if more else lines)
        if late:
            _widen(path, columns, rows)
        self._columns[trial.trial_id] = columns  # only now: what could not be written is looked at again

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self._columns.pop(trial.trial_id, None)

    def length(self, trial: Trial) -> int:
        try:
            data = (self.trial_dir(trial) / FILENAME).read_bytes()
        except FileNotFoundError:
            return 0
        return max(0, _whole_rows(data) - 1)

    def rewrite(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        rows = list(map(flatten, results))
        columns = _further_keys([], rows)
        _write(self.trial_dir(trial) / FILENAME, columns, _cells(rows, columns))


def _further_keys(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of `rows` that are none of `columns`, in order of appearance."""
    known = set(columns)
    return list(
        dict.fromkeys(key for row in rows if not row.keys() <= known for key in row if key not in known)
    )


def _cells(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[Any]]:
    return [[row.get(column, "") for column in columns] for row in rows]


def _whole_rows(data: bytes) -> int:
    """How many rows have an end; one may have ends of lines in its quoted cells too."""
    if b'"' not in data:
        return data.count(b"\n")
    rows, quoted = 0, False
    for line in data.splitlines(keepends=True):
        quoted ^= line.count(b'"') % 2 == 1
        rows += line.endswith(b"\n") and not quoted
    return rows


def _header(file: TextIO) -> list[str]:
    """The columns of the table that is there; [] if there is none yet."""
    file.seek(0)
    return next(csv.reader(file), [])


def _widen(path: Path, columns: Sequence[str], more: Sequence[Mapping[str, Any]]) -> None:
    """Give the table these columns, of which it has the first, and further rows."""
    before = csv.field_size_limit(_LONGEST)
    try:
        with open(path, **_AS_TEXT) as file:
            _, *rows = csv.reader(file)
    finally:
        csv.field_size_limit(before)
    wide = [row + [""] * (len(columns) - len(row)) for row in rows]
    _write(path, columns, wide + _cells(more, columns))


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f"{path.name}.partial")
    with open(aside, "w", **_AS_TEXT) as file:
        if columns:
            csv.writer(file).writerows([columns, *rows])
    aside.rename(path)
