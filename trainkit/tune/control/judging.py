"""What becomes of a trial that has reported: the scheduler's word, the metric, the stop rule; no effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainkit.errors import MetricError, message_of
from trainkit.tune.checks import is_number
from trainkit.tune.control.missing import missing_metric, misspelt
from trainkit.tune.control.plan import Plan
from trainkit.tune.control.stopping import StopRules
from trainkit.tune.schedulers.base import Decision, Verdict
from trainkit.tune.schedulers.consulted import Consulted
from trainkit.tune.trial import Failure, Trial
from trainkit.tune.values import lookup


class Judge:
    """Judges reports in the order in which they are committed.

    Args:
        plan: the experiment's rules.
        scheduler: asked about every report.
        stop: the rules of RunConfig(stop=...), which have been told the reports of before.
        with_metric: ids of trials that have reported the metric before.
        tell: of every decision that has a reason: the trial, its report, the scheduler's decision.
    """

    def __init__(
        self,
        plan: Plan,
        scheduler: Consulted,
        stop: StopRules,
        with_metric: Iterable[str] = (),
        tell: Callable[[str, dict[str, Any], Decision], None] | None = None,
    ) -> None:
        self._tell = tell
        self._metrics = plan.metrics
        self._stop = stop
        self._scheduler = scheduler
        self._with_metric = set(with_metric)
        self._is_first = not self._with_metric

    def require_metric(self, result: Mapping[str, Any]) -> None:
        """Raise if the experiment's first report has the metric by another spelling.

        Raises:
            MetricError: it has; the spelling is told.
        """
        if not self._is_first:
            return
        self._is_first = False
        for metric in self._metrics:
            if lookup(result, metric) is None and misspelt(metric, result) is not None:
                raise MetricError(
                    f"TuneConfig(metric=...) is {missing_metric(metric, [result])} "
                    "(TuneConfig(strict_metric_checking=False) lets it come with a later report)"
                )

    def on_report(self, trial_id: str, result: dict[str, Any], *, done: bool = False) -> Decision | Failure:
        """Return what is decided, or why the trial has failed by this report.

        Args:
            trial_id: of the trial that reports.
            result: the report.
            done: the report says that the trial is over, though its function has not returned.
        """
        # First and whatever the report lacks: a replay tells the scheduler every report too.
        decision = self._scheduler.on_result(trial_id, result)
        if decision.reason and self._tell is not None:
            self._tell(trial_id, result, decision)
        try:
            self._check_metric(trial_id, result)
            reached = self._stop.on_report(trial_id, result)
        except MetricError as error:
            return Failure("MetricError", str(error), retry=False)
        except Exception as error:  # of the user's stop function, or stopper
            message = f"{message_of(error)} (raised by what RunConfig(stop=...) was given)"
            return Failure.raised(error, message)
        if reached is None and done:
            reached = {"stop": "reported done=True"}
        if reached is not None:
            return Decision(Verdict.STOP, {**_that_holds(decision), **reached})
        return decision

    def _check_metric(self, trial_id: str, result: Mapping[str, Any]) -> None:
        complete = True
        for metric in self._metrics:
            value = lookup(result, metric)
            if value is None:
                complete = False
            elif not is_number(value):
                raise MetricError(f"metric {metric!r} is {value!r}, which is not a number")
        if complete:
            self._with_metric.add(trial_id)

    def at_end(self, trial: Trial) -> Failure | None:
        """Say that a trial has ended without ever reporting the metric; None if all is well."""
        if not self._metrics or trial.trial_id in self._with_metric:
            return None
        lacking = [metric for metric in self._metrics if lookup(trial.last_result, metric) is None]
        if not lacking:  # an odd end: its last report has what it is said never to have had
            return None
        metric = lacking[0]
        text = f"TuneConfig(metric=...) is {missing_metric(metric, [trial.last_result])}"
        return Failure("MetricError", text, retry=False)


def _that_holds(decision: Decision) -> Mapping[str, Any]:
    """The facts of a decision that gives way to a stop: where nothing was taken over, none may say so."""
    return {"instead_of": decision.reason} if decision.donors else decision.reason
