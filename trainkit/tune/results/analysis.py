"""`ExperimentAnalysis`: results by the names that Ray Tune gave them before `ResultGrid`.

Thin over `ResultGrid`. What Ray calls a trial here is a `Result`, which answers to a Ray trial's names too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError, MetricError
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.core.checks import is_number, pandas_frame, require_mode
from trainkit.tune.core.metrics import flatten, lookup
from trainkit.tune.core.objectives import best_row
from trainkit.tune.results.reading import experiment_folder
from trainkit.tune.results.result import AnalysisTrial, Result
from trainkit.tune.results.result_grid import ResultGrid

if TYPE_CHECKING:
    import pandas

logger = logging.getLogger("trainkit.tune")

ITERATION = "training_iteration"


class ByTrial(dict[str, Any]):
    """Values of trials by the path of the trial's folder, as in Ray 1.x, and by its id."""

    def __init__(self, trials: Sequence[Result], values: Mapping[str, Any]) -> None:
        # Trials of an experiment in memory have no folder.
        self._path_of = {trial.trial_id: trial.path or trial.trial_id for trial in trials}
        super().__init__({path: values[trial_id] for trial_id, path in self._path_of.items()})

    def __missing__(self, trial_id: str) -> Any:
        if trial_id not in self._path_of:
            raise KeyError(trial_id)
        return self[self._path_of[trial_id]]


