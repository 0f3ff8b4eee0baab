"""Earlier experiments of similar problems as plain data, which the file of an experiment can keep."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError
from trainkit.plugins.gaussian_process.curves import COMPARED, Curves
from trainkit.tune.core.checks import is_finite, is_number
from trainkit.tune.core.constraints import VIOLATION, Constraint, violation_of
from trainkit.tune.core.metrics import PLAIN_TYPES, as_scalar, flatten, lookup, shortened_repr
from trainkit.tune.results.result import Result
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.schedulers.base import Decision, Verdict
from trainkit.tune.space.transforms import ChoiceCode

Trial = tuple[Mapping[str, Any], float | None]
"""Configuration of a trial by name of the parameter, and its value; None: it failed or is infeasible."""


def plain_sources(
    sources: Any, metric: str | None, mode: str | None, constraints: Sequence[Constraint] = ()
) -> list[dict[str, Any]] | None:
    """Return earlier experiments as plain data, which the file of an experiment can keep.

    Args:
        sources: a list of experiments. Each is a folder, a `ResultGrid` or another list of results, a table
            with a column for each parameter and for the metric (a DataFrame, or a list of dictionaries), or
            the plain data of an experiment. A list of results, or of dictionaries, is a single experiment.
        metric: name of the metric.
        mode: "min" or "max", for sources that do not know the direction of `metric`.
        constraints: the search's constraints, which precede a source's own.

    Returns:
        Dictionaries with the keys `name`, `mode`, `configs` (by name of the parameter) and `values`, in which
        None belongs to a failed or infeasible trial. None: no source is given.

    Raises:
        ConfigError: a source is not an experiment, or no source reports the metric.
        StoreError: a folder contains no experiment.
    """
    if sources is None:
        return None
    if isinstance(sources, (str, os.PathLike, ResultGrid)) or hasattr(sources, "columns"):
        sources = [sources]
    if not isinstance(sources, Iterable) or isinstance(sources, Mapping):
        raise ConfigError(
            f"learn_from is a {type(sources).__name__}: give a list of folders, ResultGrids or DataFrames"
        )
    sources = list(sources)
    # A loop that collects experiments begins with an empty list.
    if not sources:
        return None
    if metric is None:
        raise ConfigError("learn_from needs a single metric: give TuneConfig(metric=...) one name")
    if all(
        isinstance(each, Result) or (isinstance(each, Mapping) and not _is_plain(each)) for each in sources
    ):
        sources = [sources]
    found = [
        _plain(each, metric, mode, constraints, f"source {number}") for number, each in enumerate(sources, 1)
    ]
    usable = [each for each in found if any(map(is_number, each["values"]))]
    lost = ", ".join(
        f"{each['name']}{_columns(source, metric)}"
        for each, source in zip(found, sources, strict=True)
        if each not in usable
    )
    text = f"no trial of {lost} reported {metric!r} as a finite number within its constraints"
    return _usable(usable, lost, text, "give experiments with this metric")


def _usable(usable: list[dict[str, Any]], lost: str, text: str, remedy: str) -> list[dict[str, Any]]:
    if not usable:
        raise ConfigError(f"learn_from: {text}: {remedy}")
    if lost:
        warnings.warn(f"learn_from: {text}, so it is not used", stacklevel=3)
    return usable


def _is_plain(source: Any) -> bool:
    return isinstance(source, Mapping) and {"configs", "values"} <= source.keys()


def _columns(source: Any, metric: str) -> str:
    """Return a list of the columns of a DataFrame without the metric; '' for other sources."""
    names = [str(each) for each in getattr(source, "columns", [metric])]
    return "" if metric in names else f" (its columns are {', '.join(names)})"


def _plain(
    source: Any, metric: str, mode: str | None, constraints: Sequence[Constraint], name: str
) -> dict[str, Any]:
    if _is_plain(source):
        return dict(source)
    if isinstance(source, (str, os.PathLike)):
        if os.path.isfile(source):
            raise ConfigError(
                f"learn_from: {os.fspath(source)!r} is a file: give the folder of an experiment, or read the "
                "table, for example by pandas.read_csv(...)"
            )
        source, name = ResultGrid.from_path(source), os.fspath(source)
    elif isinstance(source, ResultGrid):
        name = source.experiment_path
    entries = source.to_dict("records") if hasattr(source, "columns") else source
    if not isinstance(entries, Iterable) or isinstance(entries, Mapping):
        raise ConfigError(
            f"learn_from: {shortened_repr(source)} is not a folder, a ResultGrid or a DataFrame: give a list "
            "of such experiments"
        )
    if isinstance(source, ResultGrid) and source.metric == metric:
        mode = source.mode or mode
    read = [(each, _trial(each, metric, constraints)) for each in entries]
    kept = [(entry, *trial) for entry, trial in read if trial is not None]
    return {
        "name": name,
        "mode": mode,
        "configs": [_scalars(config) for _, config, _ in kept],
        "values": _ends([(entry, value) for entry, _, value in kept], metric, mode),
    }


def _ends(trials: Sequence[tuple[Any, float | None]], metric: str, mode: str | None) -> list[float | None]:
    """Return the value of each trial at its end, which is an estimate for trials that ended early."""
    early = {place for place, (each, value) in enumerate(trials) if value is not None and _ended_early(each)}
    curves, sign = Curves(metric, mode), -1.0 if mode == "max" else 1.0
    complete = [place for place, (each, _) in enumerate(trials) if isinstance(each, Result)]
    # The history of a trial that ended early is not needed.
    for place in [each for each in complete if early and each not in early][-COMPARED:]:
        for report in trials[place][0].history:
            curves.add(str(place), report)
    for place in early:
        curves.add(str(place), trials[place][0].metrics)
        curves.decide(str(place), Decision(Verdict.STOP))
    losses = [math.nan if value is None else sign * value for _, value in trials]
    ends = curves.ends({str(place): loss for place, loss in enumerate(losses)})
    return [None if math.isnan(each) else sign * each for each in ends]


def _ended_early(trial: Any) -> bool:
    """Return True if a trial ended before its training, `max_t` or a stop rule ended it."""
    if not isinstance(trial, Result) or (trial.is_finished() and not trial.reason):
        return False
    return not any("stop" in each or each.get("rule") == "max_t" for each in trial.decisions[-1:])


def _trial(entry: Any, metric: str, constraints: Sequence[Constraint]) -> Trial | None:
    """Return the trial of a Result or of a row of a table; None for a trial that says nothing."""
    if isinstance(entry, Mapping):
        flat = flatten(entry)
        config = {name[7:]: value for name, value in flat.items() if name.startswith("config/")}
        config = config or {name: flat[name] for name in flat if name not in (metric, VIOLATION)}
        return config, _value(flat, metric, constraints)
    if not (hasattr(entry, "config") and hasattr(entry, "metrics")):
        raise ConfigError(
            f"learn_from: {shortened_repr(entry)} is not a trial: give Results, or dictionaries with "
            "parameters and the metric"
        )
    config, metrics = flatten(entry.config or {}), entry.metrics or {}
    if entry.error is not None:
        return config, None
    # A trial that is not finished, and has no report, says nothing.
    return (config, _value(metrics, metric, constraints)) if is_number(lookup(metrics, metric)) else None


def _value(metrics: Mapping[str, Any], metric: str, constraints: Sequence[Constraint]) -> float | None:
    """Return the value of a metric; None for a value that is not finite, or if a constraint is violated."""
    value, violation = lookup(metrics, metric), violation_of(metrics, constraints)
    if not constraints or math.isnan(violation):
        violation = metrics.get(VIOLATION, 0)
    violated = is_number(violation) and violation > 0
    return float(value) if is_number(value) and is_finite(as_scalar(value)) and not violated else None


def _scalars(config: Mapping[str, Any]) -> dict[str, Any]:
    scalars = {name: as_scalar(value) for name, value in config.items()}
    # A DataFrame has NaN where a configuration lacks a parameter. An infinite number has no place on a scale.
    return {
        name: each
        for name, each in scalars.items()
        if type(each) in PLAIN_TYPES and (is_finite(each) or not is_number(each))
    }


def sources_with(codes: Mapping[str, object], sources: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sources that have a parameter of the space, and warn about others and about lost values.

    Args:
        codes: code of each parameter's values, by the name of the parameter.
        sources: plain data of the experiments.

    Raises:
        ConfigError: no source has a parameter of the space.
    """
    columns = [_by_name(each) for each in sources]
    usable = [each for each, found in zip(sources, columns, strict=True) if found.keys() & codes.keys()]
    lost = ", ".join(each["name"] for each in sources if each not in usable)
    texts = [
        f"{each['name']} has {text}"
        for each, found in zip(sources, columns, strict=True)
        for text in _losses(codes, found)
    ]
    if usable:
        for each in texts:
            warnings.warn(f"learn_from: {each}", stacklevel=2)
    remedy = "; ".join(["give experiments with parameters of the same names", *texts])
    return _usable(usable, lost, f"{lost} shares no parameter with the space", remedy)


def _by_name(source: Mapping[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for config in source["configs"]:
        for name, value in config.items():
            found.setdefault(name, []).append(value)
    return found


def _losses(codes: Mapping[str, object], columns: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Yield texts about the values of a source that are not used, probably by mistake."""
    others = [name for name in columns if name not in codes]
    for name, code in codes.items():
        texts = [each for each in columns.get(name, ()) if isinstance(each, str)]
        if texts and not isinstance(code, ChoiceCode):
            yield f"{name}={texts[0]!r}, a text, which is ignored: convert the column to numbers"
        near = [each for each in others if _plainest(each) in (_plainest(name), _plainest(name, last=True))]
        if near and name not in columns:
            yield f"{near[0]!r} but not {name!r}: rename it to {name!r} if it is the same parameter"


def _plainest(name: str, *, last: bool = False) -> str:
    return re.sub(r"[\W_]", "", name.rpartition("/")[2] if last else name).lower()
