"""Results of an experiment: a ResultGrid with one Result per trial."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, overload

from trainkit.errors import ConfigError, MetricError
from trainkit.registry import loaded
from trainkit.tune.controller.rules import missing_metric
from trainkit.tune.core.checks import is_finite, load, pandas_frame
from trainkit.tune.core.constraints import constraints_of, violation_in
from trainkit.tune.core.lineage import Exchange
from trainkit.tune.core.metrics import first_line, flatten, lookup, number_of
from trainkit.tune.core.objectives import (
    Objective,
    best_row,
    front_of,
    objectives_of,
    point_of,
    trial_score,
    what_is_best,
)
from trainkit.tune.core.trial import TrialStatus
from trainkit.tune.display import Table, cell_text, count_words
from trainkit.tune.results.folders import experiment_folder
from trainkit.tune.results.reading import Reader, known_objectives, metric_and_mode, open_experiment
from trainkit.tune.results.result import MAX_WIDTH, Result, result_of, with_config
from trainkit.tune.space.domains import Domain, GridSearch
from trainkit.tune.store.memory import MemoryStore
from trainkit.tune.store.reader import Span

if TYPE_CHECKING:
    import optuna
    import pandas
    from matplotlib.axes import Axes

MAX_ROWS = 10
"""Maximum number of trials in the table of a grid."""


class Hyperparameter(Protocol):
    """Hyperparameter with its values in all trials.

    Attributes:
        name: flat name, such as "optimizer/lr" or "layers/0".
        domain: domain in the space, or None if it is unknown.
        values: value of the hyperparameter in each trial, by the trial's index, without trials in which the
            hyperparameter is inactive. Numbers, strings, booleans and None stay unchanged; other values
            become strings.
    """

    name: str
    domain: Domain | GridSearch | None
    values: dict[int, Any]

    @property
    def is_numeric(self) -> bool:
        """True if all values are numbers and the domain is not a list of choices."""

    @property
    def is_whole(self) -> bool:
        """True if all values are whole numbers."""

    @property
    def is_log(self) -> bool:
        """True if the domain is logarithmic.

        If the domain is unknown, True if the values span a factor of 1000 or more.
        """

    @property
    def choices(self) -> list[Any]:
        """The choices in the order of the space, followed by other observed values."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of a numeric hyperparameter: the domain's bounds, extended to include all tried values."""


