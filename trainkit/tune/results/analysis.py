"""`ExperimentAnalysis`: results under the names that Ray Tune used before `ResultGrid`.

The class is a thin layer over `ResultGrid`. Trials are `Result` objects, which also have the attributes of a
Ray trial.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError, MetricError
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.core.checks import is_number, pandas_frame, require_mode
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import flatten, lookup
from trainkit.tune.core.objectives import best_row
from trainkit.tune.results.folders import experiment_folder
from trainkit.tune.results.result import AnalysisTrial, Result
from trainkit.tune.results.result_grid import ResultGrid

if TYPE_CHECKING:
    import pandas


ITERATION = "training_iteration"


class ByTrial(dict[str, Any]):
    """Values of trials, accessible by the path of the trial's folder, as in Ray 1.x, and by trial id."""

    def __init__(self, trials: Sequence[Result], values: Mapping[str, Any]) -> None:
        # Trials of an in-memory experiment have no folder, so the trial's id is the key in place of the path.
        self._path_of = {trial.trial_id: trial.path or trial.trial_id for trial in trials}
        super().__init__({path: values[trial_id] for trial_id, path in self._path_of.items()})

    def __missing__(self, trial_id: str) -> Any:
        if trial_id not in self._path_of:
            raise KeyError(trial_id)
        return self[self._path_of[trial_id]]


