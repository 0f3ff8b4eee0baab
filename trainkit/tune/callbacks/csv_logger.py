"""For each trial `progress.csv`: a row per report, a column per flattened key; late keys widen the table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from trainkit.tune.callbacks.logger import LoggerCallback
from trainkit.tune.trial import Trial
from trainkit.tune.values import flatten

FILENAME = "progress.csv"
_AS_TEXT: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}


@dataclass
class _Table:
    """An open file and its columns."""

    file: TextIO
    columns: list[str]
    known: set[str]


class CSVLoggerCallback(LoggerCallback):
    """See the module."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}

    def log_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> None:
        path = self.trial_dir(trial) / FILENAME
        row = flatten(result)
        table = self._tables.get(trial.trial_id)
        if table is None:
            table = self._tables[trial.trial_id] = _open(path, list(row))
        if not row.keys() <= table.known:
            table.file.close()
            table = self._tables[trial.trial_id] = _widen(
                path, [key for key in row if key not in table.known]
            )
        csv.writer(table.file).writerow([row.get(column, "") for column in table.columns])
        table.file.flush()

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        table = self._tables.pop(trial.trial_id, None)
        if table is not None:
            table.file.close()

    def length(self, trial: Trial) -> int:
        path = self.trial_dir(trial) / FILENAME
        return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0

    def rewrite(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        rows = [flatten(result) for result in results]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        _write(
            self.trial_dir(trial) / FILENAME, columns, [[row.get(key, "") for key in columns] for row in rows]
        )


def _open(path: Path, columns: list[str]) -> _Table:
    """Go on with the file that is there, or begin one with these columns."""
    file = open(path, "a+", **_AS_TEXT)  # noqa: SIM115 - until the trial ends
    file.seek(0)
    header = next(csv.reader(file), None)
    if not header:
        header = columns
        csv.writer(file).writerow(header)
    file.seek(0, 2)
    return _Table(file, header, set(header))


def _widen(path: Path, more: list[str]) -> _Table:
    with open(path, **_AS_TEXT) as file:
        header, *rows = csv.reader(file)
    _write(path, [*header, *more], [row + [""] * len(more) for row in rows])
    return _open(path, [])


def _write(path: Path, columns: list[str], rows: list[list[Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f"{path.name}.partial")
    with open(aside, "w", **_AS_TEXT) as file:
        if columns:
            csv.writer(file).writerows([columns, *rows])
    aside.rename(path)
