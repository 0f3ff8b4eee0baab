"""Reporters that print a table every few seconds, with columns chosen by the user, as in Ray Tune."""

from __future__ import annotations

import copy
import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.clock import SYSTEM, Clock
from trainkit.errors import ConfigError
from trainkit.tune.callbacks.base import ProgressReporter
from trainkit.tune.core.checks import (
    is_number,
    require,
    require_mode,
    require_number,
    require_whole,
)
from trainkit.tune.core.constraints import is_feasible
from trainkit.tune.core.metrics import first_line, flatten, lookup
from trainkit.tune.core.objectives import all_failed, best_row
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.display import (
    NotebookDisplay,
    Table,
    duration,
    notebook_display,
    number_words,
    say,
    shortened,
)
from trainkit.tune.schedulers.base import score_of

DEFAULT_COLUMNS = {
    "mean_accuracy": "acc",
    "mean_loss": "loss",
    "training_iteration": "iter",
    "time_total_s": "total time (s)",
    "timesteps_total": "ts",
    "episode_reward_mean": "reward",
}
"""Metrics that are shown if trials report them, with their column headings."""
_FILLED_IN = frozenset(
    "time_this_iter_s date timestamp iterations_since_restore time_since_restore timesteps_this_iter "
    "checkpoint_dir_name config trial_id experiment_tag done pid hostname node_ip episodes_total".split()
)
_RANK = {TrialStatus.RUNNING: 0, TrialStatus.ERROR: 1}

Columns = Mapping[str, str] | Sequence[str]


