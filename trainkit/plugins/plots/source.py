"""Data and options of a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.errors import ConfigError, MetricError, did_you_mean
from trainkit.plugins.integrations.hyperparameters import Hyperparameter, hyperparameters_of
from trainkit.plugins.plots.figures import Scored
from trainkit.plugins.plots.parameter_figures import Parameter
from trainkit.tune.core.checks import require_one_of
from trainkit.tune.core.constraints import VIOLATION
from trainkit.tune.core.objectives import Objective, front_of
from trainkit.tune.results.reading import known_objectives, metric_and_mode
from trainkit.tune.results.result_grid import ResultGrid

if TYPE_CHECKING:
    from trainkit.tune.core.lineage import Exchange
    from trainkit.tune.store.reader import Span


@dataclass(frozen=True)
class Options:
    """Options of a chart, read from a URL's query.

    Attributes:
        metric, mode: name of the metric, and its mode; "" means the metric or mode of the experiment.
        x: value on the horizontal axis of curves: "training_iteration", "time_total_s", or any reported
            number.
        log_x, log_y: True: use logarithmic axes.
        best: number of trials that have a name in `curves` and `parallel`.
        most: maximum number of curves in `curves`.
        trials: ids of the trials to show in `compare`.
        params: names of the hyperparameters to show; empty means all hyperparameters that vary.
        bracket: number of the bracket to show in `rungs`; None means the bracket with the most trials.
        method: method that computes `importances`: "forest" or "ped_anova"; "" means the first installed
            method.
        columns: number of plots side by side in `slice`.
        more: names of additional metrics to show in `matrix`.
    """

    metric: str = ""
    mode: str = ""
    x: str = "training_iteration"
    log_x: bool = False
    log_y: bool = False
    best: int = 8
    most: int = 100
    trials: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    bracket: int | None = None
    method: str = ""
    columns: int = 3
    more: tuple[str, ...] = ()

    @property
    def metrics(self) -> list[str]:
        """Names in `metric`, which are separated by commas; a Pareto front needs two."""
        return [name for name in self.metric.split(",") if name]

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Options:
        """Parse the options in a URL's query.

        Raises:
            ConfigError: an option is unknown, or its value is invalid.
        """
        known = {name: field.type for name, field in cls.__dataclass_fields__.items()}
        chosen: dict[str, Any] = {}
        for name, value in query.items():
            if name not in known:
                raise ConfigError(
                    f"a chart has no option {name!r}: the options are "
                    f"{', '.join(known)}.{did_you_mean(name, known, cutoff=0.6)}"
                )
            kind = str(known[name])
            if kind == "bool":
                require_one_of(name, value, ("0", "1"))
                chosen[name] = value == "1"
            elif kind.startswith("int"):
                if not (value.isascii() and value.isdecimal() and len(value) < 7):
                    raise ConfigError(f"{name} must be an integer from 0 to 999999, not {value[:40]!r}")
                chosen[name] = int(value)
            elif kind.startswith("tuple"):
                chosen[name] = tuple(dict.fromkeys(part for part in value.split(",") if part))
            else:
                chosen[name] = value
        made = cls(**chosen)
        if made.mode:
            require_one_of("mode", made.mode, ("min", "max"))
        return made


class ChartReader(Protocol):
    """Interface of a reader that provides an experiment's data for charts."""

    def last_values(self, metric: str) -> dict[str, float]:
        """Map trial ids to finite last values of the metric, in the order of suggestion."""

    def numbers(self, trial_ids: Sequence[str]) -> dict[str, int]:
        """Map each trial id to the trial's number in the order of suggestion; unknown ids are left out."""

    def states(self, trial_ids: Sequence[str]) -> dict[str, str]:
        """Map trial ids to the states of the trials, such as "finished"."""

    def first(self, count: int) -> list[str]:
        """Return the ids of the `count` trials that were suggested first."""

    def configs(self, trial_ids: Sequence[str]) -> list[Any]:
        """Return the configurations of these trials."""

    def curve(self, trial_id: str, metric: str, x: str) -> list[tuple[float, float]]:
        """Return the pair (x, metric) for each report of a trial that contains both as finite numbers."""

    def judgements(self, metric: str) -> tuple[list[dict[str, Any]], dict[tuple[str, int], float]]:
        """Return the scheduler's decisions at rungs, and the reported values that it judged."""

    def exchanges(self) -> list[Exchange]:
        """Return all changes of trials' configurations during the experiment, in the order of time."""

    def spans(self) -> list[Span]:
        """Return all attempts of trials with their times and outcomes, in the order of their starts."""

    def last_date(self) -> float:
        """Return the time, in seconds since 1970, up to which running attempts are drawn at least."""

    def nothing(self, *names: str) -> MetricError:
        """Return an error that says that no trial has a value of the metrics `names` to draw."""


