"""Objective of a sweep: its metrics and modes, and the report that a job's return value makes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trainkit.errors import ConfigError, TuneError

if TYPE_CHECKING:
    from trainkit.tune import Result, ResultGrid

RETURNED = "objective"
"""Name of the metric of a return value."""

_MODES = {"minimize": "min", "maximize": "max"}


class Objective(NamedTuple):
    """Metrics to optimise.

    Attributes:
        metrics: names of the metrics.
        modes: "min" or "max" for each.
        is_returned: True if the user named no metric, so that the return value is the objective.
    """

    metrics: tuple[str, ...]
    modes: tuple[str, ...]
    is_returned: bool

    @property
    def metric(self) -> str | list[str]:
        """The value for `TuneConfig(metric=...)`."""
        return self.metrics[0] if len(self.metrics) == 1 else list(self.metrics)

    @property
    def mode(self) -> str | list[str]:
        """The value for `TuneConfig(mode=...)`."""
        return self.modes[0] if len(self.modes) == 1 else list(self.modes)

    def report_of(self, returned: Any, *, has_reported: bool) -> dict[str, Any] | None:
        """Return the last report of a job from the value that its function returned; None: no report.

        Args:
            returned: number, or a number for each metric, or a dictionary of metrics.
            has_reported: True if the job has called `tune.report`.

        Raises:
            TuneError: the value is no objective, and the job has reported nothing.
        """
        if isinstance(returned, Mapping):
            return {str(name): value for name, value in returned.items()}
        if has_reported and not self.is_returned:
            return None
        values = _numbers(returned) if len(self.metrics) > 1 else _numbers([returned])
        if values is None or len(values) != len(self.metrics):
            count = "a number" if len(self.metrics) == 1 else f"{len(self.metrics)} numbers"
            raise TuneError(
                f"the job returned {returned!r}, which is not {count}: return the value of the objective "
                "from the function of @hydra.main, or a dictionary of metrics, or set hydra.sweeper.metric "
                "and call trainkit.tune.report"
            )
        return dict(zip(self.metrics, values, strict=True))

    def summary(self, results: ResultGrid) -> dict[str, Any] | None:
        """Return the best job, or the jobs of the Pareto front, for `optimization_results.yaml`.

        None: no job has reported the objective.
        """
        if not any(each.metrics and set(self.metrics) <= each.metrics.keys() for each in results):
            return None
        if len(self.metrics) > 1:
            solutions = [
                {"params": each.config, "values": self._values(each), "job": _job_of(each)}
                for each in results.pareto_front()
            ]
            return {"name": "trainkit", "solutions": solutions}
        best = results.get_best_result()
        return {
            "name": "trainkit",
            "best_params": best.config,
            "best_value": self._values(best)[0],
            "best_job": _job_of(best),
        }

    def _values(self, result: Result) -> list[Any]:
        metrics = result.metrics or {}
        return [metrics[name] for name in self.metrics]


def read_objective(metric: Any, mode: Any, direction: Any) -> Objective:
    """Return the objective of the settings `metric`, `mode` and `direction`.

    Raises:
        ConfigError: a mode is unknown, or the numbers of metrics and modes differ.
    """
    if mode is not None and direction is not None:
        raise ConfigError("hydra.sweeper has both mode and direction: give one of them")
    modes = [_mode(each) for each in _listed(mode if direction is None else direction)] or ["min"]
    names = [str(each) for each in _listed(metric)]
    is_returned = not names
    if is_returned:
        names = [RETURNED] if len(modes) == 1 else [f"{RETURNED}_{place}" for place in range(len(modes))]
    if len(names) > 1 and len(modes) == 1:
        modes *= len(names)
    if len(names) != len(modes):
        raise ConfigError(
            f"hydra.sweeper has {len(names)} metrics and {len(modes)} modes: give a mode for each metric"
        )
    return Objective(tuple(names), tuple(modes), is_returned)


def _job_of(result: Result) -> int:
    return int(os.path.basename(result.path))


def _mode(given: Any) -> str:
    word = str(getattr(given, "name", given)).lower()
    found = _MODES.get(word, word)
    if found not in _MODES.values():
        raise ConfigError(f"hydra.sweeper.mode={given!r}: give min or max, or a list of them")
    return found


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]


def _numbers(values: Any) -> list[float] | None:
    try:
        return [float(each) for each in values]
    except (TypeError, ValueError):
        return None
