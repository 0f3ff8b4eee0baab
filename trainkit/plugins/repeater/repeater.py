"""Searches in which each configuration has a unit of several trials, for example one per fold or seed.

searcher.suggest -> unit -> trial with __trial_index__ 0, 1, ... repeat - 1
    searcher.on_trial_complete(mean) <- all trials of the unit have ended

Rules for skipping: E. Bergman, L. Purucker, F. Hutter, "Don't Waste Your Time: Early Stopping
Cross-Validation", AutoML 2024, arXiv:2405.03389.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trainkit.tune.core.checks import arguments_of, is_number, require, require_one_of, require_whole
from trainkit.tune.core.constraints import violation_in
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.setting_names import setting
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.search.base import Searcher, SearcherWrapper
from trainkit.tune.space.configurations import copied, fingerprint
from trainkit.tune.space.search_space import Space

TRIAL_INDEX = "__trial_index__"
"""Key in a configuration for the index of the trial among the trials of its unit, from 0."""


@dataclass(frozen=True)
class RepeatedResult:
    """The results of all trials of one configuration.

    Attributes:
        config: the configuration without the index.
        results: results of the trials, in the order of the index.
        values: values of the metric, from all trials that reported the metric.
        mean: mean of `values`; NaN if `values` is empty.
        std: sample standard deviation of `values`; 0 for a single value.
    """

    config: dict[str, Any]
    results: Sequence[Any]
    values: Sequence[float]
    mean: float
    std: float


def by_unit(results: Iterable[Any], metric: str) -> list[RepeatedResult]:
    """Return the trials of an experiment grouped by configuration, in the order of first occurrence.

    The best configuration has the best mean, which `min` or `max` finds:

        best = min(by_unit(grid, "loss"), key=lambda unit: unit.mean)

    A unit has fewer values than the best unit if `skip` ended it early or if some of its trials failed.

    Args:
        results: a `ResultGrid`, or a list of `Result`s.
        metric: name of the reported value.
    """
    groups: dict[bytes, list[Any]] = {}
    for result in results:
        groups.setdefault(fingerprint(without_index(result.config)), []).append(result)
    units = []
    for group in groups.values():
        group.sort(key=lambda result: result.config.get(TRIAL_INDEX, 0))
        values = [
            float(value)
            for result in group
            if result.error is None and is_number(value := lookup(result.metrics or {}, metric))
        ]
        units.append(
            RepeatedResult(
                config=without_index(group[0].config),
                results=group,
                values=values,
                mean=statistics.fmean(values) if values else math.nan,
                std=deviation(values),
            )
        )
    return units


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for a single value, NaN if a value is not finite."""
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0


