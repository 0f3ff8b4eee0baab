"""Tells at the first report that the metric seems to be misspelt, or lacks what the scheduler counts by."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.trial import Trial
from trainkit.tune.values import flatten, lookup

logger = logging.getLogger("trainkit.tune")

ALIKE = 0.8
"""How alike two names are that are taken for one (difflib); 'val_loss' and 'train_loss' are less so."""


class MetricWatch(Callback):
    """Warns once; trials fail only at their end, since the metric may come with a later report.

    Args:
        metrics: to be reported.
        time_attr: what the scheduler counts by.
    """

    def __init__(self, metrics: Sequence[str], time_attr: str) -> None:
        self._metrics = metrics
        self._time_attr = time_attr
        self._seen = False

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        if self._seen:
            return
        self._seen = True
        for metric in self._metrics:
            if words := misspelt(metric, result):
                logger.warning("%s", words)
        if lookup(result, self._time_attr) is None:
            logger.warning(
                "the first report has no %r, which the scheduler's time_attr names: it stops no trial by a "
                "report without it",
                self._time_attr,
            )


def misspelt(metric: str, result: Mapping[str, Any]) -> str:
    """Say that `result` has not the metric but a name much like it; '' if not so."""
    if lookup(result, metric) is not None:
        return ""
    reported = flatten({name: value for name, value in result.items() if name != "config"})
    near = difflib.get_close_matches(metric, reported, n=1, cutoff=ALIKE)
    if not near:
        return ""
    return (
        f"the first report has no {metric!r}, which TuneConfig(metric=...) names. Did you mean {near[0]!r}? "
        "A trial that ends without having reported the metric fails"
    )