@dataclass(kw_only=True, eq=False, repr=False)
class TableReporter(ProgressReporter):
    """Base class of reporters that print tables.

    As in Ray, only the constructor's arguments have an effect. Later assignments to attributes of the same
    names have no effect, because a subclass may use these names for its own values.

    Args:
        metric_columns: metrics to show: a list of names, or a dictionary from a name to its heading; None:
            the usual metrics, and the first few numbers that trials report.
        parameter_columns: parameters to show, such as "optimizer/lr", as a list or a dictionary; None: all
            parameters.
        total_samples: total number of trials; None: the number from TuneConfig.
        max_progress_rows: maximum number of trials in the table.
        max_error_rows: maximum number of failed trials in the table of errors.
        max_column_length: maximum number of characters of a heading or a cell; longer strings are cut.
        max_report_frequency: minimum seconds between two reports.
        infer_limit: maximum number of automatically found metrics if metric_columns is None.
        print_intermediate_tables: False: print the table only at the end; earlier reports contain only the
            lines above the table.
        metric, mode: metric and mode that define the best trial; None: the settings of TuneConfig.
        sort_by_metric: True: show the best trials first; False: show trials in the order of suggestion.
        clock: clock to read the time from.

    Raises:
        ConfigError: a value is out of range.
    """

    metric_columns: Columns | None = None
    parameter_columns: Columns | None = None
    total_samples: int | None = None
    max_progress_rows: int = 20
    max_error_rows: int = 20
    max_column_length: int = 20
    max_report_frequency: float = 5
    infer_limit: int = 3
    print_intermediate_tables: bool | None = None
    metric: str | None = None
    mode: str | None = None
    sort_by_metric: bool = False
    clock: Clock = SYSTEM

    def __post_init__(self) -> None:
        for name, least in (
            ("max_progress_rows", 0),
            ("max_error_rows", 0),
            ("infer_limit", 0),
            ("max_column_length", 4),
        ):
            require_whole(name, getattr(self, name), least)
        words = "seconds between two reports"
        require_number("max_report_frequency", self.max_report_frequency, words, least=0)
        require_mode(self.mode)
        # The copy of this object keeps the user's arguments, because a subclass may change the attributes.
        self._asked = copy.copy(self)
        self._infer = self.metric_columns is None
        self._metric_columns = _as_columns(DEFAULT_COLUMNS if self._infer else self.metric_columns or {})
        self._parameter_columns = _as_columns(self.parameter_columns or {})
        self._total, self._metric, self._mode = self.total_samples, self.metric, self.mode
        self._last: float | None = None
        self._now = self.clock.monotonic
        self._started = self._now()
        self._path = ""

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **info: Any,
    ) -> None:
        self._started = self._now()
        self._last = None
        self._total = total_samples if self._asked.total_samples is None else self._asked.total_samples
        self._metric = self._asked.metric or metric
        self._mode = self._asked.mode or mode
        self._path = info.get("experiment_path", "")
        if self._asked.sort_by_metric and not (self._metric and self._mode):
            raise ConfigError("sort_by_metric=True needs a metric and a mode: give both to TuneConfig")

    def should_report(self, trials: Sequence[Trial], done: bool = False) -> bool:
        now = self._now()
        if self._last is None or now - self._last > self._asked.max_report_frequency:
            self._last = now
            return True
        return done

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Show a further metric under the heading `representation`; stop finding metrics automatically."""
        self._infer = False
        _add(self._metric_columns, metric, representation)

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Show a further parameter under the heading `representation`."""
        _add(self._parameter_columns, parameter, representation)

    # --- tables -----------------------------------------------------------------------------------

    def _tables(self, trials: Sequence[Trial], done: bool, *sys_info: str) -> list[Table]:
        """Return the table of trials, and the table of errors if any trial has failed."""
        best, _ = self._current_best_trial(trials)
        lines = [f"Running for {duration(self._now() - self._started)}", *sys_info]
        if best is not None:
            lines.append(f"Current best trial by last report: {best.trial_id} with {self._best_words(best)}")
        lines += [f"Result folder: {self._path}"] if self._path else []
        numbers = Counter(trial.status for trial in trials)
        counts = ", ".join(f"{numbers[status]} {status}" for status in TrialStatus if numbers[status])
        of = "" if self._total is None else f"/{self._total}"
        lines.append(f"Number of trials: {len(trials)}{of} ({counts or 'none yet'})")
        if not (done or self._asked.print_intermediate_tables is not False):
            return [Table(lines=lines)]
        failed = [trial for trial in trials if trial.failure is not None]
        tables = [self._table_of_trials(trials, lines)]
        return [*tables, self._table_of_errors(failed)] if failed else tables

    def _current_best_trial(self, trials: Sequence[Trial]) -> tuple[Trial | None, str | None]:
        """Return the trial with the best feasible last report, or None, and the metric."""
        metric, mode, best = self._metric, self._mode, None
        if metric and mode and not all_failed(trials):
            reports = [trial.last_result for trial in trials if is_feasible(trial.last_result)]
            report = best_row(reports, metric, mode)
            best = next((trial for trial in trials if trial.last_result is report), None)
        return best, metric

    def _table_of_trials(self, trials: Sequence[Trial], lines: Sequence[str]) -> Table:
        metrics = dict(self._metric_columns)
        if self._infer:
            metrics |= {name: name for name in self._inferred(trials)}
        metrics = {
            name: heading
            for name, heading in metrics.items()
            if name in ("training_iteration", "time_total_s")
            or any(lookup(trial.last_result, name) is not None for trial in trials)
        }
        shown = self._chosen(trials)
        parameters = self._parameter_columns or {
            name: name.rsplit("/", 1)[-1] for trial in shown for name in flatten(trial.config)
        }
        rows = [
            self._row(
                trial.name,  # the name is never cut, because it identifies the trial
                str(trial.status),
                *(_cell(_parameter(trial.config, name)) for name in parameters),
                *(_cell(lookup(trial.last_result, name)) for name in metrics),
            )
            for trial in shown
        ]
        more = len(trials) - len(shown)
        headings = self._row("Trial name", "status", *parameters.values(), *metrics.values())
        return Table(headings, rows, lines, f"... {more} more trials not shown" if more else "")

    def _table_of_errors(self, failed: Sequence[Trial]) -> Table:
        rows = [
            [
                trial.name,
                str(trial.failures),
                f"{self._path}/{trial.dirname}/error.txt" if self._path else first_line(trial.reason),
            ]
            for trial in failed[: self._asked.max_error_rows]
        ]
        more = len(failed) - len(rows)
        return Table(
            ["Trial name", "# failures", "error file" if self._path else "error"],
            rows,
            [f"Number of errored trials: {len(failed)}"],
            f"... {more} more failed trials not shown" if more else "",
        )

    def _row(self, first: str, *cells: str) -> list[str]:
        return [first, *(shortened(cell, self._asked.max_column_length) for cell in cells)]

    def _chosen(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials to show: running, failed and latest trials, or the best trials if the table is
        sorted by metric.
        """
        if self._asked.sort_by_metric:
            return sorted(trials, key=lambda trial: -self._score(trial))[: self._asked.max_progress_rows]
        first = sorted(trials, key=lambda trial: (_RANK.get(trial.status, 2), -trial.index))
        return sorted(first[: self._asked.max_progress_rows], key=lambda trial: trial.index)

    def _inferred(self, trials: Sequence[Trial]) -> list[str]:
        found: list[str] = []
        for trial in trials:
            for name, value in trial.last_result.items():
                if len(found) >= self._asked.infer_limit:
                    return found
                known = name in found or name in DEFAULT_COLUMNS or name in _FILLED_IN
                if not known and is_number(value):
                    found.append(name)
        return found

    def _score(self, trial: Trial) -> float:
        value = lookup(trial.last_result, self._metric) if self._metric else None
        return score_of(value, self._mode) if is_number(value) else float("-inf")

    def _best_words(self, best: Trial) -> str:
        wanted = self._parameter_columns or flatten(best.config)
        parameters = {name: _parameter(best.config, name) for name in wanted}
        value = number_words(lookup(best.last_result, self._metric or ""))
        return f"{self._metric}={value} and parameters={parameters}"


class CLIReporter(TableReporter):
    """Reporter that prints a table of trials every few seconds, with `TableReporter`'s arguments."""

    def report(self, trials: Sequence[Trial], done: bool, *sys_info: str) -> None:
        say("\n".join(["== Status ==", *_texts(self._tables(trials, done, *sys_info)), ""]))


@dataclass(kw_only=True, eq=False, repr=False)
class JupyterNotebookReporter(TableReporter):
    """Reporter that updates one output of a notebook's cell; elsewhere it prints like CLIReporter.

    Args:
        overwrite: True clears the cell's earlier output.

    The other arguments are the arguments of `TableReporter`.
    """

    overwrite: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._overwrites = self.overwrite
        self._output: NotebookDisplay | None = None

    def report(self, trials: Sequence[Trial], done: bool, *sys_info: str) -> None:
        tables = self._tables(trials, done, *sys_info)
        display = notebook_display()
        if display is None:
            say("\n".join([*_texts(tables), ""]))
            return
        if self._output is None:
            if self._overwrites:
                importlib.import_module("IPython.display").clear_output(wait=True)
            self._output = NotebookDisplay(display)
        self._output.show(*tables)
        if done:  # the output is forgotten, because the next experiment prints in a different cell
            self._output = None


def _texts(tables: Sequence[Table]) -> list[str]:
    return [table.text() for table in tables]


def _as_columns(columns: Columns) -> dict[str, str]:
    return dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}


def _add(columns: dict[str, str], name: str, shown: str | None) -> None:
    require(name not in columns, f"the column {name!r} is already shown")
    columns[name] = shown or name


def _parameter(config: Mapping[str, Any], name: str) -> Any:
    """Return a parameter, or a nested dictionary, by its flat name; the keys need not be strings."""
    return flatten(config).get(name, lookup(config, name))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return number_words(value) or str(getattr(value, "__name__", value))