class ExperimentAnalysis:
    """Results of an experiment, finished or running, of trainkit or of Ray Tune.

    Args:
        experiment_checkpoint_path: of the experiment's folder, or of a file in it; or its address.
        storage_filesystem: of fsspec, that the path is one of; None: the one that it names.
        trials: the results, where they have been read already; None reads them.
        default_metric: reported value that "best" means; None: the experiment's.
        default_mode: "min" or "max"; None: the experiment's.

    Raises:
        StoreError: there is no experiment, or its file is damaged or foreign.
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
        """Return the analysis of `grid`, also of an experiment that was kept in memory."""
        analysis = cls.__new__(cls)
        analysis._grid = grid
        return analysis

    def __repr__(self) -> str:
        return repr(self._grid).replace("ResultGrid", "ExperimentAnalysis", 1)

    @property
    def trials(self) -> list[Result]:
        """One for each trial, in the order suggested."""
        return list(self._grid)

    @property
    def default_metric(self) -> str | None:
        """The reported value that "best" means where a method is given none."""
        return self._grid.metric

    @property
    def default_mode(self) -> str | None:
        """Direction in which it is better, "min" or "max"."""
        return self._grid.mode

    @property
    def experiment_path(self) -> str:
        """Path of the experiment's folder."""
        return self._grid.experiment_path

    # --- the best trial by the default metric: of its last report -----------------------------------

    @property
    def best_trial(self) -> Result:
        """The trial whose last report is best.

        Here and in what follows:

        Raises:
            ConfigError: no metric or mode is known.
            MetricError: no trial has a finite number under that name.
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
        """The best trial's checkpoint with the best report; None if it saved none."""
        best = self.best_trial
        return self.get_best_checkpoint(best)

    @property
    def best_dataframe(self) -> pandas.DataFrame:
        """All reports of the best trial, a row each."""
        return self.best_trial.metrics_dataframe

    @property
    def best_result_df(self) -> pandas.DataFrame:
        """The last report of the best trial as a table with one row, by trial id."""
        return pandas_frame([flatten(self.best_result)]).set_index("trial_id")

    # --- the best trial by any metric ---------------------------------------------------------------

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result | None:
        """Return the best trial, by the arguments of `ResultGrid.get_best_result`.

        Returns:
            None, after a warning that names what was reported, if no trial has a number under that name.

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
        """Return the trials that none is better than in every objective, as `ResultGrid.pareto_front` does.

        Args:
            metric: reported values; None: the experiment's objectives.
            mode: "min" or "max" for each; None: the experiment's.

        Raises:
            ConfigError: there are not several objectives.
        """
        return self._grid.pareto_front(metric, mode)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """Return the configuration of `get_best_trial`; None as there."""
        best = self.get_best_trial(metric, mode, scope)
        return best.config if best is not None else None

    def get_best_logdir(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> str | None:
        """Return the path of the folder of `get_best_trial`; None as there."""
        best = self.get_best_trial(metric, mode, scope)
        return best.path if best is not None else None

    # --- checkpoints: each stands wherever its path may ---------------------------------------------

    def get_best_checkpoint(
        self, trial: Result | str, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """Return the trial's checkpoint whose report is best; None, after a warning, if there is none.

        Args:
            trial: one of `trials`, or its id, or the path of its folder.
            metric: None: the default metric; without one, "training_iteration".
            mode: None: the default mode; without one, "max" for "training_iteration".

        Raises:
            ConfigError: there is no such trial, or no mode is known.
        """
        metric = metric or self.default_metric or ITERATION
        mode = mode or self.default_mode or ("max" if metric == ITERATION else None)
        if mode is None:
            raise ConfigError(
                f"is the checkpoint with the least or the most {metric!r} best? Give mode='min' or 'max'"
            )
        require_mode(mode)
        return self._trial(trial).get_best_checkpoint(metric, mode)

    def get_last_checkpoint(
        self, trial: Result | str | None = None, metric: str = ITERATION, mode: str = "max"
    ) -> Checkpoint | None:
        """Return the latest checkpoint of `trial`, None: of the best by `metric`; None if none is kept."""
        found = self._trial(trial) if trial is not None else self.get_best_trial(metric, mode)
        return found.checkpoint if found is not None else None

    def get_trial_checkpoints_paths(
        self, trial: Result | str, metric: str | None = None
    ) -> list[tuple[str, float]]:
        """Return the path of each checkpoint that is kept, with its report's `metric`, oldest first.

        A checkpoint whose report has no number under that name is left out.
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
        """By trial id, the last report."""
        return {trial.trial_id: trial.metrics for trial in self._grid}

    @property
    def results_df(self) -> pandas.DataFrame:
        """The last report of each trial that has one: a row each, by trial id, nested keys joined by '/'."""
        table = pandas_frame([flatten(trial.metrics) for trial in self._grid if trial.metrics])
        return table.set_index("trial_id") if len(table) else table

    def get_all_configs(self, prefix: bool = False) -> ByTrial:
        """Return the configurations by the path of the trial's folder, or by trial id.

        Args:
            prefix: flatten them, with keys such as "config/optimizer/lr".
        """
        configs = {
            trial.trial_id: flatten({"config": trial.config}) if prefix else trial.config
            for trial in self._grid
        }
        return ByTrial(self.trials, configs)

    @cached_property
    def trial_dataframes(self) -> ByTrial:
        """All reports of each trial as a table, by the path of the trial's folder, or by trial id."""
        return self.fetch_trial_dataframes()

    def fetch_trial_dataframes(self) -> ByTrial:
        """Read all reports, anew if the experiment still runs; return what `trial_dataframes` is."""
        tables = {trial.trial_id: pandas_frame([]) for trial in self._grid}
        for trial, history in self._grid.histories():
            tables[trial.trial_id] = pandas_frame([flatten(report) for report in history])
        return ByTrial(self.trials, tables)

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pandas.DataFrame:
        """Return a table with a row per trial: a report, `config/...` and `logdir`.

        Args:
            metric: with `mode`, that report of each trial is taken which is best by it; without, the last.
            mode: "min" or "max".

        Raises:
            ConfigError: there is a mode without a metric, or it is neither "min" nor "max".
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
        """Return the start of the experiment in the form of Ray: {"start_time": seconds since 1970}."""
        return {"start_time": self.runner_data().get("created")}

    def runner_data(self) -> dict[str, Any]:
        """Return the facts of the experiment as a whole: seed, space, settings."""
        return self._grid.facts()

    def set_filetype(self, file_type: str | None = None) -> None:
        """Accepted for Ray's sake: reports are read from the experiment's file, not from JSON or CSV.

        Raises:
            ConfigError: `file_type` is none of None, "json" and "csv".
        """
        if file_type not in (None, "json", "csv"):
            raise ConfigError(f"set_filetype({file_type!r}): give 'json' or 'csv', or None")

    def _trial(self, trial: Result | str) -> Result:
        if isinstance(trial, Result):
            return trial
        for known in self._grid:
            if trial in (known.trial_id, known.path):
                return known
        raise ConfigError(
            f"{trial!r} is no trial of {self.experiment_path}: give one of `trials`, its id or path"
        )


Analysis = ExperimentAnalysis
"""Ray 1.x's name for an analysis of an experiment's folder."""
