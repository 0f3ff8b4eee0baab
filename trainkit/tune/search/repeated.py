"""The trials of an experiment with a `Repeater`, by the configuration that they repeat."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.tune.checks import is_number
from trainkit.tune.suggestion.fingerprint import fingerprint
from trainkit.tune.values import lookup

TRIAL_INDEX = "__trial_index__"
"""Key of a configuration: which of the unit's trials it is, from 0."""


@dataclass(frozen=True)
class RepeatedResult:
    """The trials of one configuration.

    Attributes:
        config: without the index.
        results: of its trials, in the order of the index.
        values: of the metric, of those that reported it.
        mean: of `values`; NaN without any.
        std: their sample standard deviation; 0 for one.
    """

    config: dict[str, Any]
    results: Sequence[Any]
    values: Sequence[float]
    mean: float
    std: float


def by_unit(results: Iterable[Any], metric: str) -> list[RepeatedResult]:
    """Return the trials of an experiment grouped by configuration, in the order in which these came.

    The best configuration is the one with the best mean, which `min` or `max` finds:

        best = min(by_unit(grid, "loss"), key=lambda unit: unit.mean)

    A unit with fewer values than the best one has was cut short by `skip` or by failures.

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
    """Sample standard deviation; 0 of one value, NaN where a value is not finite."""
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0


def without_index(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that a trial repeats."""
    return {key: value for key, value in config.items() if key != TRIAL_INDEX}
