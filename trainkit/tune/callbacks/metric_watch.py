"""Tells at the first report that it lacks the metric, or what the scheduler counts by.

And at the end that the scheduler has judged nobody, as no trial came so far.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.checks import is_finite
from trainkit.tune.control.missing import AUTOMATIC, misspelt
from trainkit.tune.trial import Trial
from trainkit.tune.values import flatten, lookup

logger = logging.getLogger("trainkit.tune")


class MetricWatch(Callback):
    """Warns once; trials fail only at their end, since the metric may come with a later report.

    Args:
        metrics: to be reported.
        time_attr: what the scheduler counts by.
        scheduler: what it is called.
        first_judgement: the time at which it judges a trial at the earliest; None: that is not to be told.
        judged_by: the metric that the scheduler judges by; None: by none.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        time_attr: str,
        scheduler: str = "",
        first_judgement: float | None = None,
        judged_by: str | None = None,
    ) -> None:
        self._metrics = metrics
        self._time_attr = time_attr
        self._scheduler = scheduler
        self._first_judgement = first_judgement
        self._judged_by = judged_by
        self._seen = False

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        if self._seen:
            return
        self._seen = True
        judged_by = () if self._judged_by is None else (self._judged_by,)
        for metric in dict.fromkeys((*self._metrics, *judged_by)):
            if metric in self._metrics and misspelt(metric, result) is not None:
                continue  # the experiment ends with an error that says so
            if lookup(result, metric) is None:
                logger.warning(
                    "the first report has no %r, which is the metric: %s %s",
                    metric,
                    reported_words(metric, result),
                    " ".join(self._effects(metric)),
                )
        if lookup(result, self._time_attr) is None:
            logger.warning(
                "the first report has no %r, which the scheduler's time_attr names: %s %s judges "
                "no trial by a report without it",
                self._time_attr,
                reported_words(self._time_attr, result),
                self._scheduler,
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

    def _effects(self, metric: str) -> Iterator[str]:
        if metric == self._judged_by:
            yield f"{self._scheduler} judges no trial by a report without it."
        if metric in self._metrics:
            yield "It may come later; a trial that ends without it fails"


def reported_words(name: str, result: Mapping[str, Any]) -> str:
    """Say what `result` has in place of `name`: all that it has, and the nearest name if one is like it."""
    names = flatten({name: value for name, value in result.items() if name != "config"})
    reported = sorted(set(names) - AUTOMATIC)
    text = f"reported were {', '.join(reported)}" if reported else "nothing else was reported"
    near = difflib.get_close_matches(name, names, n=1)
    return f"{text}. Did you mean {near[0]!r}?" if near else f"{text}."