def without_index(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's configuration without the index of the trial in its unit."""
    return {key: value for key, value in config.items() if key != TRIAL_INDEX}


SkipRule = Literal["forgiving", "aggressive"]


@dataclass
class _Unit:
    """One configuration and the trials that repeat it.

    Attributes:
        primary: id of the first trial, which identifies the unit for the searcher.
        config: the configuration without the index.
        folds: ids of the trials so far, in the order of the index.
        results: results of the ended trials, by trial id; None for a failed trial.
        lost: True once the remaining trials are skipped.
        told: True once the searcher has received the result of the unit.
    """

    primary: str
    config: dict[str, Any]
    folds: list[str] = field(default_factory=list)
    results: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    lost: bool = False
    told: bool = False


class Repeater(SearcherWrapper):
    """A wrapper that runs each configuration of a searcher several times, and reports the mean once.

    `num_samples` counts all trials, as in Ray. For example, `num_samples=15` with `repeat=5` runs three
    configurations. Trials that do not fill a unit are not run. With a `BasicVariantGenerator`, the whole grid
    is sampled `num_samples // repeat` times.

    The searcher receives the mean of the metric over the trials of a unit, the sample standard deviation as
    `repeat_std`, and the number of values as `repeat_count`. Failed trials have no value. A unit fails if all
    of its trials fail.

    Args:
        searcher: searcher that suggests the configurations.
        repeat: number of trials of each configuration, 1 or more.
        set_index: True: `config["__trial_index__"]` is the trial's index in its unit, from 0, by which the
            trial selects a fold or a seed.
        skip: rule for skipping the remaining trials of a unit. None: never skip. "forgiving": skip if the
            mean so far is worse than the worst single trial of the best unit. "aggressive": skip if the mean
            so far is worse than the best unit's mean. Only units in which every trial reported can be the
            best unit.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self, searcher: Searcher, repeat: int = 1, set_index: bool = True, *, skip: SkipRule | None = None
    ) -> None:
        super().__init__(searcher)
        require_whole("repeat", repeat, 1)
        require_one_of("skip", skip, (None, "forgiving", "aggressive"))
        self.repeat = int(repeat)
        self.set_index = bool(set_index)
        self.skip = skip
        self._unit_of: dict[str, _Unit] = {}
        self._units = 0
        self._open: _Unit | None = None
        """The latest unit, which may have trials that have not started yet."""
        self._best: list[float] = []
        """Values of the metric from the trials of the best complete unit."""

    in_units = True

    @property
    def arguments(self) -> dict[str, Any]:
        return arguments_of(self)

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        units = num_samples if num_samples == -1 else num_samples // self.repeat
        require(
            units != 0,
            f"{setting('num_samples')}={num_samples} is less than repeat={self.repeat}: "
            f"{setting('num_samples')} counts all trials, so use a multiple of {self.repeat}",
        )
        require(
            not self.objectives,
            "Repeater averages one metric, but the experiment has several objectives: set one metric",
        )
        super().begin(space, metric=metric, mode=mode, num_samples=units, seed=seed)
        self._keep(num_samples=num_samples)
        require(
            self.skip is None or (self.metric is not None and self.mode is not None),
            f"skip={self.skip!r} needs a metric and a mode: set both in TuneConfig",
        )

    def note(self, trial_id: str, config: dict[str, Any]) -> bool:
        """Return False, because the searcher learns only from units, and an added configuration is a single
        trial.
        """
        return False

    def resize(self, num_samples: int) -> None:
        super().resize(num_samples if num_samples == -1 else num_samples // self.repeat)
        self._keep(num_samples=num_samples)

    @property
    def total_samples(self) -> int | None:
        units = self._inner.total_samples
        return None if units is None else units * self.repeat

    # --- suggestions ------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        unit = self._unit_with_room()
        if unit is not None:
            return self._hand_out(unit, trial_id)
        units = self._inner.total_samples
        if units is not None and self._units >= units:  # skipped trials are not replaced by further units
            return self.FINISHED
        suggestion = self._inner.suggest(trial_id)
        return self._begin_unit(trial_id, suggestion) if isinstance(suggestion, dict) else suggestion

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        unit = self._unit_with_room()
        if unit is not None:
            return self._hand_out(unit, trial_id)
        replayed = self._inner.replay(trial_id, without_index(config), same_space=same_space)
        return None if replayed is None else self._begin_unit(trial_id, replayed)

    def is_drawn(self, trial_id: str) -> bool:
        """Return True only for a unit's first trial, because later trials repeat it on purpose."""
        return self._unit_of[trial_id].primary == trial_id and self._inner.is_drawn(trial_id)

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        unit = self._unit_of.pop(trial_id)
        self._units -= 1
        self._open = None
        first = self._unit_of.get(result.get("trial_id", "")) if result else None
        # The searcher must receive the result of the whole unit instead of the result of its first trial.
        if first is not None and self._ended(first):
            result = self._summary(first)
        self._inner.on_rejected(unit.primary, result)

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]] | None:
        found = self._inner.alternatives(trial_id)
        if found is None or not self.set_index:
            return found
        return ({**config, TRIAL_INDEX: 0} for config in found)

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        taken = self._inner.take(trial_id, without_index(config))
        if taken:
            self._begin_unit(trial_id, without_index(config))
        return taken

    def _unit_with_room(self) -> _Unit | None:
        unit = self._open
        if unit is None or len(unit.folds) >= self.repeat:
            return None
        if self._is_lost(unit):
            self._give_up_rest(unit)
            return None
        return unit

    def _begin_unit(self, trial_id: str, config: dict[str, Any]) -> dict[str, Any]:
        self._units += 1
        self._open = _Unit(trial_id, config)
        return self._hand_out(self._open, trial_id)

    def _hand_out(self, unit: _Unit, trial_id: str) -> dict[str, Any]:
        index = len(unit.folds)
        unit.folds.append(trial_id)
        self._unit_of[trial_id] = unit
        config: dict[str, Any] = copied(unit.config)
        if self.set_index:
            config[TRIAL_INDEX] = index
        return config

    # --- results ----------------------------------------------------------------------------------

    @property
    def hears_again(self) -> bool:
        return True

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Ignore the report: the searcher only knows units, and one report says little about a unit."""

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        """Ignore the decision: the searcher only knows units."""

    def on_pause(self, trial_id: str) -> None:
        """Ignore the pause: a unit ends once all of its trials have ended."""

    def on_unpause(self, trial_id: str) -> None:
        """Ignore the resumption: the searcher was not notified of the pause."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        unit = self._unit_of[trial_id]
        unit.results[trial_id] = None if error else result or {}
        if unit is self._open and len(unit.folds) < self.repeat and self._is_lost(unit):
            self._give_up_rest(unit)
        elif self._ended(unit):
            self._tell(unit)

    def _ended(self, unit: _Unit) -> bool:
        return (unit.lost or len(unit.folds) == self.repeat) and len(unit.results) == len(unit.folds)

    def _give_up_rest(self, unit: _Unit) -> None:
        unit.lost, self._open = True, None
        if self._ended(unit):
            self._tell(unit)

    def _tell(self, unit: _Unit) -> None:
        summary = self._summary(unit)
        if not unit.told or self._inner.hears_again:
            self._inner.on_trial_complete(unit.primary, summary, error=summary is None)
        unit.told = True
        values = self._values(unit)
        whole = len(values) == self.repeat and all(map(math.isfinite, values))
        if whole and (not self._best or self._worse(statistics.fmean(self._best), statistics.fmean(values))):
            self._best = values

    def _summary(self, unit: _Unit) -> dict[str, Any] | None:
        """Return the unit's result for the searcher; None: all trials of the unit failed."""
        ended = [result for result in reversed(unit.results.values()) if result is not None]
        # A unit is as infeasible as its most infeasible trial.
        last = max(ended, key=lambda result: violation_in([result]), default=None)
        values = self._values(unit)
        if last is None or self.metric is None:
            return last
        if not values:
            return None
        return {
            **last,
            self.metric: statistics.fmean(values),
            "repeat_std": deviation(values),
            "repeat_count": len(values),
        }

    def _values(self, unit: _Unit) -> list[float]:
        """Return the values of the metric that the unit's trials reported, in the order of the index."""
        found = [lookup(unit.results.get(fold) or {}, self.metric or "") for fold in unit.folds]
        return [float(value) for value in found if is_number(value)]

    def _is_lost(self, unit: _Unit) -> bool:
        values = self._values(unit)
        if self.skip is None or not values or not self._best:
            return False
        mean = statistics.fmean(values)
        if self.skip == "aggressive":
            return self._worse(mean, statistics.fmean(self._best))
        return self._worse(mean, max(self._best) if self.mode == "min" else min(self._best))

    def _worse(self, one: float, other: float) -> bool:
        # The comparison is written in negated form, so that NaN counts as worse than every number.
        return not (one <= other if self.mode == "min" else one >= other)
