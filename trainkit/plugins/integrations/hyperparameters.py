"""Hyperparameters over all trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trainkit.tune.results import result_grid
from trainkit.tune.space.domains import Categorical, Domain, GridSearch, When
from trainkit.tune.space.serialization import OPAQUE, is_opaque
from trainkit.tune.space.tree import everything

_PRIMITIVE = (str, int, float, bool, type(None))


@dataclass
class Hyperparameter(result_grid.Hyperparameter):
    """Hyperparameter with its values. All values must be added before a property is read."""

    name: str
    domain: Domain | GridSearch | None = None
    values: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def is_numeric(self) -> bool:
        """True if all values are numbers and the domain is not a list of choices."""
        return not isinstance(self.domain, (Categorical, GridSearch)) and all(
            isinstance(value, (int, float)) and not isinstance(value, bool) for value in self.values.values()
        )

    @cached_property
    def choices(self) -> list[Any]:
        """The choices in the order of the space, followed by other observed values."""
        listed: Sequence[Any] = ()
        if isinstance(self.domain, Categorical):
            listed = self.domain.categories
        elif isinstance(self.domain, GridSearch):
            listed = self.domain.values
        # Choices with inner domains become separate hyperparameters. Values are compared with their type,
        # because True equals 1.
        every = [*(_leaf(each) for each in listed if not _holds_domain(each)), *self.values.values()]
        return list({(type(value), repr(value)): value for value in every}.values())

    @cached_property
    def is_mixed(self) -> bool:
        """True if different choices compare as equal, such as 1, 1.0 and True."""
        return len(set(self.choices)) < len(self.choices)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Bounds of a numeric hyperparameter: the domain's bounds, extended to include all tried values."""
        ends = [
            end
            for end in (getattr(self.domain, "lower", None), getattr(self.domain, "upper", None))
            if isinstance(end, (int, float))
        ]
        if len(ends) == 2 and self.is_whole:
            ends[1] -= 1  # an integer domain does not include its upper end
        every = [*ends, *self.values.values()]
        return min(every), max(every)

    @cached_property
    def is_whole(self) -> bool:
        """True if all values are whole numbers."""
        return all(type(value) is int for value in self.values.values())

    @cached_property
    def is_log(self) -> bool:
        """True if the domain is logarithmic, or if the domain is unknown and the values span a factor of 1000
        or more.
        """
        low, high = self.bounds
        if low <= 0:
            return False
        return bool(getattr(self.domain, "log", False)) or (self.domain is None and high / low >= 1000)


def hyperparameters_of(configs: Sequence[Mapping[str, Any]], space: Any) -> list[Hyperparameter]:
    """Return each hyperparameter that has a domain or differs between trials.

    Args:
        configs: configurations of the trials.
        space: search space from the experiment's file, in which a hyperparameter may lack a domain.
    """
    found: dict[str, Hyperparameter] = {}
    for place, config in enumerate(configs):
        for name, value, domain in _leaves(config, space, "") if config else ():
            parameter = found.setdefault(name, Hyperparameter(name))
            parameter.values[place] = value
            if isinstance(domain, (Domain, GridSearch)):
                parameter.domain = domain
    return [
        parameter
        for parameter in found.values()
        if parameter.domain is not None
        or len({repr(value) for value in parameter.values.values()}) > 1
        or 0 < len(parameter.values) < len(configs)
    ]


def _leaves(value: Any, node: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, value and domain of each leaf of a configuration; `node` is the space at this path."""
    while isinstance(node, When):
        node = node.content
    if isinstance(node, (Categorical, GridSearch)):
        chosen = _branch(value, node.categories if isinstance(node, Categorical) else node.values)
        if chosen is None:
            yield path, _leaf(value), node
            return
        node = chosen
    if isinstance(value, Mapping) and value and not is_opaque(value):
        for key, child in value.items():
            below = node.get(key) if isinstance(node, Mapping) else None
            yield from _leaves(child, below, f"{path}/{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and _same_list(value, node):
        for place, (child, below) in enumerate(zip(value, node, strict=True)):
            yield from _leaves(child, below, f"{path}/{place}")
    else:
        yield path, _leaf(value), node


def _branch(value: Any, options: Sequence[Any]) -> Any:
    """Return the option of a choice from which `value` was sampled, if options have inner domains; otherwise
    None.
    """
    if not isinstance(value, Mapping) or not any(map(_holds_domain, options)):
        return None
    alike = [each for each in options if isinstance(each, Mapping) and each.keys() == value.keys()]
    return next((each for each in alike if _agrees(value, each)), None)


def _agrees(value: Mapping[str, Any], option: Mapping[str, Any]) -> bool:
    return all(_holds_domain(below) or below == value[key] for key, below in option.items())


def _same_list(value: Sequence[Any], node: Any) -> bool:
    return isinstance(node, (list, tuple)) and len(node) == len(value) and _holds_domain(node)


def _holds_domain(node: Any) -> bool:
    return any(isinstance(each, (Domain, GridSearch)) for each in everything(node))


def _leaf(value: Any) -> Any:
    if type(value) in _PRIMITIVE and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    return str(value[OPAQUE]) if is_opaque(value) else repr(value)
