"""Search spaces in Hydra's override grammar."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    IntervalSweep,
    Override,
    Quote,
    QuotedString,
    RangeSweep,
    Transformer,
)
from omegaconf import OmegaConf

from trainkit import tune
from trainkit.errors import SpaceError


class SweepSpace(NamedTuple):
    """Parameters that differ between jobs, and overrides that all jobs share.

    Attributes:
        params: domains by the key of their override, such as "+model.lr".
        fixed: overrides of every job.
    """

    params: dict[str, Any]
    fixed: list[str]

    def overrides(self, config: Mapping[str, Any]) -> list[str]:
        """Return the overrides of the job with this configuration."""
        return [*(f"{key}={_written(value)}" for key, value in config.items()), *self.fixed]

    def checks(self, loader: ConfigLoader) -> list[list[str]]:
        """Return overrides of jobs with a value of each domain, and with each choice of a config group."""
        first = {key: _a_value(domain) for key, domain in self.params.items()}
        choices = [
            first | {key: choice}
            for key, domain in self.params.items()
            if loader.get_group_options(key.lstrip("+").partition("@")[0])
            for choice in getattr(domain, "categories", None) or domain.values
        ]
        return [self.overrides(config) for config in choices or [first]]


def read_space(
    params: Mapping[str, Any] | None, arguments: Sequence[str], loader: ConfigLoader, *, grid: bool
) -> SweepSpace:
    """Return the space of `hydra.sweeper.params` and of a command line, which takes precedence.

    Args:
        params: values by override key.
        arguments: overrides of the command line.
        loader: loader that knows the choices of `glob`.
        grid: True if all combinations are tried.

    Raises:
        SpaceError: a grid contains an interval.
    """
    lines = [f"{key}={_as_text(value)}" for key, value in (params or {}).items()]
    space = SweepSpace({}, [])
    fixed: dict[str, str] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides([*lines, *arguments]):
        key = override.get_key_element()
        # A later override of a key replaces an earlier override, and `~key` removes it.
        for earlier in (key, key.removeprefix("~")):
            space.params.pop(earlier, None)
            fixed.pop(earlier, None)
        if override.is_sweep_override():
            space.params[key] = _domain(override, grid)
        else:
            fixed[key] = str(override.input_line)
    space.fixed.extend(fixed.values())
    return space


def _as_text(value: Any) -> str:
    # The list of a YAML file is a choice on the command line, too.
    if OmegaConf.is_list(value) or isinstance(value, list | tuple):
        return ",".join(_written(Transformer.encode(_element(each))) for each in value)
    return _written(value)


def _element(value: Any) -> Any:
    """Return an element of a YAML list as an element of the grammar, in which most texts need quotes."""
    if isinstance(value, str):
        plain = re.fullmatch(r"(?!(?i:true|false|null|nan|inf)$)[A-Za-z_][\w./-]*", value, re.ASCII)
        return value if plain else QuotedString(text=value, quote=Quote.single)
    if isinstance(value, Mapping):
        return {name: _element(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [_element(each) for each in value]
    return value


def _written(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _a_value(domain: Any) -> Any:
    sample = getattr(domain, "sample", None)
    return sample() if sample is not None else domain.values[0]  # the axis of a grid has no sample()


def _domain(override: Override, grid: bool) -> Any:
    value = override.value()
    if isinstance(value, IntervalSweep):
        if grid:
            raise SpaceError(
                f"{override.input_line}: an interval has no list of values for search_alg=grid: write "
                "choice(...) or range(...), or use another search_alg"
            )
        return _interval(value)
    values = list(override.sweep_iterator(transformer=Transformer.encode))
    if grid:
        return tune.grid_search(values)
    if isinstance(value, RangeSweep) and not value.shuffle and len(values) > 1:
        return _steps(values)
    return tune.choice(values)


def _interval(interval: IntervalSweep) -> Any:
    low, high = cast("tuple[float, float]", (interval.start, interval.end))
    log = "log" in interval.tags
    if isinstance(low, int) and isinstance(high, int):
        # Whole numbers include the upper end, as in Hydra's sweeper for Optuna.
        return (tune.lograndint if log else tune.randint)(low, high + 1)
    return (tune.loguniform if log else tune.uniform)(float(low), float(high))


def _steps(values: list[Any]) -> Any:
    """Return the domain of evenly spaced numbers, which a searcher knows to be in order."""
    low, step = min(values), abs(values[1] - values[0])
    if all(isinstance(each, int) for each in values) and step == 1:
        return tune.randint(low, max(values) + 1)
    if not math.isclose(low, step * round(low / step), abs_tol=1e-9 * step):
        return tune.choice(values)  # not multiples of the step
    if all(isinstance(each, int) for each in values):
        return tune.qrandint(low, max(values), step)
    return tune.quniform(low, round(max(values), 12), round(step, 12))
