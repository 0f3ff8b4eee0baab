"""Loggers that write files per trial: JSON, CSV, and the policies of population based training."""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Mapping, Sequence
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
"""Bytes of a log that are read at once; of a regular file fewer come only at its end."""
FLUSH_S = 1.0
"""How late a log may be while a trial runs; once it has ended, its log is whole."""
MAX_KEPT = 5_000
"""Results that are kept for writing, of all trials together."""


class LoggerCallback(Callback):
    """Implement the methods below; a trial that runs again has its log rewritten to what was committed.

    Reports are kept and handed to `log_trial_results` together, at most a second late, and before any
    other word on the end of a trial. Where each must be told at once, override `log_trial_result`.
    """

    # The constructor of a subclass need not call ours, as in Ray, and may set any name: these are mangled.
    __count = 0
    __due: float | None = None

    @functools.cached_property
    def __kept(self) -> dict[str, tuple[Trial, list[Mapping[str, Any]]]]:
        return {}

    # --- to override ------------------------------------------------------------------------------

    def log_trial_start(self, trial: Trial) -> None:
        """A trial begins, or goes on."""

    def log_trial_restore(self, trial: Trial) -> None:
        """A trial is about to run again; its log is rewritten by then."""

    def log_trial_save(self, trial: Trial) -> None:
        """A trial has a new checkpoint."""

    def log_trial_result(self, iteration: int, trial: Trial, result: Mapping[str, Any]) -> None:
        """A trial has reported; kept for `log_trial_results`, unless a subclass does something else.

        Args:
            iteration: of the experiment's loop; the trial's own is in the result.
            trial: that reported.
            result: with what was filled in.
        """
        kept = self.__kept.get(trial.trial_id)
        if kept is None:
            kept = self.__kept[trial.trial_id] = trial, []
        kept[1].append(result)
        self.__count += 1

    def log_trial_results(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Write these reports of a trial, oldest first, behind those that are written."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """A trial has ended; one that was interrupted may begin again."""

    def _rewrite_log(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Make the log hold these results, and no others."""

    def _flush_kept(self, trial: Trial | None = None) -> None:
        """Write what is kept, of one trial or of all; where one can't be written, the others are."""
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
    def _refresh_s(self) -> float | None:  # type: ignore[override]  # wanted only while something is kept
        """How soon to be called again though nothing happens."""
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
    """Base of loggers with files in the trials' folders, which hold what was committed after a kill too."""

    folder: Path

    def setup(self, *given: Any, **info: Any) -> None:
        self.folder = Path(info["experiment_path"])
        # A kill may have come between a commit and the log of it.
        for trial, results in info["past"]():
            if self.length(trial) != len(results):
                self._rewrite_log(trial, results)

    def length(self, trial: Trial) -> int:
        """How many results the log holds."""
        return 0

    def trial_dir(self, trial: Trial) -> Path:
        """The trial's own folder."""
        return self.folder / trial.dirname

    def lines(self, trial: Trial, filename: str) -> int:
        """How many lines a file in the trial's folder has; 0 if there is none."""
        return self.contents(trial, filename).count(b"\n")

    def contents(self, trial: Trial, filename: str) -> bytes:
        """What a file in the trial's folder holds; nothing if there is none."""
        try:
            # Not by open(), whose object takes longer to make than a file of a few lines to read.
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
"""Characters of a cell that is read back; the csv module's own limit is less than a text may have."""
_AS_TEXT: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}


class CSVLoggerCallback(FileLoggerCallback):
    """For each trial, `progress.csv` with a row per report."""

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
        return max(0, _whole_rows(self.contents(trial, FILENAME)) - 1)

    def _rewrite_log(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        rows = list(map(flatten, results))
        columns = _further_keys([], rows)
        _write(self.trial_dir(trial) / FILENAME, columns, _cells(rows, columns))


def _further_keys(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of `rows` that are none of `columns`, in order of appearance."""
    known = set(columns)
    # A list, as a generator is called for each of its keys.
    return list(
        dict.fromkeys([key for row in rows if not row.keys() <= known for key in row if key not in known])
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


class JsonLoggerCallback(FileLoggerCallback):
    """For each trial, its configuration, reports and error as JSON; other values as their repr."""

    def __init__(self) -> None:
        super().__init__()
        self._empty: set[str] = set()
        """Trials that have no result.json yet: a new file takes ten times what a line does."""

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
        aside = folder / "result.json.partial"
        aside.write_text(_lines(results))
        aside.rename(folder / "result.json")


def _lines(results: Sequence[Mapping[str, Any]]) -> str:
    """One report a line, each with its configuration at its end."""
    lines: list[str] = []
    config: Any = None
    text = ""
    for result in results:
        metrics = dict(result)
        own = metrics.pop("config")
        if own is not config or not lines:  # the same object in all reports of an attempt
            config, text = own, encode_config(own)
        lines.append(f'{encode(metrics)[:-1]},"config":{text}}}\n')
    return "".join(lines)


class PolicyFiles(Callback):
    """Writes `pbt_global.txt` and a `pbt_policy_<trial id>.txt` for each trial that took over a state.

    A restore writes them anew from the experiment's file, so a kill costs no line.
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
        """Aside first: who replays it while it is written finds it whole; with no lines there is no file."""
        if not lines:
            (self._folder / name).unlink(missing_ok=True)
            return
        aside = self._folder / f".{name}.partial"
        aside.write_text("".join(lines), encoding="utf-8")
        aside.rename(self._folder / name)
