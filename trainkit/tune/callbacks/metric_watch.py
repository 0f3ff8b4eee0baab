"""Tells at the first report that the metric seems to be misspelt, or lacks what the scheduler counts by.

And at the end that the scheduler has judged nobody, as no trial came so far.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.checks import is_finite
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
        scheduler: what it is called.
        first_judgement: the time at which it judges a trial at the earliest; None: that is not to be told.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        time_attr: str,
        scheduler: str = "",
        first_judgement: float | None = None,
    ) -> None:
        self._metrics = metrics
        self._time_attr = time_attr
        self._scheduler = scheduler
        self._first_judgement = first_judgement
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

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        first, name = self._first_judgement, self._time_attr
        if first is None or not all(trial.status.is_finished for trial in trials):
            return
        times = [time for trial in trials if is_finite(time := lookup(trial.last_result, name))]
        if times and max(times) < first * (1 - 1e-9):  # of none at all the first report has told
            logger.warning(
                "%s has judged no trial: none came to %s=%g, the furthest to %.4g. Give a time_attr that "
                "counts otherwise, such as 'training_iteration', or let it judge earlier",
                self._scheduler,
                name,
                first,
                max(times),
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
