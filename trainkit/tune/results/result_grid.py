"""Results of an experiment: a ResultGrid with a Result per trial."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

from trainkit.errors import ConfigError, MetricError
from trainkit.tune.controller.rules import missing_metric
from trainkit.tune.core.checks import is_finite, load, pandas_frame
from trainkit.tune.core.lineage import Exchange
from trainkit.tune.core.metrics import first_line, flatten, lookup
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
from trainkit.tune.results import hyperparameters as study
from trainkit.tune.results.hyperparameters import Hyperparameter, hyperparameters_of
from trainkit.tune.results.reading import (
    Reader,
    experiment_folder,
    known_objectives,
    metric_and_mode,
    open_experiment,
)
from trainkit.tune.results.result import MAX_WIDTH, Result, result_of, with_config
from trainkit.tune.store.memory import MemoryStore
from trainkit.tune.store.reader import Span

if TYPE_CHECKING:
    import optuna
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ROWS = 10
"""Trials in the table of a grid."""


class ResultGrid(Sequence[Result]):
    """The results of an experiment, in the order suggested: `len`, index, iteration.

    Args:
        folder: of the experiment.
        results: one per trial; looked at when the first of them is.
        metric, mode: what "best" means where a method is given none.
        objectives: where the experiment has several.
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
        """Read an experiment back, finished or running; also one that Ray Tune wrote.

        What it holds is as of now: of a running experiment, read it again to see more.

        Args:
            path: of the experiment's folder, wherever it lies now; or its address, which is copied here.
            metric: what "best" means; None: as the experiment was started with.
            mode: "min" or "max"; None: as the experiment was started with.
            storage_filesystem: of fsspec, that `path` is a path of; None: the one that it names.

        Raises:
            StoreError: there is none, or its file is damaged or foreign.
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
        """Load results in the process that ran the experiment, which knows more than its file.

        Args:
            folder: of the experiment.
            metric: as above.
            mode: as above.
            objectives: where there are several; none: as the experiment was started with.
            errors: exceptions themselves, by trial and attempt.
            configs: configurations by trial, which may hold objects that text can't.

        Raises:
            StoreError: there is none, or its file is damaged or foreign.
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
        return {**vars(self), "_given": self._results}  # which may be an iterator, and can't travel

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
        """Return the best trials by their last reports; the first ones without a metric."""
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
            cells = [result.trial_id, str(result.status), *metric, iteration]
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

        def score(result: Result) -> float:
            found = trial_score([result.metrics], metric, mode, "last", keep_all=False)
            return -math.inf if found is None else found

        return sorted(self, key=score, reverse=True)

    @property
    def experiment_path(self) -> str:
        """Path of the experiment's folder, for `Tuner.restore`."""
        return str(self._folder)

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem in which `experiment_path` lies: this machine's. Needs fsspec."""
        return load("fsspec", "file systems", "storage").filesystem("file")

    @property
    def num_unfinished(self) -> int:
        """How many trials have not ended: after Ctrl-C, those that `Tuner.restore` goes on with."""
        return sum(not result.status.is_finished for result in self._results)

    @property
    def errors(self) -> list[BaseException]:
        """Return the exceptions of failed trials, in the order suggested."""
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
            ConfigError: no metric or mode is known, and there are several trials to choose from; or `scope`
                is none of these.
        """
        if len(self) == 1 and metric is None and self.metric is None:
            return self._results[0]
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

    def pareto_front(
        self, metric: Sequence[str] | None = None, mode: Sequence[str] | None = None
    ) -> list[Result]:
        """Return the trials that none is better than in every objective, in the order suggested.

        A trial dominates another if its last report is nowhere worse and somewhere better. Those with equal
        values are all in; one that failed, or whose last report lacks an objective or has it as no finite
        number, is not.

        Args:
            metric: reported values; None: the experiment's objectives.
            mode: "min" or "max" for each; None: the experiment's.

        Raises:
            ConfigError: there are not several objectives.
        """
        objectives = self.objectives_or(metric, mode)
        entered: list[Result] = []
        points = []
        for result in self._results:
            point = None if result.error is not None else point_of(result.metrics or {}, objectives)
            if point is not None and -math.inf not in point:
                entered.append(result)
                points.append(point)
        return [entered[place] for place in front_of(points)]

    def objectives_or(
        self, metric: Sequence[str] | None = None, mode: Sequence[str] | None = None
    ) -> tuple[Objective, ...]:
        """Several objectives: those given, or else the experiment's.

        Raises:
            ConfigError: there are none.
        """
        objectives = objectives_of(metric, mode) or (self.objectives if metric is None else ())
        if not objectives:
            raise ConfigError(
                "a Pareto front is of several objectives: give metric=['accuracy', 'latency'], "
                "mode=['max', 'min'] here, or in the TuneConfig"
            )
        return objectives

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
        if filter_metric is None:
            return pandas_frame([flatten(result.metrics) for result in self._results if result.metrics])
        metric, mode = self._metric_and_mode(filter_metric, filter_mode)
        best = {}
        for result, history in self.histories():
            if (report := best_row(history, metric, mode)) is not None:
                best[result.trial_id] = flatten(report)
        return pandas_frame([best[each.trial_id] for each in self._results if each.trial_id in best])

    def histories(self) -> Iterator[tuple[Result, list[dict[str, Any]]]]:
        """Give each trial that has reported with all its reports; one at a time is in memory."""
        by_id = {result.trial_id: result for result in self._results}
        with self._reader() as reader:
            for trial_id, history in reader.histories():
                if (result := by_id.get(trial_id)) is not None:  # a running experiment may have more by now
                    yield result, [with_config(report, result.config) for report in history]

    def decisions(self) -> list[dict[str, Any]]:
        """Return what the scheduler decided on all trials' reports, in order, and why: rung, rank, cutoff."""
        with self._reader() as reader:
            return reader.decisions()

    def exchanges(self) -> list[Exchange]:
        """Return how trials took over the states of others, or other configurations, in order."""
        with self._reader() as reader:
            return reader.exchanges()

    @property
    def timeline(self) -> list[Span]:
        """When each attempt of each trial ran, and what became of it, in the order of their starts."""
        with self._reader() as reader:
            return reader.spans()

    def hyperparameters(self, results: Sequence[Result] | None = None) -> list[Hyperparameter]:
        """Return the hyperparameters that vary, under flat names, over `results`; None: over all trials."""
        with self._reader() as reader:
            space = reader.facts().get("space")
        chosen = self._results if results is None else results
        return hyperparameters_of([result.config for result in chosen], space)

    def to_optuna(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> optuna.Study:
        """Return an Optuna study, in memory, with every trial: for Optuna's plots and importance measures.

        Args:
            metric: reported value that becomes a trial's value; None: the experiment's, or all of several.
            mode: "min" or "max"; None: the experiment's.
            scope: which of a trial's reports stands for it, as in `get_best_result`.

        Returns:
            The study. Trials that a scheduler stopped are PRUNED, those without a value FAIL; reports are
            intermediate values by iteration; `user_attrs["trial_id"]` is the trial's id here.

        Raises:
            ConfigError: no metric or mode is known.
            MissingDependencyError: Optuna is not installed.
        """
        aims: Sequence[Objective] = self.objectives if metric is None and self.metric is None else ()
        aims = aims or (Objective(*self._metric_and_mode(metric, mode)),)
        with self._reader() as reader:
            return study.optuna_study(self._results, reader, aims, scope, self._folder.name)

    def plot(self, kind: str = "curves", *, ax: Axes | None = None, **options: Any) -> Figure:
        """Draw the experiment with matplotlib.

        Args:
            kind: "curves" (learning curves), "lineage" (of a population), "parallel" (parallel coordinates),
                "pareto" (front of two objectives), "rungs" (of a scheduler) or "timeline" (workers against
                time).
            ax: axes to draw into; None: a new figure, which no window shows until you ask for it.
            **options: of the kind; see `trainkit.tune.plots`.

        Returns:
            The figure: a notebook shows it, `figure.savefig("curves.png")` writes it.

        Raises:
            ConfigError: there is no such kind; those that there are are named.
            MetricError: no trial reported the metric.
            MissingDependencyError: matplotlib is not installed.
        """
        figure: Figure = importlib.import_module("trainkit.tune.plots").plot(self, kind, ax=ax, **options)
        return figure

    def _metric_and_mode(self, metric: str | None, mode: str | None) -> tuple[str, str]:
        return what_is_best(metric, mode, (self.metric, self.mode), self.objectives)

    def _histories(self, scope: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        if scope == "last":
            yield from ((result.trial_id, [result.metrics]) for result in self._results if result.metrics)
            return
        with self._reader() as reader:
            yield from reader.histories()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the experiment as a whole: seed, space, settings."""
        with self._reader() as reader:
            return reader.facts()

    def _reader(self) -> Reader:
        return open_experiment(self._folder)

    def _explain_missing(self, metric: str, scope: str) -> NoReturn:
        with self._reader() as reader:
            reports = [report for _, history in reader.histories() for report in history]
        values = [lookup(report, metric) for report in reports]
        if any(value is not None for value in values):
            more = "look at more of them with scope='all', or " if any(map(is_finite, values)) else ""
            raise MetricError(
                f"no trial has a finite number as {metric!r} among its reports for scope={scope!r}; "
                f"{more}keep NaN with filter_nan_and_inf=False"
            )
        failed = [result for result in self._results if result.status is TrialStatus.ERROR]
        if failed and not reports:
            raise MetricError(
                f"no best trial by {metric!r}: {len(failed)} of {len(self)} trials failed and none reported, "
                f"the first with {first_line(failed[0].reason)}"
            )
        raise MetricError(f"no best trial by {missing_metric(metric, reports)}")


class MemoryGrid(ResultGrid):
    """The results of an experiment in memory: all that a `ResultGrid` has, but for checkpoints and a folder.

    Args:
        store: what holds the records.
        metric, mode: what "best" means where a method is given none.
        errors: what trials raised, by trial and attempt.
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
            trial.checkpoints.clear()  # whatever they were, nothing of them is left
            yield result_of(trial, None, metric, mode, errors, open_reader)

    @property
    def experiment_path(self) -> str:
        """Such an experiment has no folder."""
        return "memory"

    def _reader(self) -> Reader:
        return self._store.reader()
