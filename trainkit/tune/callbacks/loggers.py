"""Loggers that write files for each trial: JSON, CSV, and policies of population based training."""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, TextIO

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.core.lineage import Exchange
from trainkit.tune.core.metrics import encode, flatten, storable_text
from trainkit.tune.core.trial import Trial
from trainkit.tune.schedulers.pbt.replay import GLOBAL_FILE, policy_file, policy_lines
from trainkit.tune.space.serialization import encode_config
from trainkit.tune.store.reader import ExperimentReader

_SMALL = 16_384
"""Number of bytes that the first read of a log requests.

If the first read returns fewer bytes, it has reached the end of the file.
"""
FLUSH_S = 1.0
"""Maximum seconds by which a log lags behind while its trial runs. The log of an ended trial is complete."""
MAX_KEPT = 5_000
"""Maximum number of buffered results of all trials together."""


class LoggerCallback(Callback):
    """Base class of loggers. When a trial runs again, its log is rewritten from the committed reports.

    Reports are buffered and passed to `log_trial_results` together, at most a second late. All reports of a
    trial are passed before `log_trial_end` is called. To receive each report at once, override
    `log_trial_result`.
    """

    # The double underscore mangles these names, so they can't collide with attributes of a subclass. The
    # attributes belong to the class, because a subclass need not call this constructor (as in Ray).
    __count = 0
    __due: float | None = None

    @functools.cached_property
    def __kept(self) -> dict[str, tuple[Trial, list[Mapping[str, Any]]]]:
        return {}

    # --- to override ------------------------------------------------------------------------------

    def log_trial_start(self, trial: Trial) -> None:
        """Called when a trial begins or is resumed."""

    def log_trial_restore(self, trial: Trial) -> None:
        """Called when a trial is about to run again, after its log was rewritten."""

    def log_trial_save(self, trial: Trial) -> None:
        """Called when a trial has a new checkpoint."""

    def log_trial_result(self, iteration: int, trial: Trial, result: Mapping[str, Any]) -> None:
        """Called when a trial has reported; by default buffers the report for `log_trial_results`.

        Args:
            iteration: step of the experiment's loop; the trial's own iteration is in the result.
            trial: trial that reported.
            result: report with the automatic keys, such as `training_iteration`.
        """
        kept = self.__kept.get(trial.trial_id)
        if kept is None:
            kept = self.__kept[trial.trial_id] = trial, []
        kept[1].append(result)
        self.__count += 1

    def log_trial_results(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Append these reports of a trial, oldest first, to its log."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Called when a trial has ended; an interrupted trial may start again later."""

    def _rewrite_log(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Replace the trial's log by these results."""

    def _flush_kept(self, trial: Trial | None = None) -> None:
        """Write buffered results of one trial or of all trials; an error does not affect the other trials."""
        kept = self.__kept
        names = list(kept) if trial is None else [trial.trial_id] if trial.trial_id in kept else []
        problem: Exception | None = None
        for name in names:
            of, results = kept.pop(name)
            self.__count -= len(results)
            try:
                self.log_trial_results(of, results)
            except Exception as error:
                problem = problem or error
        if not kept:
            self.__due = None
        if problem is not None:
            raise problem

    # --- what the experiment calls ----------------------------------------------------------------

    @property
    def _refresh_s(self) -> float | None:  # type: ignore[override]  # needed only while results are buffered
        """Maximum seconds until the next call of `on_step_end` if no event occurs."""
        return FLUSH_S if self.__kept else None

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self._flush_kept(trial)
        self.log_trial_end(trial)
        self._rewrite_log(trial, info["results"])
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_save(trial)

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self._flush_kept(trial)

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.__end(trial, info, failed=False)

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.__end(trial, info, failed=True)

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        if not self.__kept:
            return
        if self.__due is None:
            self.__due = info["time"] + FLUSH_S
        elif info["time"] >= self.__due or self.__count > MAX_KEPT:
            self.__due = None
            self._flush_kept()

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        try:
            self._flush_kept()
        finally:
            for trial in trials:
                if not trial.status.is_finished:
                    self.log_trial_end(trial)

    def __end(self, trial: Trial, info: Mapping[str, Any], *, failed: bool) -> None:
        try:
            self._flush_kept(trial)
        finally:
            self.log_trial_end(trial, failed=failed)
        if "results" in info:
            self._rewrite_log(trial, info["results"])


class FileLoggerCallback(LoggerCallback):
    """Base class of loggers with files in the trials' folders; a restore after a kill completes the files."""

    folder: Path

    def setup(self, *given: Any, **info: Any) -> None:
        self.folder = Path(info["experiment_path"])
        # If the program was killed between a commit and the write to a log, the log is incomplete. So a
        # restore writes the log again.
        for trial, results in info["past"]():
            if self.length(trial) != len(results):
                self._rewrite_log(trial, results)

    def length(self, trial: Trial) -> int:
        """Return the number of results in the trial's log."""
        return 0

    def trial_dir(self, trial: Trial) -> Path:
        """Return the path of the trial's own folder."""
        return self.folder / trial.dirname

    def lines(self, trial: Trial, filename: str) -> int:
        """Return the number of lines of a file in the trial's folder; 0 if the file is missing."""
        return self.contents(trial, filename).count(b"\n")

    def contents(self, trial: Trial, filename: str) -> bytes:
        """Return the content of a file in the trial's folder; empty if the file is missing."""
        try:
            # os.open is faster than open(), which creates a file object. For short files, creating the object
            # takes longer than reading the file.
            descriptor = os.open(f"{self.folder}/{trial.dirname}/{filename}", os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            data = os.read(descriptor, _SMALL)
            if len(data) < _SMALL:
                return data
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                return data + file.read()
        finally:
            os.close(descriptor)


FILENAME = "progress.csv"
_LONGEST = 2**31 - 1
"""Maximum length of a cell to read back; the csv module's default limit is too small for some values."""
_AS_TEXT: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}


class CSVLoggerCallback(FileLoggerCallback):
    """Logger of `progress.csv`, with a row per report, for each trial."""

    def __init__(self) -> None:
        super().__init__()
        self._columns: dict[str, list[str]] = {}
        """Column names of a trial's existing table, by trial id."""

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
        # The column names are stored last. So after an error, the next call reads the column names from the
        # header of the file.
        self._columns[trial.trial_id] = columns

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self._columns.pop(trial.trial_id, None)

    def length(self, trial: Trial) -> int:
        return max(0, _whole_rows(self.contents(trial, FILENAME)) - 1)

    def _rewrite_log(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        rows = list(map(flatten, results))
        columns = _further_keys([], rows)
        _write(self.trial_dir(trial) / FILENAME, columns, _cells(rows, columns))


def _further_keys(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys of `rows` that are not in `columns`, in order of appearance."""
    known = set(columns)
    # The list comprehension is faster here than a generator.
    return list(
        dict.fromkeys([key for row in rows if not row.keys() <= known for key in row if key not in known])
    )


def _cells(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[Any]]:
    return [list(map(row.get, columns, repeat(""))) for row in rows]


def _whole_rows(data: bytes) -> int:
    """Return the number of complete CSV rows in `data`; quoted cells may contain line ends."""
    if b'"' not in data:
        return data.count(b"\n")
    rows, quoted = 0, False
    for line in data.splitlines(keepends=True):
        quoted ^= line.count(b'"') % 2 == 1
        rows += line.endswith(b"\n") and not quoted
    return rows


def _header(file: TextIO) -> list[str]:
    """Return the columns of the existing table; [] without a table."""
    file.seek(0)
    return next(csv.reader(file), [])


def _widen(path: Path, columns: Sequence[str], more: Sequence[Mapping[str, Any]]) -> None:
    """Rewrite the table in `path` with all `columns`, some of them new, and append the rows `more`."""
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
    aside = path.with_name(f".{path.name}.partial")
    with open(aside, "w", **_AS_TEXT) as file:
        if columns:
            csv.writer(file).writerows([columns, *rows])
    aside.rename(path)


class JsonLoggerCallback(FileLoggerCallback):
    """Logger of each trial's configuration, reports and error as JSON; objects become their repr."""

    def __init__(self) -> None:
        super().__init__()
        self._empty: set[str] = set()
        """Ids of trials without a result.json.

        A result.json is created with the first results or at the trial's end, because creating a file takes
        as long as writing ten lines.
        """

    def log_trial_start(self, trial: Trial) -> None:
        (self.trial_dir(trial) / "params.json").write_text(encode_config(trial.config))
        self._empty.add(trial.trial_id)

    def log_trial_results(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        with open(self.trial_dir(trial) / "result.json", "a") as file:
            file.write(_lines(results))
        self._empty.discard(trial.trial_id)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        if trial.trial_id in self._empty:
            self.log_trial_results(trial, [])
        if failed and (failure := trial.failure) is not None:
            folder = self.trial_dir(trial)
            folder.mkdir(exist_ok=True)
            text = f"{failure.traceback}\n{failure.kind}: {failure.message}\n"
            (folder / "error.txt").write_text(storable_text(text), encoding="utf-8")

    def length(self, trial: Trial) -> int:
        return self.lines(trial, "result.json")

    def _rewrite_log(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        folder = self.trial_dir(trial)
        folder.mkdir(exist_ok=True)
        _replace(folder / "result.json", _lines(results))


def _lines(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a line of JSON for each report, with the trial's configuration as the last key."""
    lines: list[str] = []
    config: Any = None
    text = ""
    for result in results:
        metrics = dict(result)
        own = metrics.pop("config")
        # Reports of an attempt share one configuration object, so the text of the configuration is reused.
        if own is not config or not lines:
            config, text = own, encode_config(own)
        lines.append(f'{encode(metrics)[:-1]},"config":{text}}}\n')
    return "".join(lines)


def _replace(path: Path, text: str) -> None:
    """Write a file atomically, so that a reader always finds a complete file."""
    aside = path.with_name(f".{path.name}.partial")
    aside.write_text(text, encoding="utf-8")
    aside.rename(path)


class PolicyFiles(Callback):
    """Callback that writes `pbt_global.txt`, and `pbt_policy_<trial id>.txt` for each trial that exploited.

    A restore rewrites the files from the experiment's file, so no line is lost after a kill.
    """

    def __init__(self) -> None:
        self._folder = Path()
        self._exchanges: list[Exchange] = []
        self._lines: list[str] = []

    def setup(self, *given: Any, **info: Any) -> None:
        self._folder = Path(info["experiment_path"])
        with ExperimentReader(self._folder) as reader:
            exchanges, trials = reader.exchanges(), reader.trials()
        for exchange in exchanges:
            self._add(exchange, trials)

    def on_trial_change(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        donor: Trial | None = info["donor"]
        since = trial.checkpoint.iteration if trial.checkpoint is not None else 0
        donor_id = None if donor is None else donor.trial_id
        self._add(Exchange(trial.trial_id, since, trial.config, donor_id, info["donor_iteration"]), trials)

    def _add(self, exchange: Exchange, trials: Sequence[Trial]) -> None:
        self._exchanges.append(exchange)
        suggested = {trial.trial_id: trial.suggested for trial in trials}
        tags = {trial.trial_id: trial.tag or trial.trial_id for trial in trials}
        lines = policy_lines(self._exchanges, suggested, tags, exchange.trial_id)
        self._write(policy_file(exchange.trial_id), lines)
        self._lines += lines[-1:]
        self._write(GLOBAL_FILE, self._lines)

    def _write(self, name: str, lines: Sequence[str]) -> None:
        """Write a file, or delete the file if it would have no lines."""
        if not lines:
            (self._folder / name).unlink(missing_ok=True)
            return
        _replace(self._folder / name, "".join(lines))
