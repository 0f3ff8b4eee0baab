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
from trainkit.tune.core.checks import require
from trainkit.tune.core.metrics import number_of

VIOLATION = "trainkit_constraint_violation"
"""Name of the value that each report of an experiment with constraints has: its violation of them.

A trial may report a value with a name such as "constraint_violation", which has no effect.
"""


def is_feasible(report: Mapping[str, Any]) -> bool:
    """Return True if a report satisfies all constraints, as every report does without constraints."""
    return bool(report.get(VIOLATION, 0) == 0)


def violation_in(reports: Sequence[Mapping[str, Any]], scope: str = "last") -> float:
    """Return the violation of a trial: of its last report, or the least of all reports; inf if unknown."""
    found = [report.get(VIOLATION, 0.0) for report in (reports if scope == "all" else reports[-1:])]
    return min((math.inf if math.isnan(each) else each for each in found), default=0.0)


class Constraint(NamedTuple):
    """Limit of a reported metric. A value equal to the limit is feasible; any excess is not.

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
        return f"{self.metric} {self.sense} {repr(self.limit).removesuffix('.0')}"


def constraints_of(given: Any) -> tuple[Constraint, ...]:
    """Return the constraints in texts such as "latency_ms <= 20".

    Raises:
        ConfigError: a text is not a metric, `<=` or `>=`, and a number.
    """
    return tuple(map(_constraint_of, texts_of(given)))


def texts_of(given: Any) -> tuple[str, ...]:
    """Return the texts of constraints in a list, or in a single text; None stands for an empty list."""
    texts = (given,) if isinstance(given, str) else () if given is None else given
    require(
        isinstance(texts, (list, tuple)),
        f"constraints={given!r}: give a list of texts, such as ['latency_ms <= 20', 'accuracy >= 0.9']",
    )
    return tuple(texts)


_TEXT = re.compile(r"\s*([^<>=]*[^<>=\s])\s*(<=|>=)\s*([^<>=]*[^<>=\s])\s*")


def _constraint_of(text: Any) -> Constraint:
    if isinstance(text, str) and (found := _TEXT.fullmatch(text)) is not None:
        metric, sense, limit = found.groups()
        require(
            not metric.startswith("config/"),
            f"constraints: {text!r} limits a parameter, but constraints limit reported values: exclude "
            "configurations by tune.forbid(...) in the space",
        )
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
