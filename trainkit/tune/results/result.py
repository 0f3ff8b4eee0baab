"""Result of one trial."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainkit.errors
from trainkit.errors import ExperimentNotFoundError, MetricError, TrialError
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.core.checks import load, pandas_frame
from trainkit.tune.core.constraints import is_feasible, violation_in
from trainkit.tune.core.lineage import Stretch, lineage
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import flatten, lookup
from trainkit.tune.core.objectives import best_row, spread_of
from trainkit.tune.core.stoppers import AUTOMATIC, missing_metric
from trainkit.tune.core.trial import Attempt, Failure, Trial, TrialStatus
from trainkit.tune.display import Table, infeasible_words, pairs_text
from trainkit.tune.results.folders import trial_folder
from trainkit.tune.results.reading import Reader, metric_and_mode, open_experiment
from trainkit.tune.search.trial_source import evaluated_of
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import complete

if TYPE_CHECKING:
    import pandas


MAX_WIDTH = 40
"""Maximum number of characters of a value when a result is displayed."""


@dataclass(frozen=True, repr=False)
class Result:
    """Outcome of one trial.

    `metrics` is always the last report. `best_metrics` is the best report by `metric`. `best_checkpoint` is
    the checkpoint with the best report among the reports that have a checkpoint.

    Attributes:
        trial_id: id of the trial, unique in the experiment.
        config: hyperparameters.
        metrics: last report; {} without a report.
        status: status of the trial.
        reason: reason for the status, such as the rung at which the trial was stopped.
        error: error of a failed trial, otherwise None.
        path: path of the trial's folder.
        metric, mode: metric and mode that define "best"; None: the experiment has no metric.
        ranked_by: scope by which `get_best_result` compared trials: "last", "all", ...; otherwise ''.
        return_value: return value of a trainer's function on worker 0; None for a Tuner's trials.
    """

    trial_id: str
    config: dict[str, Any]
    metrics: dict[str, Any]
    status: TrialStatus
    reason: str
    error: BaseException | None
    path: str
    metric: str | None = None
    mode: str | None = None
    ranked_by: str = ""
    return_value: Any = None
    _name: str = ""
    _checkpoints: Mapping[int, str] = field(default_factory=dict)
    _open: Callable[[], Reader] | None = field(default=None, compare=False)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:
        """Read a trial of a finished or running experiment, or of an experiment of Ray Tune.

        Args:
            path: the trial's folder inside the experiment's folder; or the folder of an experiment with a
                single trial, such as a trainer's run; or the trial's address, which is downloaded.
            storage_filesystem: an fsspec file system for `path`; None: the file system that `path` names.

        Raises:
            StoreError: the trial does not exist.
        """
        folder = trial_folder(path, storage_filesystem)
        with open_experiment(folder.parent) as reader:
            trial = next((trial for trial in reader.trials() if trial.dirname == folder.name), None)
            if trial is None:
                raise ExperimentNotFoundError(f"{folder.parent} has no trial with the folder {folder.name}")
            return result_of(trial, folder.parent, *metric_and_mode(reader.facts()))

    # --- reports ----------------------------------------------------------------------------------

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """All reports by iteration; a retry's report replaces the earlier report for its iteration."""
        with self._reader() as reader:
            return [self._shown(with_config(report, self.config)) for report in reader.history(self.trial_id)]

    @property
    def feasible(self) -> bool:
        """True if the last report satisfies all constraints; without constraints, always True."""
        return is_feasible(self.metrics or {})

    @property
    def violation(self) -> float:
        """Sum of the relative excesses of the last report over its constraints; inf if it is unknown."""
        return violation_in([self.metrics or {}])

    @property
    def metrics_dataframe(self) -> pandas.DataFrame:
        """All reports as a table with one row per report and nested keys joined by '/'. Needs pandas."""
        return pandas_frame([flatten(report) for report in self.history])

    @property
    def best_metrics(self) -> dict[str, Any] | None:
        """The best report by `metric`; None if `metric` is None or has no finite value."""
        if self.metric is None:
            return None
        return best_row(self.history, self.metric, self.mode or "max")

    @cached_property
    def metric_analysis(self) -> dict[str, dict[str, float]]:
        """Statistics of each metric over all reports: max, min, avg, last, last-5-avg, last-10-avg."""
        return spread_of([flatten(report) for report in self.history])

    # --- checkpoints ------------------------------------------------------------------------------

    @cached_property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The kept checkpoints with their reports, oldest first."""
        with self._reader() as reader:
            reports = reader.checkpoint_results(self.trial_id)
        return [
            (Checkpoint(Path(self.path, dirname)), self._shown(reports[number]))
            for number, dirname in self._checkpoints.items()
        ]

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The latest checkpoint; None without a checkpoint."""
        dirname = next(reversed(list(self._checkpoints.values())), None)
        return Checkpoint(Path(self.path, dirname)) if dirname is not None else None

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The checkpoint with the best report by `metric`; without a metric, the latest checkpoint."""
        if self.metric is None:
            return self.checkpoint
        return self.get_best_checkpoint(self.metric, self.mode or "max")

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Return the checkpoint with the best report by `metric`;
        None, with a warning, if no checkpoint's report has the metric.
        """
        reports = [report for _, report in self.best_checkpoints]
        best = best_row(reports, metric, mode)
        if best is None and reports:
            is_there = any(lookup(report, metric) is not None for report in reports)
            what = repr(metric) if is_there else missing_metric(metric, reports)
            logger.warning("trial %s has kept no checkpoint with a finite %s", self.trial_id, what)
        return next((checkpoint for checkpoint, report in self.best_checkpoints if report is best), None)

    # --- history ----------------------------------------------------------------------------------

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The scheduler's decisions on this trial's reports, with their reasons: rung, rank, cutoff."""
        with self._reader() as reader:
            return reader.decisions(self.trial_id)

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts of this trial: its first run, retries, and resumptions by a restore."""
        with self._reader() as reader:
            return reader.attempts(self.trial_id)

    def lineage(self) -> list[Stretch]:
        """Return the training history of the last report's weights, in order, as stretches of training.

        The history has several stretches if population based training copied another trial's state to the
        trial.
        """
        with self._reader() as reader:
            trials = {trial.trial_id: trial for trial in reader.trials()}
            suggested = {trial_id: trial.suggested for trial_id, trial in trials.items()}
            last = trials[self.trial_id].last_result.get("training_iteration", 0)
            return lineage(reader.exchanges(), suggested, self.trial_id, last)

    # --- older names, and names of Ray's trials ---------------------------------------------------

    @property
    def log_dir(self) -> Path:
        """Path of the trial's folder, under the name of Ray 2.0 to 2.6."""
        return Path(self.path)

    @property
    def logdir(self) -> str:
        """Path of the trial's folder, under the name of a Ray trial."""
        return self.path

    local_path = logdir

    @property
    def trainable_name(self) -> str:
        """Name of the trainable function or class; '' if unknown."""
        with self._reader() as reader:
            return str(reader.facts().get("trainable", ""))

    @property
    def experiment_tag(self) -> str:
        """The trial's index and varying hyperparameters, from the last report; '' without a report."""
        return str(self.metrics.get("experiment_tag", ""))

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """The hyperparameters that differ between trials, by flat name."""
        with self._reader() as reader:
            varied = Space.of(reader.facts().get("space")).varied
        return evaluated_of(self.config, varied)

    @property
    def error_file(self) -> str | None:
        """Path of the file with the trial's error; None if the trial has not failed or has no folder."""
        return f"{self.path}/error.txt" if self.error is not None and self.path else None

    def is_finished(self) -> bool:
        """Return True if the trial has ended, successfully or not."""
        return self.status.is_finished

    def has_checkpoint(self) -> bool:
        """Return True if the trial has a kept checkpoint."""
        return bool(self._checkpoints)

    @property
    def last_result(self) -> dict[str, Any]:
        """The last report, under the name of a Ray trial."""
        return self.metrics

    @property
    def filesystem(self) -> Any:
        """The fsspec file system of `path`: the local file system. Needs fsspec."""
        return load("fsspec", "file systems", "storage").filesystem("file")

    def __repr__(self) -> str:
        facts = (f"  {name}: {text}" for name, text in self._facts())
        return "\n".join([f"Result({self.trial_id}", *facts, ")"])

    def _repr_html_(self) -> str:
        return Table(["", self.trial_id], self._facts()).html()

    def _facts(self) -> list[tuple[str, str]]:
        metrics = self.metrics
        own = {name: value for name, value in metrics.items() if name not in AUTOMATIC}
        counted = {name: metrics[name] for name in ("training_iteration",) if name in metrics}
        facts = [("status", f"{self.status} ({self.reason})" if self.reason else str(self.status))]
        if words := infeasible_words(self.metrics or {}):
            facts.append(("constraints", words))
        if self.ranked_by:
            facts.append(("best by", f"{self.metric}, {self.mode}, scope={self.ranked_by!r}"))
        facts.append(("config", pairs_text(flatten(self.config), MAX_WIDTH) or "none"))
        facts.append(("metrics", pairs_text({**flatten(own), **counted}, MAX_WIDTH) or "none"))
        return [*facts, ("path", self.path)] if self.path else facts

    def _shown(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return a stored report in the form that this result shows."""
        return report

    def _reader(self) -> Reader:
        return self._open() if self._open is not None else open_experiment(Path(self.path).parent)


class AnalysisTrial(Result):
    """Result in an `ExperimentAnalysis`; `str(result)` is the trial's name, such as 'f_a4deb_00000'."""

    @classmethod
    def of(cls, result: Result) -> AnalysisTrial:
        """Return a Result as an AnalysisTrial."""
        return cls(**{each.name: getattr(result, each.name) for each in fields(result)})

    def __str__(self) -> str:
        return self._name


def result_of(
    trial: Trial,
    folder: Path | None,
    metric: str | None,
    mode: str | None,
    errors: Mapping[tuple[str, int], BaseException] | None = None,
    open_reader: Callable[[], Reader] | None = None,
) -> Result:
    """Return the result of `trial` from the experiment in `folder`.

    Args:
        trial: trial as read from the experiment.
        folder: folder of the experiment, or None.
        metric: metric that defines "best".
        mode: "min" or "max".
        errors: exceptions of failed trials, by trial id and attempt, if this process has them.
        open_reader: function that opens a reader of the experiment; None: read from `folder`.
    """
    error: BaseException | None = None
    if trial.failure is not None:
        error = (errors or {}).get((trial.trial_id, trial.attempt)) or _as_error(trial, trial.failure)
    if trial.last_result:
        trial.last_result |= {"done": trial.status.is_finished, "config": trial.config}
    return Result(
        trial_id=trial.trial_id,
        config=trial.config,
        metrics=trial.last_result,
        status=trial.status,
        reason=trial.reason,
        error=error,
        path="" if folder is None else f"{folder}/{trial.dirname}",
        metric=metric,
        mode=mode,
        _name=trial.name,
        _checkpoints={checkpoint.number: checkpoint.dirname for checkpoint in trial.checkpoints},
        _open=open_reader,
    )


def with_config(report: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report with the objects of `config` in place of the names that the experiment's file
    stores.
    """
    return {**report, "config": complete(report["config"], config) if "config" in report else dict(config)}


def _as_error(trial: Trial, failure: Failure) -> TrialError | MetricError:
    cls: type[TrialError | MetricError] = TrialError
    known = getattr(trainkit.errors, failure.kind, None)
    if isinstance(known, type) and issubclass(known, (TrialError, MetricError)):
        cls = known
    trace = f"\n{failure.traceback}" if failure.traceback else ""
    return cls(f"trial {trial.trial_id} failed: {failure.kind}: {failure.message}{trace}")
