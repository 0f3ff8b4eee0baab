"""Result of one trial."""

from __future__ import annotations

import logging
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
from trainkit.tune.core.lineage import Stretch, lineage
from trainkit.tune.core.metrics import flatten, lookup
from trainkit.tune.core.objectives import best_row, spread_of
from trainkit.tune.core.stoppers import AUTOMATIC, missing_metric
from trainkit.tune.core.trial import Attempt, Failure, Trial, TrialStatus
from trainkit.tune.display import Table, pairs_text
from trainkit.tune.results.reading import Reader, metric_and_mode, open_experiment, trial_folder
from trainkit.tune.search.trial_source import evaluated_of
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import complete

if TYPE_CHECKING:
    import pandas

logger = logging.getLogger("trainkit.tune")

MAX_WIDTH = 40
"""Characters of one value, where a result is shown."""


@dataclass(frozen=True, repr=False)
class Result:
    """One trial's outcome.

    `metrics` is the last report, whatever it says; `best_metrics` the best one by `metric`, and
    `best_checkpoint` the checkpoint that came with the best report among those that had one.

    Attributes:
        trial_id: unique in the experiment.
        config: the hyperparameters.
        metrics: the last report; {} if there was none.
        status: where the trial stands.
        reason: why, such as at which rung it was stopped.
        error: what it raised, if it failed; None otherwise.
        path: of the trial's folder.
        metric, mode: what "best" means here; None where the experiment named no metric.
        ranked_by: how `get_best_result` compared trials: "last", "all", ...; '' otherwise.
        return_value: what a trainer's function returned on worker 0; None in a Tuner's trials.
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
        """Read one trial back, of a finished or running experiment, or of one that Ray Tune wrote.

        Args:
            path: of the trial's folder, in the experiment's, or of an experiment of one trial, such as
                a trainer's run; or the trial's address, which is copied here.
            storage_filesystem: of fsspec, that `path` is a path of; None: the one that it names.

        Raises:
            StoreError: there is no such trial.
        """
        folder = trial_folder(path, storage_filesystem)
        with open_experiment(folder.parent) as reader:
            trial = next((trial for trial in reader.trials() if trial.dirname == folder.name), None)
            if trial is None:
                raise ExperimentNotFoundError(
                    f"the experiment in {folder.parent} has no trial with the folder {folder.name}"
                )
            return result_of(trial, folder.parent, *metric_and_mode(reader.facts()))

    # --- reports ----------------------------------------------------------------------------------

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """All reports by iteration; of one that a retry has repeated, the retry's."""
        with self._reader() as reader:
            return [self._shown(with_config(report, self.config)) for report in reader.history(self.trial_id)]

    @property
    def metrics_dataframe(self) -> pandas.DataFrame:
        """All reports as a table: a row each, nested keys joined by '/'. Needs pandas."""
        return pandas_frame([flatten(report) for report in self.history])

    @property
    def best_metrics(self) -> dict[str, Any] | None:
        """The best report by `metric`; None without a metric, or where none was a finite number."""
        if self.metric is None:
            return None
        return best_row(self.history, self.metric, self.mode or "max")

    @cached_property
    def metric_analysis(self) -> dict[str, dict[str, float]]:
        """By metric, over all reports: max, min, avg, last, last-5-avg, last-10-avg."""
        return spread_of([flatten(report) for report in self.history])

    # --- checkpoints ------------------------------------------------------------------------------

    @cached_property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The checkpoints that are kept, oldest first, each with the report that it came with."""
        with self._reader() as reader:
            reports = reader.checkpoint_results(self.trial_id)
        return [
            (Checkpoint(Path(self.path, dirname)), self._shown(reports[number]))
            for number, dirname in self._checkpoints.items()
        ]

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The latest checkpoint; None if there is none."""
        dirname = next(reversed(list(self._checkpoints.values())), None)
        return Checkpoint(Path(self.path, dirname)) if dirname is not None else None

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The checkpoint of the best report by `metric`; the latest where there is no metric."""
        if self.metric is None:
            return self.checkpoint
        return self.get_best_checkpoint(self.metric, self.mode or "max")

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Return the checkpoint of the best report by `metric`; None, after a warning, if none has it."""
        reports = [report for _, report in self.best_checkpoints]
        best = best_row(reports, metric, mode)
        if best is None and reports:
            is_there = any(lookup(report, metric) is not None for report in reports)
            what = repr(metric) if is_there else missing_metric(metric, reports)
            logger.warning("trial %s has kept no checkpoint with a finite %s", self.trial_id, what)
        return next((checkpoint for checkpoint, report in self.best_checkpoints if report is best), None)

    # --- what happened ----------------------------------------------------------------------------

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Return the scheduler's decisions on this trial's reports with their reasons: rung, rank, cutoff."""
        with self._reader() as reader:
            return reader.decisions(self.trial_id)

    @property
    def attempts(self) -> list[Attempt]:
        """The runs of this trial: the first, retries, and those that a restore went on with."""
        with self._reader() as reader:
            return reader.attempts(self.trial_id)

    def lineage(self) -> list[Stretch]:
        """Where the weights of its last report come from, in order: which trial trained how long, with what.

        More than one stretch where population based training made it take over the state of another trial.
        """
        with self._reader() as reader:
            trials = {trial.trial_id: trial for trial in reader.trials()}
            suggested = {trial_id: trial.suggested for trial_id, trial in trials.items()}
            last = trials[self.trial_id].last_result.get("training_iteration", 0)
            return lineage(reader.exchanges(), suggested, self.trial_id, last)

    # --- older names, and Ray's for a trial -------------------------------------------------------

    @property
    def log_dir(self) -> Path:
        """The trial's folder; the name that Ray 2.0 to 2.6 has for `path`."""
        return Path(self.path)

    @property
    def logdir(self) -> str:
        """The trial's folder; the name that a Ray trial has for it."""
        return self.path

    local_path = logdir

    @property
    def trainable_name(self) -> str:
        """Name of the function or class; '' where the experiment doesn't say."""
        with self._reader() as reader:
            return str(reader.facts().get("trainable", ""))

    @property
    def experiment_tag(self) -> str:
        """Index and hyperparameters that vary, as reports have them; '' before the first report."""
        return str(self.metrics.get("experiment_tag", ""))

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """The hyperparameters that differ between trials, by flat name."""
        with self._reader() as reader:
            varied = Space.of(reader.facts().get("space")).varied
        return evaluated_of(self.config, varied)

    @property
    def error_file(self) -> str | None:
        """Path of the file with the trial's error; None where the trial has not failed."""
        return f"{self.path}/error.txt" if self.error is not None and self.path else None

    def is_finished(self) -> bool:
        """Return whether the trial has ended, one way or another."""
        return self.status.is_finished

    def has_checkpoint(self) -> bool:
        """Return whether the trial has kept a checkpoint."""
        return bool(self._checkpoints)

    @property
    def last_result(self) -> dict[str, Any]:
        """The last report; the name that a Ray trial has for `metrics`."""
        return self.metrics

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem in which `path` lies: this machine's. Needs fsspec."""
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
        if self.ranked_by:
            facts.append(("best by", f"{self.metric}, {self.mode}, scope={self.ranked_by!r}"))
        facts.append(("config", pairs_text(flatten(self.config), MAX_WIDTH) or "none"))
        facts.append(("metrics", pairs_text({**flatten(own), **counted}, MAX_WIDTH) or "none"))
        return [*facts, ("path", self.path)] if self.path else facts

    def _shown(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return a report of the store as this result has it."""
        return report

    def _reader(self) -> Reader:
        return self._open() if self._open is not None else open_experiment(Path(self.path).parent)


class AnalysisTrial(Result):
    """A result as Ray's analyses have trials: its text is the trial's name, such as 'f_a4deb_00000'."""

    @classmethod
    def of(cls, result: Result) -> AnalysisTrial:
        """Return a result as a trial."""
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
    """Return the result of `trial`, of the experiment in `folder`.

    Args:
        trial: as read from the experiment.
        folder: of the experiment; None: it has none.
        metric: what "best" means.
        mode: "min" or "max".
        errors: exceptions themselves, by trial and attempt, where this process still has them.
        open_reader: where details are read from; None: from `folder`.
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
    """Return a report with the objects of `config`, which the file holds only as a mark; all else stays."""
    return {**report, "config": complete(report["config"], config) if "config" in report else dict(config)}


def _as_error(trial: Trial, failure: Failure) -> TrialError | MetricError:
    cls: type[TrialError | MetricError] = TrialError
    known = getattr(trainkit.errors, failure.kind, None)
    if isinstance(known, type) and issubclass(known, (TrialError, MetricError)):
        cls = known
    trace = f"\n{failure.traceback}" if failure.traceback else ""
    return cls(f"trial {trial.trial_id} failed: {failure.kind}: {failure.message}{trace}")