@dataclass
class Source:
    """Data for a chart: the experiment's data and settings, and the options of the chart.

    Attributes:
        folder: folder of the experiment.
        reader: open reader of the experiment's data.
        facts: stored settings of the experiment, by name.
        options: options of the chart.
        is_whole: True: draw all trials; False: draw at most a maximum number of trials.
    """

    folder: Path
    reader: ChartReader
    facts: Mapping[str, Any]
    options: Options
    is_whole: bool = False
    assumed: dict[str, str] = field(default_factory=dict)
    """Maps metrics whose mode is unknown to the mode that was assumed."""

    @property
    def modes(self) -> dict[str, str]:
        """Maps metrics to the modes that the experiment defines."""
        usual, mode = metric_and_mode(self.facts)
        known = {each.metric: each.mode for each in known_objectives(self.facts)}
        if usual is not None and mode is not None:
            known[usual] = mode
        return known

    def mode_of(self, metric: str) -> str:
        """Return the mode of a metric: from the options, from the experiment, or an assumed mode."""
        if (given := self.options.mode or self.modes.get(metric)) is None:
            given = self.assumed[metric] = metric_and_mode(self.facts)[1] or "min"
        return given

    @property
    def judged_by(self) -> tuple[str, str]:
        """The metric that the options name, or else the experiment's metric; with its mode.

        Raises:
            ConfigError: neither the options nor the experiment name a metric.
        """
        objectives = [each.metric for each in known_objectives(self.facts)]
        usual = metric_and_mode(self.facts)
        metric = self.options.metric or usual[0] or next(iter(objectives), None)
        if metric is None:
            raise ConfigError("the experiment defines no metric to draw: choose one")
        return metric, self.mode_of(metric)

    @cached_property
    def values(self) -> list[tuple[str, float]]:
        """Id and value of each trial whose last report contains the metric, in the order of suggestion.

        Raises:
            MetricError: no trial has a value.
        """
        metric, _ = self.judged_by
        values = [
            (trial_id, float(value))
            for trial_id, value in self.reader.last_values(metric).items()
            if value > 0 or not self.options.log_y
        ]
        if not values:
            raise self.reader.nothing(metric)
        return values

    def is_feasible(self, trial_id: str) -> bool:
        """Return True if the last report of a trial satisfies all constraints."""
        return self._feasible is None or trial_id in self._feasible

    @cached_property
    def _feasible(self) -> set[str] | None:
        """Ids of the feasible trials; None if the experiment has no constraints."""
        if not self.facts["tune_config"].get("constraints"):
            return None
        return {trial_id for trial_id, value in self.reader.last_values(VIOLATION).items() if value == 0}

    def latest(self, values: Sequence[Any], most: int) -> Sequence[Any]:
        """Return at most the `most` latest values; return all values if `is_whole` is True."""
        return values if self.is_whole else values[-most:]

    def scored(self, most: int, *, with_best: bool = False) -> Scored:
        """Return the latest trials whose last report contains the metric, in the order of suggestion.

        Args:
            most: maximum number of trials.
            with_best: True: include the best trial of all, even if it is not among the latest.

        Raises:
            MetricError: no trial has the metric.
        """
        values = self.latest(self.values, most)
        if with_best and (best := self.best_of(self.values)) not in values:
            values = [best, *values[1:]]
        trial_ids = [trial_id for trial_id, _ in values]
        numbers = self.reader.numbers(trial_ids)
        return Scored(trial_ids, [numbers[each] for each in trial_ids], [value for _, value in values])

    def best_of(self, values: Sequence[tuple[str, float]]) -> tuple[str, float]:
        """Return the id and value of the best trial, feasible if possible; of equal trials, the first."""
        best = min if self.judged_by[1] == "min" else max
        feasible = [each for each in values if self.is_feasible(each[0])]
        return best(feasible or values, key=lambda each: each[1])

    @property
    def grid(self) -> ResultGrid:
        """Results of the experiment."""
        metric, mode = self.judged_by
        return ResultGrid.load(self.folder, metric=metric, mode=mode)

    @property
    def objectives(self) -> Sequence[Objective]:
        """Objectives that the options name, else the objectives of the experiment."""
        if names := self.options.metrics:
            # The experiment's mode for a metric takes precedence over the mode in the options.
            return [Objective(name, self.modes.get(name) or self.mode_of(name)) for name in names]
        return known_objectives(self.facts)

    def front(self, points: Mapping[str, tuple[float, float]]) -> list[str]:
        """Return the ids of the feasible trials that no other feasible trial beats in both objectives."""
        points = {trial_id: point for trial_id, point in points.items() if self.is_feasible(trial_id)}
        ids, signs = list(points), [-1.0 if each.mode == "min" else 1.0 for each in self.objectives]
        return [ids[place] for place in front_of([(signs[0] * x, signs[1] * y) for x, y in points.values()])]

    def hyperparameters(self, trials: Scored) -> list[Hyperparameter]:
        """Return the hyperparameters that the options name; without names, all hyperparameters that vary.

        Raises:
            ConfigError: a named hyperparameter is unknown or does not vary, or no hyperparameter varies.
        """
        found = hyperparameters_of(self.reader.configs(trials.trial_ids), self.facts.get("space"))
        by_name = {each.name: each for each in found}
        unknown = [name for name in self.options.params if name not in by_name]
        if not by_name:
            raise ConfigError("no hyperparameter varies in this experiment")
        if unknown:
            raise ConfigError(
                f"{', '.join(map(repr, unknown))} cannot be drawn: the hyperparameters that vary are "
                f"{', '.join(by_name)}"
            )
        return [by_name[name] for name in self.options.params] if self.options.params else found

    def parameters(self, trials: Scored) -> list[Parameter]:
        """Return the chosen hyperparameters, each with a list of its values in all trials."""
        return [_parameter(each, len(trials.values)) for each in self.hyperparameters(trials)]


def _parameter(each: Hyperparameter, count: int) -> Parameter:
    values = [each.values.get(place) for place in range(count)]
    if each.is_numeric:
        return Parameter(each.name, values, log=each.is_log, whole=each.is_whole)
    there = each.values.keys()
    return Parameter(
        each.name,
        [str(value) if place in there else None for place, value in enumerate(values)],
        choices=list(dict.fromkeys(map(str, each.choices))),
    )
