"""Constraints on reported metrics, and how much a report violates them.

Feasible trials rank before infeasible trials, and infeasible trials by their violation: K. Deb, "An efficient
constraint handling method for genetic algorithms", 2000.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainkit.errors import TuneArgumentError
from trainkit.tune.core.checks import is_finite, require
from trainkit.tune.core.metrics import lookup, number_of
from trainkit.tune.core.objectives import VIOLATION, Objective, is_feasible


class Constraint(NamedTuple):
    """Limit of a reported metric. A value equal to the limit is feasible; the least excess is not.

    Attributes:
        metric: name, or a path such as "eval/latency_ms".
        sense: "<=" or ">=".
        limit: a finite number.
    """

    metric: str
    sense: str
    limit: float

    def excess(self, value: float) -> float:
        """Return how far a value is beyond the limit, relative to the limit; inf for NaN.

        The excess is positive exactly if the value is infeasible. It is relative to 1 if the limit is 0.
        """
        beyond = float(value) - self.limit if self.sense == "<=" else self.limit - float(value)
        return math.inf if math.isnan(beyond) else beyond / (abs(self.limit) or 1.0)

    def __str__(self) -> str:
        return f"{self.metric} {self.sense} {self.limit:g}"


def constraints_of(given: Any) -> tuple[Constraint, ...]:
    """Return the constraints in a list of texts such as "latency_ms <= 20".

    Raises:
        ConfigError: a text is not a metric, `<=` or `>=`, and a number.
    """
    require(
        isinstance(given, (list, tuple)),
        f"constraints={given!r}: give a list of texts, such as ['latency_ms <= 20', 'accuracy >= 0.9']",
    )
    return tuple(map(_constraint_of, given))


_TEXT = re.compile(r"\s*([^<>=]*[^<>=\s])\s*(<=|>=)\s*([^<>=]*[^<>=\s])\s*")


def _constraint_of(text: Any) -> Constraint:
    if isinstance(text, str) and (found := _TEXT.fullmatch(text)) is not None:
        metric, sense, limit = found.groups()
        with contextlib.suppress(ValueError):
            if math.isfinite(float(limit)):
                return Constraint(metric, sense, float(limit))
    raise TuneArgumentError(
        f"constraints: {text!r} is not supported: give a metric, <= or >=, and a finite number, in this "
        "order, such as 'latency_ms <= 20'"
    )


def violation_of(report: Mapping[str, Any], constraints: Sequence[Constraint]) -> float:
    """Return the sum of the relative excesses of a report's values over their limits.

    The violation is 0 if the report satisfies all constraints. It is NaN, which means unknown, if the report
    lacks the metric of a constraint and violates no other constraint.
    """
    values = [number_of(report, each.metric) for each in constraints]
    total = sum(
        max(0.0, each.excess(value))
        for each, value in zip(constraints, values, strict=True)
        if value is not None
    )
    return math.nan if total == 0 and None in values else total


FAR = 1e200
"""Loss of an infeasible report for schedulers, per unit of 1 + violation; no usual loss is as large."""


def ranked_last(report: Mapping[str, Any], objectives: Sequence[Objective]) -> Mapping[str, Any]:
    """Return a report for schedulers: an infeasible report gets values that are worse than all others."""
    violation = report.get(VIOLATION, 0.0)
    if not violation > 0:  # an unknown violation, which is NaN, is not judged
        return report
    return _replaced(report, dict.fromkeys(objectives, FAR * (1 + violation)))


class Penalties:
    """Losses for searchers that know no constraints: an infeasible report gets a worse loss than its own.

    Its loss is the worst feasible loss of the ended trials, plus a part of the range of feasible losses that
    grows with the violation. Until a trial is feasible, the losses of all ended trials count.

    Args:
        objectives: the searcher's objectives.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives
        self._ranges: dict[tuple[Objective, bool], tuple[float, float]] = {}
        """Least and largest loss of ended trials, by objective; True: of feasible trials, False: of all."""

    def applied(self, report: dict[str, Any], *, ended: bool = False) -> dict[str, Any]:
        """Return the report that the searcher receives; `ended`: it is the last report of its trial."""
        if VIOLATION not in report:
            return report
        losses = {
            each: float(value) if each.mode == "min" else -float(value)
            for each in self._objectives
            if is_finite(value := lookup(report, each.metric))
        }
        feasible = is_feasible(report)
        for each, loss in losses.items() if ended else ():
            for key in ((each, True), (each, False)) if feasible else ((each, False),):
                low, high = self._ranges.get(key, (loss, loss))
                self._ranges[key] = min(low, loss), max(high, loss)
        if feasible or (not ended and math.isnan(report[VIOLATION])):
            return report
        excess = report[VIOLATION]
        share = excess / (1 + excess) if math.isfinite(excess) else 1.0
        return _replaced(report, {each: self._penalized(each, loss, share) for each, loss in losses.items()})

    def _penalized(self, objective: Objective, loss: float, share: float) -> float:
        whole = self._ranges.get((objective, False), (loss, loss))
        low, high = self._ranges.get((objective, True), whole)
        return high + share * ((high - low) or abs(high) or 1.0)


def _replaced(report: Mapping[str, Any], losses: Mapping[Objective, float]) -> dict[str, Any]:
    """Return the report with other losses, which `lookup` finds before nested values."""
    return {**report, **{each.metric: loss if each.mode == "min" else -loss for each, loss in losses.items()}}