class ExperimentAnalysis:
    """Results of an experiment by trainkit or Ray Tune, finished or running.

    Args:
        experiment_checkpoint_path: path of the experiment's folder, or of a file in this folder; or the
            experiment's address.
        storage_filesystem: an fsspec file system for the path; None: the file system that the path names.
        trials: results that are already loaded; None: load them from the path.
        default_metric: metric that defines the best trial; None: the experiment's metric.
        default_mode: "min" or "max"; None: the experiment's mode.

    Raises:
        StoreError: the experiment is missing, or its file is damaged or was not written by trainkit.
        StorageError: the address can't be read.
        ConfigError: `default_mode` is neither "min" nor "max".
    """

    def __init__(
        self,
        experiment_checkpoint_path: str | os.PathLike[str],
        *,
        storage_filesystem: Any = None,
        trials: Sequence[Result] | None = None,
        default_metric: str | None = None,
        default_mode: str | None = None,
    ) -> None:
        require_mode(default_mode, "default_mode")
        folder = experiment_folder(experiment_checkpoint_path, storage_filesystem)
        if trials is None:
            trials = ResultGrid.from_path(folder, metric=default_metric, mode=default_mode)
        goal: tuple[Any, ...] = (default_metric, default_mode)
        if isinstance(trials, ResultGrid):
            goal = (default_metric or trials.metric, default_mode or trials.mode, trials.objectives)
        self._grid = ResultGrid(folder, map(AnalysisTrial.of, trials), *goal)

    @classmethod
    def of(cls, grid: ResultGrid) -> ExperimentAnalysis:
        """Return an analysis of the results in `grid`, which may belong to an in-memory experiment."""
        analysis = cls.__new__(cls)
        analysis._grid = grid
        return analysis

    def __repr__(self) -> str:
        return repr(self._grid).replace("ResultGrid", "ExperimentAnalysis", 1)

    @property
    def trials(self) -> list[Result]:
        """The trials, in the order of suggestion."""
        return list(self._grid)

    @property
    def default_metric(self) -> str | None:
        """The metric that defines the best trial if a method gets no metric."""
        return self._grid.metric

    @property
    def default_mode(self) -> str | None:
        """The mode of the default metric, "min" or "max"."""
        return self._grid.mode

    @property
    def experiment_path(self) -> str:
        """Path of the experiment's folder."""
        return self._grid.experiment_path

    # --- the best trial by the last report's default metric -----------------------------------------

    @property
    def best_trial(self) -> Result:
        """The trial with the best last report.

        All properties whose names start with `best_` raise the errors of `best_trial`.

        Raises:
            ConfigError: no metric or mode is known.
            MetricError: no trial has a finite value of the metric.
        """
        return self._grid.get_best_result()

    @property
    def best_config(self) -> dict[str, Any]:
        """The configuration of the best trial."""
        return self.best_trial.config

    @property
    def best_result(self) -> dict[str, Any]:
        """The last report of the best trial."""
        return self.best_trial.metrics

    @property
    def best_logdir(self) -> str:
        """Path of the best trial's folder."""
        return self.best_trial.path

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """Checkpoint of the best trial that belongs to its best report with a checkpoint;
        None if the trial has no checkpoint.
        """
        best = self.best_trial
        return self.get_best_checkpoint(best)

    @property
    def best_dataframe(self) -> pandas.DataFrame:
        """All reports of the best trial as a table with one row per report."""
        return self.best_trial.metrics_dataframe

    @property
    def best_result_df(self) -> pandas.DataFrame:
        """The last report of the best trial as a table with one row, indexed by trial id."""
        return pandas_frame([flatten(self.best_result)]).set_index("trial_id")

    # --- the best trial by any metric ---------------------------------------------------------------

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result | None:
        """Return the best trial, with the arguments of `ResultGrid.get_best_result`.

        Returns:
            The best trial; None, after a warning with the reported names, if no trial reported the metric as
                a number.

        Raises:
            ConfigError: no metric or mode is known, or `scope` is unknown.
        """
        try:
            return self._grid.get_best_result(metric, mode, scope, filter_nan_and_inf)
        except MetricError as error:
            logger.warning("%s", error)
            return None

    def pareto_front(
        self, metric: Sequence[str] | None = None, mode: Sequence[str] | None = None
    ) -> list[Result]:
        """Return the trials that no other trial dominates, as in `ResultGrid.pareto_front`.

        Args:
            metric: metrics to compare; None: the experiment's objectives.
            mode: "min" or "max" for each metric; None: the experiment's modes.

        Raises:
            ConfigError: fewer than two objectives are known.
        """
        return self._grid.pareto_front(metric, mode)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """Return the configuration of the trial that `get_best_trial` returns; None without a best trial."""
        best = self.get_best_trial(metric, mode, scope)
        return best.config if best is not None else None

    def get_best_logdir(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> str | None:
        """Return the folder's path of the trial that `get_best_trial` returns; None without a best trial."""
        best = self.get_best_trial(metric, mode, scope)
        return best.path if best is not None else None

    # --- checkpoints, which also work as paths ------------------------------------------------------

    def get_best_checkpoint(
        self, trial: Result | str, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """Return the trial's checkpoint with the best report; None, after a warning, if the trial has no
        checkpoint.

        Args:
            trial: one of `trials`, a trial's id, or the path of a trial's folder.
            metric: metric to compare; None: the default metric, or else "training_iteration".
            mode: "min" or "max"; None: the default mode, or else "max" for "training_iteration".

        Raises:
            ConfigError: the trial is unknown, or no mode is known.
        """
        metric = metric or self.default_metric or ITERATION
        mode = mode or self.default_mode or ("max" if metric == ITERATION else None)
        if mode is None:
            raise ConfigError(f"the best checkpoint by {metric!r} needs a mode: give mode='min' or 'max'")
        require_mode(mode)
        return self._trial(trial).get_best_checkpoint(metric, mode)

    def get_last_checkpoint(
        self, trial: Result | str | None = None, metric: str = ITERATION, mode: str = "max"
    ) -> Checkpoint | None:
        """Return the latest checkpoint of `trial`, or of the best trial if `trial` is None;
        None if the trial has no checkpoint.
        """
        found = self._trial(trial) if trial is not None else self.get_best_trial(metric, mode)
        return found.checkpoint if found is not None else None

    def get_trial_checkpoints_paths(
        self, trial: Result | str, metric: str | None = None
    ) -> list[tuple[str, float]]:
        """Return the path of each kept checkpoint, and the value of `metric` in the checkpoint's report;
        oldest first.

        A checkpoint is left out if its report has no numeric value for the metric.
        """
        metric = metric or self.default_metric or ITERATION
        pairs = [
            (checkpoint.path, lookup(report, metric))
            for checkpoint, report in self._trial(trial).best_checkpoints
        ]
        return [(path, value) for path, value in pairs if is_number(value)]

    # --- all trials -------------------------------------------------------------------------------

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last report of each trial, by trial id."""
        return {trial.trial_id: trial.metrics for trial in self._grid}

    @property
    def results_df(self) -> pandas.DataFrame:
        """The last reports as a table with one row for each trial id, and with nested keys joined by '/'."""
        table = pandas_frame([flatten(trial.metrics) for trial in self._grid if trial.metrics])
        return table.set_index("trial_id") if len(table) else table

    def get_all_configs(self, prefix: bool = False) -> ByTrial:
        """Return the configurations, by the path of the trial's folder or by trial id.

        Args:
            prefix: True flattens the configurations, with keys such as "config/optimizer/lr".
        """
        configs = {
            trial.trial_id: flatten({"config": trial.config}) if prefix else trial.config
            for trial in self._grid
        }
        return ByTrial(self.trials, configs)

    @cached_property
    def trial_dataframes(self) -> ByTrial:
        """Tables of all reports of each trial, by the path of the trial's folder or by trial id."""
        return self.fetch_trial_dataframes()

    def fetch_trial_dataframes(self) -> ByTrial:
        """Read the reports of a running experiment again, and return new tables in the form of
        `trial_dataframes`.
        """
        tables = {trial.trial_id: pandas_frame([]) for trial in self._grid}
        for trial, history in self._grid.histories():
            tables[trial.trial_id] = pandas_frame([flatten(report) for report in history])
        return ByTrial(self.trials, tables)

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pandas.DataFrame:
        """Return a table with one row per trial, which contains a report, the `config/...` columns and
        `logdir`.

        Args:
            metric: metric that, with `mode`, selects the best report of each trial; None: the last report.
            mode: "min" or "max".

        Raises:
            ConfigError: the mode is given without a metric, or is neither "min" nor "max".
        """
        require_mode(mode)
        if mode is not None and metric is None:
            raise ConfigError(f"dataframe(mode={mode!r}): give the metric too")
        if metric is None or mode is None:
            rows = [(trial.path, trial.metrics) for trial in self._grid if trial.metrics]
        else:
            best = {
                trial.trial_id: best_row(history, metric, mode) or history[-1]
                for trial, history in self._grid.histories()
            }
            rows = [(trial.path, best[trial.trial_id]) for trial in self._grid if trial.trial_id in best]
        return pandas_frame([{**flatten(report), "logdir": path} for path, report in rows])

    # --- the experiment itself ----------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return the start of the experiment in Ray's form: {"start_time": seconds since 1970}."""
        return {"start_time": self.runner_data().get("created")}

    def runner_data(self) -> dict[str, Any]:
        """Return the stored properties of the whole experiment, such as seed, space and settings."""
        return self._grid.facts()

    def set_filetype(self, file_type: str | None = None) -> None:
        """Do nothing, because reports come from the experiment's file; exists for code written for Ray.

        Raises:
            ConfigError: `file_type` is not None, "json" or "csv".
        """
        if file_type not in (None, "json", "csv"):
            raise ConfigError(f"set_filetype({file_type!r}): give 'json' or 'csv', or None")

    def _trial(self, trial: Result | str) -> Result:
        if isinstance(trial, Result):
            return trial
        for known in self._grid:
            if trial in (known.trial_id, known.path):
                return known
        raise ConfigError(f"{trial!r} is not in {self.experiment_path}: give one of `trials`, its id or path")


Analysis = ExperimentAnalysis
"""Ray 1.x's name for the analysis of an experiment's folder."""
