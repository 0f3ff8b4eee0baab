"""Earlier experiments of similar problems as plain data, which the file of an experiment can keep."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.metrics import PLAIN_TYPES, as_scalar, flatten, lookup
from trainkit.tune.results.result_grid import ResultGrid

Trial = tuple[Mapping[str, Any], float | None]
"""Configuration of a trial by name of the parameter, and its value; None: the trial failed."""


def plain_sources(sources: Any, metric: str | None, mode: str | None) -> list[dict[str, Any]] | None:
    """Return earlier experiments as plain data, which the file of an experiment can keep; None for None.

    Args:
        sources: a list of experiments. Each is a folder, a `ResultGrid` or another list of results, a
            DataFrame with a column for each parameter and for the metric, or the plain data of an experiment.
        metric: name of the metric.
        mode: "min" or "max", for sources that do not know the direction of `metric`.

    Returns:
        Dictionaries with the keys `name`, `mode`, `configs` (by name of the parameter) and `values`, in which
        None belongs to a failed trial.

    Raises:
        ConfigError: a source is not an experiment, or no source reports the metric.
        StoreError: a folder contains no experiment.
    """
    if sources is None:
        return None
    if isinstance(sources, (str, os.PathLike, ResultGrid)) or hasattr(sources, "columns"):
        sources = [sources]
    if metric is None or not isinstance(sources, Iterable) or isinstance(sources, Mapping):
        raise ConfigError(
            f"learn_from={sources!r}: give a list of folders, ResultGrids or DataFrames, and a single metric"
        )
    found = [_plain(each, metric, mode, f"source {number}") for number, each in enumerate(sources, 1)]
    usable = [each for each in found if any(map(is_number, each["values"]))]
    lost = ", ".join(each["name"] for each in found if each not in usable)
    if not usable:
        raise ConfigError(f"learn_from: no trial of {lost or 'an empty list'} reported {metric!r}")
    if lost:
        warnings.warn(f"learn_from: no trial of {lost} reported {metric!r}, so it is not used", stacklevel=2)
    return usable


def _plain(source: Any, metric: str, mode: str | None, name: str) -> dict[str, Any]:
    if isinstance(source, Mapping) and "configs" in source:
        return dict(source)
    if isinstance(source, (str, os.PathLike)):
        source, name = ResultGrid.from_path(source), os.fspath(source)
    elif isinstance(source, ResultGrid):
        name = source.experiment_path
    trials: Iterable[Trial | None]
    if hasattr(source, "columns"):
        trials = map(partial(_of_record, metric), source.to_dict("records"))
    elif isinstance(source, Iterable):
        trials = map(partial(_of_trial, metric), source)
    else:
        raise ConfigError(f"learn_from: {source!r} is not a folder, a ResultGrid or a DataFrame")
    if getattr(source, "metric", None) == metric:
        mode = source.mode or mode
    kept = [each for each in trials if each is not None]
    return {
        "name": name,
        "mode": mode,
        "configs": [_scalars(config) for config, _ in kept],
        "values": [value for _, value in kept],
    }


def _of_trial(metric: str, trial: Any) -> Trial | None:
    config, value = flatten(trial.config or {}), lookup(trial.metrics or {}, metric)
    if trial.error is not None:
        return config, None
    # A trial that is not finished, and has no report, says nothing.
    return (config, _finite(value)) if is_number(value) else None


def _of_record(metric: str, record: Mapping[Any, Any]) -> Trial | None:
    flat = {str(name): value for name, value in record.items()}
    config = {name.removeprefix("config/"): each for name, each in flat.items() if name.startswith("config/")}
    return config or {name: each for name, each in flat.items() if name != metric}, _finite(flat.get(metric))


def _finite(value: Any) -> float | None:
    return float(value) if is_number(value) and math.isfinite(value) else None


def _scalars(config: Mapping[str, Any]) -> dict[str, Any]:
    scalars = {name: as_scalar(value) for name, value in config.items()}
    # A DataFrame has NaN where a configuration lacks a parameter.
    return {name: each for name, each in scalars.items() if type(each) in PLAIN_TYPES and each == each}


def sources_with(names: Collection[str], sources: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the sources that have one of the parameters `names`, and warn about the others.

    Raises:
        ConfigError: no source has one of these parameters.
    """
    usable = [each for each in sources if any(name in config for config in each["configs"] for name in names)]
    lost = ", ".join(each["name"] for each in sources if each not in usable)
    if not usable:
        raise ConfigError(
            f"learn_from: {lost} shares no parameter with the space: give experiments with parameters of the "
            "same names"
        )
    if lost:
        warnings.warn(
            f"learn_from: {lost} shares no parameter with the space, so it is not used", stacklevel=2
        )
    return usable
