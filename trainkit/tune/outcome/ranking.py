"""Which report, and which trial, is best; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_number
from trainkit.tune.objectives import Objective
from trainkit.tune.trial import Trial, TrialStatus
from trainkit.tune.values import lookup

SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")
NONE_BEST = "none, all trials have failed"
"""In place of the best trial, where `all_failed` holds."""


def what_is_best(
    metric: str | None,
    mode: str | None,
    usual: tuple[str | None, str | None],
    objectives: Sequence[Objective] = (),
) -> tuple[str, str]:
    """Return the metric and the mode that a question about the best trial means.

    Args:
        metric: asked for; None: the experiment's.
        mode: the same.
        usual: the experiment's own two, where it has one objective.
        objectives: where it has several.

    Raises:
        ConfigError: it can't be told, or the mode is neither "min" nor "max".
    """
    modes = {each.metric: each.mode for each in objectives}
    mode = mode or modes.get(metric or "") or usual[1]
    metric = metric or usual[0]
    if objectives and (metric is None or mode is None):
        raise ConfigError(
            f"the objectives are {list(modes)}, and none of them alone says what is best: give one as "
            "metric, or look at pareto_front()"
        )
    if metric is None or mode is None:
        raise ConfigError(
            "which trial is best? Give metric and mode here, or in TuneConfig(metric='loss', mode='min')"
        )
    if mode not in ("min", "max"):
        raise ConfigError(f"mode={mode!r} is neither 'min' nor 'max'")
    return metric, mode


def all_failed(trials: Sequence[Trial]) -> bool:
    """Return whether there are trials and each of them has failed: no display names one of them the best."""
    return bool(trials) and all(trial.status is TrialStatus.ERROR for trial in trials)


def best_row(reports: Sequence[Mapping[str, Any]], metric: str, mode: str) -> dict[str, Any] | None:
    """Return the report with the best finite `metric`, the earliest of equals; None if there is none."""
    best: Mapping[str, Any] | None = None
    best_score = -math.inf
    for report in reports:
        value = lookup(report, metric)
        if is_number(value) and math.isfinite(value):
            score = -value if mode == "min" else value
            if best is None or score > best_score:
                best, best_score = report, score
    return best  # type: ignore[return-value]  # reports are dictionaries; Mapping lets callers pass any


def trial_score(
    history: Sequence[Mapping[str, Any]], metric: str, mode: str, scope: str, *, keep_all: bool
) -> float | None:
    """Return the number that stands for a trial, larger is better; None: it has none.

    Args:
        history: its reports, oldest first.
        metric: name of the value to compare.
        mode: "min" or "max".
        scope: one of SCOPES.
        keep_all: let NaN and infinities stand; NaN is then worst.

    Raises:
        ConfigError: `scope` is none of SCOPES.
    """
    if scope not in SCOPES:
        raise ConfigError(f"scope={scope!r} is none of {', '.join(SCOPES)}")
    values = [float(value) for report in history if is_number(value := lookup(report, metric))]
    if scope == "last":
        values = values[-1:] if history and is_number(lookup(history[-1], metric)) else []
    elif scope.startswith("last-"):
        values = values[-int(scope.split("-")[1]) :]
    if not keep_all:
        values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    scores = [-value if mode == "min" else value for value in values]
    if scope == "all":
        return max(-math.inf if math.isnan(score) else score for score in scores)
    score = sum(scores) / len(scores)
    return -math.inf if math.isnan(score) else score


def spread_of(reports: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return, for each number that was reported: max, min, avg, last, last-5-avg and last-10-avg.

    Args:
        reports: flat ones, oldest first.
    """
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            if is_number(value) and not name.startswith("config/"):
                values.setdefault(name, []).append(value)
    return {
        name: {
            "max": max(_comparable(series)),
            "min": min(_comparable(series)),
            "avg": _mean(series),
            "last": series[-1],
            "last-5-avg": _mean(series[-5:]),
            "last-10-avg": _mean(series[-10:]),
        }
        for name, series in values.items()
    }


def _comparable(values: Sequence[float]) -> Sequence[float]:
    """Those that are not NaN, which is neither more nor less than anything; all, if all are."""
    return [value for value in values if value == value] or values


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
