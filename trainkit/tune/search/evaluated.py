"""Configurations that were evaluated elsewhere, for searchers to learn from."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trainkit.errors import ConfigError
from trainkit.tune.checks import is_number, require
from trainkit.tune.values import lookup


class Finished(Protocol):
    """A trial of another experiment, as a `Result` is one."""

    @property
    def config(self) -> Mapping[str, Any] | None: ...
    @property
    def metrics(self) -> Mapping[str, Any] | None: ...
    @property
    def error(self) -> Exception | None: ...


@dataclass(frozen=True)
class Evaluated:
    """One configuration and what it came to.

    Attributes:
        parameters: the configuration.
        value: of the metric; None will do for one that failed or was stopped, and is then NaN.
        error: it failed.
        pruned: it was stopped early.
        intermediate_values: of the metric, by iteration from 0.

    Raises:
        ConfigError: the value is no number.
    """

    parameters: dict[str, Any]
    value: float
    error: bool = False
    pruned: bool = False
    intermediate_values: list[float] | None = None

    def __post_init__(self) -> None:
        is_value = isinstance(self.value, numbers.Real)
        require(
            is_value or self.error or self.pruned,
            f"add_evaluated_point({self.parameters!r}, {self.value!r}): give the value of the metric, a "
            "number",
        )
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "value", float(self.value) if is_value else math.nan)


def evaluated_of(trials: Iterable[Finished], metric: str) -> list[Evaluated]:
    """Return what trials of another experiment came to; those that never reported `metric` are left out.

    Raises:
        ConfigError: none reported it as a number.
    """
    found = []
    for trial in trials:
        value = lookup(trial.metrics or {}, metric)
        if trial.config is not None and is_number(value):
            found.append(Evaluated(dict(trial.config), float(value), error=trial.error is not None))
    if not found:
        raise ConfigError(f"none of these trials reported {metric!r} as a number: correct the metric")
    return found
