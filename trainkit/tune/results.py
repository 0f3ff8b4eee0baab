"""What came out: one `Result` per trial, all of them in a `ResultGrid`. Read from the experiment's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

from trainkit.errors import ConfigError, MetricError, MissingDependencyError, TrialError, TrialTimeoutError
from trainkit.tune.checkpoint import Checkpoint
from trainkit.tune.history import ExperimentReader
from trainkit.tune.ranking import best_row, trial_score
from trainkit.tune.stopping import missing_metric
from trainkit.tune.trial import Failure, Trial, TrialStatus
from trainkit.tune.values import complete, flatten, lookup

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
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
    _checkpoints: Mapping[int, str] = field(default_factory=dict, repr=False)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """All reports by iteration; of one that a retry has repeated, the retry's."""
        with self._reader() as reader:
            reports = reader.history(self.trial_id)
        # An attempt may have run with another configuration than the last; objects are the last one's.
        return [{**report, "config": complete(report["config"], self.config)} for report in reports]

    @property
    def best_metrics(self) -> dict[str, Any] | None:
        """The best report by `metric`; None without a metric, or where none was a finite number."""
        if self.metric is None:
            return None
        return best_row(self.history, self.metric, self.mode or "max")

    @cached_property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The checkpoints that are kept, oldest first, each with the report that it came with."""
        with self._reader() as reader:
            reports = reader.checkpoint_results(self.trial_id)
        return [
            (Checkpoint(Path(self.path, dirname)), reports[number])
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
        """Return the checkpoint whose report is best by `metric`; None if no checkpoint came with it."""
        best = best_row([report for _, report in self.best_checkpoints], metric, mode)
        return next((checkpoint for checkpoint, report in self.best_checkpoints if report is best), None)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """What the scheduler decided on this trial's reports, and why: rung, rank, cutoff."""
        with self._reader() as reader:
            return reader.decisions(self.trial_id)

    @property
    def metrics_dataframe(self) -> pandas.DataFrame:
        """All reports as a table: a row each, nested keys joined by '/'. Needs pandas."""
        return _pandas().DataFrame([flatten(report) for report in self.history])

    def _reader(self) -> ExperimentReader:
        return ExperimentReader(Path(self.path).parent)