class ResultGrid(Sequence[Result]):
    """Sequence of an experiment's results, in the order of suggestion.

    Args:
        folder: folder of the experiment.
        results: one result per trial; the iterable is read at the first access to a result.
        metric, mode: metric and mode that define the best trial by default.
        objectives: objectives of an experiment with several objectives.
    """

    def __init__(
        self,
        folder: Path,
        results: Iterable[Result],
        metric: str | None = None,
        mode: str | None = None,
        objectives: Sequence[Objective] = (),
    ) -> None:
        self._folder = folder
        self._given = results
        self.metric = metric
        self.mode = mode
        self.objectives = tuple(objectives)

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike[str],
        *,
        metric: str | None = None,
        mode: str | None = None,
        storage_filesystem: Any = None,
    ) -> ResultGrid:
        """Read a finished or running experiment of trainkit or Ray Tune.

        The results show the current state; read a running experiment again for later results.

        Args:
            path: current path of the experiment's folder, or its address, which is downloaded.
            metric: metric that defines the best trial; None: the experiment's metric.
            mode: "min" or "max"; None: the experiment's mode.
            storage_filesystem: an fsspec file system for `path`; None: the file system that `path` names.

        Raises:
            StoreError: the experiment is missing, or its file is damaged or was not written by trainkit.
            StorageError: the address can't be read.
        """
        return cls.load(experiment_folder(path, storage_filesystem), metric=metric, mode=mode)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        metric: str | None = None,
        mode: str | None = None,
        objectives: Sequence[Objective] = (),
        errors: Mapping[tuple[str, int], BaseException] | None = None,
        configs: Mapping[str, dict[str, Any]] | None = None,
    ) -> ResultGrid:
        """Load results in the process that ran the experiment, with objects that the file does not contain.

        Args:
            folder: folder of the experiment.
            metric: metric that defines the best trial; None: the experiment's metric.
            mode: "min" or "max"; None: the experiment's mode.
            objectives: several objectives; (): the experiment's objectives.
            errors: exceptions of failed trials, by trial id and attempt.
            configs: configurations by trial, which may contain objects that the file can't store.

        Raises:
            StoreError: the experiment is missing, or its file is damaged or was not written by trainkit.
        """
        with open_experiment(folder) as reader:
            known = metric_and_mode(reader.facts())
            objectives = objectives or known_objectives(reader.facts())
            metric, mode = metric or known[0], mode or known[1]
            trials = reader.trials()
        for trial in trials:
            trial.config = (configs or {}).get(trial.trial_id, trial.config)
        results = [result_of(trial, folder, metric, mode, errors) for trial in trials]
        return cls(folder, results, metric, mode, objectives)

    @cached_property
    def _results(self) -> list[Result]:
        return list(self._given)

    def __getstate__(self) -> dict[str, Any]:
        # `results` may be an iterator, which can't be pickled, so a list replaces it.
        return {**vars(self), "_given": self._results}

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
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        """Return a table of the trials with the best last reports, or of the first trials if the experiment
        has no metric.
        """
        counts = [count_words(len(self), "trial"), f"{self.num_terminated} terminated"]
        counts += [f"{self.num_errors} failed"] if self.num_errors else []
        counts += [f"{self.num_unfinished} unfinished"] if self.num_unfinished else []
        shown = self._best_first()[:MAX_ROWS]
        configs = [flatten(result.config) for result in shown]
        varied = [
            name
            for name in dict.fromkeys(name for config in configs for name in config)
            if len({repr(config.get(name)) for config in configs}) > 1
        ]
        rows = []
        for result, config in zip(shown, configs, strict=True):
            metric = [lookup(result.metrics, self.metric)] if self.metric else []
            iteration = result.metrics.get("training_iteration", 0)
            state = f"{result.status}{'' if result.feasible else ', infeasible'}"
            cells = [result.trial_id, state, *metric, iteration]
            rows.append([cell_text(value, MAX_WIDTH) for value in (*cells, *map(config.get, varied))])
        by = f", best last {self.metric} ({self.mode}) first" if self.metric and self.mode else ""
        return Table(
            ["trial", "status", *([self.metric] if self.metric else []), "iteration", *varied],
            rows,
            [f"{type(self).__name__}({', '.join(counts)}, in {self.experiment_path})"],
            below=f"{len(shown)} of {len(self)} trials{by}" if shown else "",
            strong=0,
        )

    def _best_first(self) -> Sequence[Result]:
        metric, mode = self.metric, self.mode
        if metric is None or mode is None:
            return list(self)

        def score(result: Result) -> tuple[float, float]:
            found = trial_score([result.metrics], metric, mode, "last", keep_all=False)
            return -violation_in([result.metrics]), -math.inf if found is None else found

        return sorted(self, key=score, reverse=True)

    @property
    def experiment_path(self) -> str:
        """Path of the experiment's folder, for `Tuner.restore`."""
        return str(self._folder)

    @property
    def filesystem(self) -> Any:
        """The fsspec file system of `experiment_path`: the local file system. Needs fsspec."""
        return load("fsspec", "file systems", "storage").filesystem("file")

    @property
    def num_unfinished(self) -> int:
        """Number of trials that have not ended; after Ctrl-C, `Tuner.restore` resumes these trials."""
        return sum(not result.status.is_finished for result in self._results)

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions of failed trials, in the order of suggestion."""
        return [result.error for result in self._results if result.error is not None]

    @property
    def num_errors(self) -> int:
        """Number of failed trials."""
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        """Number of trials that finished or were stopped without a failure."""
        return sum(result.status is TrialStatus.TERMINATED for result in self._results)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
        require_feasible: bool = True,
    ) -> Result:
        """Return the best trial.

        Args:
            metric: metric to compare; None: the experiment's metric.
            mode: "min" or "max"; None: the experiment's mode.
            scope: reports by which trials are compared: "last", "all" (the best report), "avg" (mean of all
                reports), "last-5-avg" or "last-10-avg".
            filter_nan_and_inf: True ignores reports whose metric is NaN or infinite.
            require_feasible: in an experiment with constraints, True ignores trials whose last report
                violates a constraint (scope "all": trials without a feasible report, and all infeasible
                reports). False: if no trial is feasible, return the trial with the smallest violation.

        Returns:
            The result of the best trial, with the scope in `ranked_by`. Whatever the scope, `metrics` is the
                last report and `best_metrics` is the best report.

        Raises:
            MetricError: no trial reported the metric; the message lists the reported names. Or no trial is
                feasible; the message names the trial with the smallest violation.
            ConfigError: no metric or mode is known and the experiment has several trials; or `scope` is
                unknown.
        """
        if len(self) == 1 and metric is None and self.metric is None:
            best, reports = self._results[0], next(self._histories(scope), ("", []))[1]
            self._require_feasible(best, violation_in(reports, scope) if require_feasible else 0.0)
            return best
        metric, mode = self._metric_and_mode(metric, mode)
        scores: dict[str, tuple[float, float]] = {}
        for trial_id, history in self._histories(scope):
            score = trial_score(history, metric, mode, scope, keep_all=not filter_nan_and_inf)
            if score is not None:
                scores[trial_id] = -violation_in(history, scope), score
        if not scores:
            self._explain_missing(metric, scope)
        # max() returns the first of equal trials, which is the trial that was suggested first.
        scored = [result for result in self._results if result.trial_id in scores]
        best = max(scored, key=lambda result: scores[result.trial_id])
        self._require_feasible(best, -scores[best.trial_id][0] if require_feasible else 0.0)
        return replace(best, metric=metric, mode=mode, ranked_by=scope)

    def _require_feasible(self, best: Result, violation: float) -> None:
        if not violation:
            return
        texts = self.facts()["tune_config"].get("constraints", ())
        last = [result.metrics or {} for result in self._results]
        unknown = [
            each.metric
            for each in constraints_of(texts)
            if all(number_of(report, each.metric) is None for report in last)
        ]
        why = f"the smallest violation is {violation:.4g}, of {best.trial_id}: relax a constraint, run more "
        why += "trials, or use get_best_result(require_feasible=False)"
        if self.num_errors == len(self):
            why = f"{len(self)} of {len(self)} trials failed, the first error is {first_line(self[0].reason)}"
        elif unknown:
            why = f"a constraint names {missing_metric(unknown[0], last)}"
        raise MetricError(f"no trial satisfies {' and '.join(texts)}; {why}")

    def pareto_front(
        self, metric: Sequence[str] | None = None, mode: Sequence[str] | None = None
    ) -> list[Result]:
        """Return the trials that no other trial dominates, in the order of suggestion.

        A trial dominates another trial if its last report is not worse in any objective and better in at
        least one objective. Trials with equal values are all included. A trial is left out if it failed, or
        if its last report lacks a finite value of an objective or violates a constraint.

        Args:
            metric: metrics to compare; None: the experiment's objectives.
            mode: "min" or "max" for each metric; None: the experiment's modes.

        Raises:
            ConfigError: fewer than two objectives are known.
        """
        objectives = self.objectives_or(metric, mode)
        sound = [result for result in self._results if result.error is None and result.feasible]
        points = [(result, point_of(result.metrics or {}, objectives)) for result in sound]
        entered = [(result, point) for result, point in points if point and -math.inf not in point]
        return [entered[place][0] for place in front_of([point for _, point in entered])]

    def objectives_or(
        self, metric: Sequence[str] | None = None, mode: Sequence[str] | None = None
    ) -> tuple[Objective, ...]:
        """Return the given objectives, or else the experiment's objectives.

        Raises:
            ConfigError: fewer than two objectives are known.
        """
        objectives = objectives_of(metric, mode) or (self.objectives if metric is None else ())
        if not objectives:
            raise ConfigError(
                "a Pareto front needs several objectives: give metric=['accuracy', 'latency'], "
                "mode=['max', 'min'] here, or in the TuneConfig"
            )
        return objectives

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pandas.DataFrame:
        """Return a table with one row per trial: last report, and configuration in config/... columns.

        Args:
            filter_metric: metric that selects the best report of each trial; None: the last report.
            filter_mode: "min" or "max", for `filter_metric`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        if filter_metric is None:
            return pandas_frame([flatten(result.metrics) for result in self._results if result.metrics])
        metric, mode = self._metric_and_mode(filter_metric, filter_mode)
        best = {}
        for result, history in self.histories():
            if (report := best_row(history, metric, mode)) is not None:
                best[result.trial_id] = flatten(report)
        return pandas_frame([best[each.trial_id] for each in self._results if each.trial_id in best])

    def histories(self) -> Iterator[tuple[Result, list[dict[str, Any]]]]:
        """Yield each trial that has reports, with its reports. One trial's reports are in memory at once."""
        by_id = {result.trial_id: result for result in self._results}
        with self._reader() as reader:
            for trial_id, history in reader.histories():
                # A running experiment may have newer trials than this object.
                if (result := by_id.get(trial_id)) is not None:
                    yield result, [with_config(report, result.config) for report in history]

    def decisions(self) -> list[dict[str, Any]]:
        """Return the scheduler's decisions on all reports, in order, with reasons: rung, rank, cutoff."""
        with self._reader() as reader:
            return reader.decisions()

    def exchanges(self) -> list[Exchange]:
        """Return every change of a trial's configuration, such as an exploit, in chronological order."""
        with self._reader() as reader:
            return reader.exchanges()

    @property
    def timeline(self) -> list[Span]:
        """All attempts of all trials with their times and outcomes, in the order of their starts."""
        with self._reader() as reader:
            return reader.spans()

    def hyperparameters(self, results: Sequence[Result] | None = None) -> list[Hyperparameter]:
        """Return the hyperparameters that have a domain or differ between `results` (None: all trials)."""
        with self._reader() as reader:
            space = reader.facts().get("space")
        chosen = self._results if results is None else results
        named = loaded("trainkit.result_grid_methods", "hyperparameters")
        found: list[Hyperparameter] = named([result.config for result in chosen], space)
        return found

    def to_optuna(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> optuna.Study:
        """Return an in-memory Optuna study of all trials, for Optuna's plots and importance measures.

        Args:
            metric: metric that becomes a trial's value; None: the experiment's metric, or all objectives.
            mode: "min" or "max"; None: the experiment's mode.
            scope: reports by which trials are compared, as in `get_best_result`.

        Returns:
            The study. Trials that a scheduler stopped are PRUNED; trials without a value are FAIL. Reports
                become intermediate values by iteration. `user_attrs["trial_id"]` is the trial's id in the
                experiment.

        Raises:
            ConfigError: no metric or mode is known.
            MissingDependencyError: Optuna is not installed.
        """
        aims: Sequence[Objective] = self.objectives if metric is None and self.metric is None else ()
        aims = aims or (Objective(*self._metric_and_mode(metric, mode)),)
        with self._reader() as reader:
            study: optuna.Study = loaded("trainkit.result_grid_methods", "to_optuna")(
                self._results, reader, aims, scope, self._folder.name
            )
            return study

    def plot(self, kind: str = "curves", *, ax: Axes | None = None, **options: Any) -> Any:
        """Draw the experiment with Matplotlib or Plotly.

        Args:
            kind: "curves" (learning curves), "history" (values and the best so far), "parallel" (parallel
                coordinates), "importances", "slice", "contour" and "matrix" (of hyperparameters), "rungs" (of
                a scheduler), "lineage" (of a population), "timeline" (workers against time), "pareto" (front
                of two objectives), "edf" (distribution) or "compare" (curves of chosen trials).
            ax: axes to draw into; None: a new figure, which is not shown automatically. "slice" and "matrix"
                need several axes, and always create a figure.
            backend: "matplotlib", or "plotly" for a figure with zoom and values under the mouse.
            **options: options for this kind of plot; the documentation's page on plots lists the options.

        Returns:
            The figure. A notebook shows the figure, and `figure.savefig("curves.png")` writes it to a file.

        Raises:
            ConfigError: the kind is unknown; the message lists the known kinds.
            MetricError: no trial reported the metric.
            MissingDependencyError: matplotlib or plotly is not installed.
        """
        return loaded("trainkit.plots", "results")(self, kind, ax=ax, **options)

    def _metric_and_mode(self, metric: str | None, mode: str | None) -> tuple[str, str]:
        return what_is_best(metric, mode, (self.metric, self.mode), self.objectives)

    def _histories(self, scope: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        if scope == "last":
            yield from ((result.trial_id, [result.metrics]) for result in self._results if result.metrics)
            return
        with self._reader() as reader:
            yield from reader.histories()

    def facts(self) -> dict[str, Any]:
        """Return the stored properties of the whole experiment, such as seed, space and settings."""
        with self._reader() as reader:
            return reader.facts()

    def _reader(self) -> Reader:
        return open_experiment(self._folder)

    def _explain_missing(self, metric: str, scope: str) -> NoReturn:
        with self._reader() as reader:
            reports = [report for _, history in reader.histories() for report in history]
        values = [lookup(report, metric) for report in reports]
        if any(value is not None for value in values):
            more = "include more reports with scope='all', or " if any(map(is_finite, values)) else ""
            raise MetricError(
                f"no trial has a finite number as {metric!r} among its reports for scope={scope!r}; "
                f"{more}keep NaN with filter_nan_and_inf=False"
            )
        failed = [result for result in self._results if result.status is TrialStatus.ERROR]
        if failed and not reports:
            raise MetricError(
                f"no best trial by {metric!r}: {len(failed)} of {len(self)} trials failed and no trial "
                f"reported, the first error is {first_line(failed[0].reason)}"
            )
        raise MetricError(f"no best trial by {missing_metric(metric, reports)}")


class MemoryGrid(ResultGrid):
    """Results of an in-memory experiment; like a `ResultGrid`, but without checkpoints and a folder.

    Args:
        store: store with the experiment's records.
        metric, mode: metric and mode that define the best trial by default.
        errors: exceptions of failed trials, by trial id and attempt.
    """

    def __init__(
        self,
        store: MemoryStore,
        metric: str | None,
        mode: str | None,
        errors: Mapping[tuple[str, int], BaseException],
    ) -> None:
        self._store = store
        objectives = known_objectives(store.reader().facts())
        super().__init__(Path(), self._found(errors, metric, mode), metric, mode, objectives)

    def _found(
        self, errors: Mapping[tuple[str, int], BaseException], metric: str | None, mode: str | None
    ) -> Iterator[Result]:
        open_reader = self._store.reader
        for trial in open_reader().trials():
            trial.checkpoints.clear()  # the files of an in-memory experiment's checkpoints no longer exist
            yield result_of(trial, None, metric, mode, errors, open_reader)

    @property
    def experiment_path(self) -> str:
        """The string "memory", because the experiment has no folder."""
        return "memory"

    def _reader(self) -> Reader:
        return self._store.reader()