class ResultGrid(Sequence[Result]):
    """The results of an experiment, in the order suggested: `len`, index, iteration.

    Args:
        folder: of the experiment.
        results: one per trial.
        metric, mode: that `get_best_result` uses where it is given none.
    """

    def __init__(self, folder: Path, results: Sequence[Result], metric: str | None, mode: str | None) -> None:
        self._folder = folder
        self._results = list(results)
        self._metric = metric
        self._mode = mode

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        metric: str | None = None,
        mode: str | None = None,
        errors: Mapping[tuple[str, int], BaseException] | None = None,
        configs: Mapping[str, dict[str, Any]] | None = None,
    ) -> ResultGrid:
        """Read an experiment, finished or running.

        Args:
            folder: of the experiment.
            metric: what "best" means; None: as the experiment was started with.
            mode: "min" or "max"; None: as the experiment was started with.
            errors: exceptions themselves, by trial and attempt, where this process still has them.
            configs: configurations by trial, which may hold objects that text can't.

        Raises:
            StoreError: there is none, or its file is damaged or foreign.
        """
        with ExperimentReader(folder) as reader:
            facts = reader.facts()["tune_config"]
            metric, mode = metric or facts["metric"], mode or facts["mode"]
            trials = reader.trials()
        for trial in trials:
            trial.config = (configs or {}).get(trial.trial_id, trial.config)
        results = [_result(trial, folder, metric, mode, errors or {}) for trial in trials]
        return cls(folder, results, metric, mode)

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        return self._results[index]

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    def __repr__(self) -> str:
        return (
            f"ResultGrid({len(self)} trials, {self.num_terminated} terminated, "
            f"{self.num_errors} with errors, in {self.experiment_path})"
        )

    @property
    def experiment_path(self) -> str:
        """Path of the experiment's folder, for `Tuner.restore`."""
        return str(self._folder)

    @property
    def num_unfinished(self) -> int:
        """How many trials have not ended: after Ctrl-C, those that `Tuner.restore` goes on with."""
        return sum(not result.status.is_finished for result in self._results)

    @property
    def errors(self) -> list[BaseException]:
        """What failed trials raised, in the order suggested."""
        return [result.error for result in self._results if result.error is not None]

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        """How many trials ended without failing, by themselves or stopped."""
        return sum(result.status is TrialStatus.TERMINATED for result in self._results)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the best trial.

        Args:
            metric: reported value to compare; None: the experiment's.
            mode: "min" or "max"; None: the experiment's.
            scope: which of a trial's reports stands for it: "last", "all" (its best), "avg" (their
                mean), "last-5-avg" or "last-10-avg".
            filter_nan_and_inf: leave out reports that are not finite numbers.

        Returns:
            Its result; `ranked_by` says the scope. `metrics` stays the last report and `best_metrics`
            the best one, whatever the scope.

        Raises:
            MetricError: no trial reported the metric; those that were reported are named.
            ConfigError: no metric or mode is known, or `scope` is none of these.
        """
        metric, mode = self._metric_and_mode(metric, mode)
        scores: dict[str, float] = {}
        for trial_id, history in self._histories(scope):
            score = trial_score(history, metric, mode, scope, keep_all=not filter_nan_and_inf)
            if score is not None:
                scores[trial_id] = score
        if not scores:
            self._explain_missing(metric, scope)
        # max() keeps the first of equals, that is the trial suggested first.
        best = max(
            (result for result in self._results if result.trial_id in scores),
            key=lambda result: scores[result.trial_id],
        )
        return replace(best, metric=metric, mode=mode, ranked_by=scope)

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pandas.DataFrame:
        """Return a table with a row per trial: its last report, and its configuration as config/... columns.

        Args:
            filter_metric: instead of the last report, the one that is best by this metric.
            filter_mode: "min" or "max", for `filter_metric`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        rows = []
        for result in self._results:
            report: Mapping[str, Any] | None = result.metrics
            if filter_metric is not None:
                metric, mode = self._metric_and_mode(filter_metric, filter_mode)
                report = best_row(result.history, metric, mode)
            if report:
                rows.append(flatten(report))
        return _pandas().DataFrame(rows)

    def _metric_and_mode(self, metric: str | None, mode: str | None) -> tuple[str, str]:
        metric, mode = metric or self._metric, mode or self._mode
        if metric is None or mode is None:
            raise ConfigError(
                "which trial is best? Give metric and mode here, or in TuneConfig(metric='loss', mode='min')"
            )
        if mode not in ("min", "max"):
            raise ConfigError(f"mode={mode!r} is neither 'min' nor 'max'")
        return metric, mode

    def _histories(self, scope: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        if scope == "last":
            yield from ((result.trial_id, [result.metrics]) for result in self._results if result.metrics)
            return
        with ExperimentReader(self._folder) as reader:
            yield from reader.histories()

    def _explain_missing(self, metric: str, scope: str) -> NoReturn:
        with ExperimentReader(self._folder) as reader:
            reports = [report for _, history in reader.histories() for report in history]
        if any(lookup(report, metric) is not None for report in reports):
            raise MetricError(
                f"no trial has a finite number as {metric!r} among its reports for scope={scope!r}; "
                "look at more of them with scope='all', or keep NaN with filter_nan_and_inf=False"
            )
        raise MetricError(f"no best trial by {missing_metric(metric, reports)}")


def _result(
    trial: Trial,
    folder: Path,
    metric: str | None,
    mode: str | None,
    errors: Mapping[tuple[str, int], BaseException],
) -> Result:
    error: BaseException | None = None
    if trial.failure is not None:
        error = errors.get((trial.trial_id, trial.attempt)) or _as_error(trial, trial.failure)
    if trial.last_result:
        trial.last_result |= {"done": trial.status.is_finished, "config": trial.config}
    return Result(
        trial_id=trial.trial_id,
        config=trial.config,
        metrics=trial.last_result,
        status=trial.status,
        reason=trial.reason,
        error=error,
        path=str(folder / trial.dirname),
        metric=metric,
        mode=mode,
        _checkpoints={checkpoint.number: checkpoint.dirname for checkpoint in trial.checkpoints},
    )


_ERRORS: dict[str, type[TrialError | MetricError]] = {
    "MetricError": MetricError,
    "TrialTimeoutError": TrialTimeoutError,
}


def _as_error(trial: Trial, failure: Failure) -> TrialError | MetricError:
    cls = _ERRORS.get(failure.kind, TrialError)
    trace = f"\n{failure.traceback}" if failure.traceback else ""
    return cls(f"trial {trial.trial_id} failed: {failure.kind}: {failure.message}{trace}")


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError("tables need pandas: pip install 'trainkit[tune]'") from error
    return pandas
