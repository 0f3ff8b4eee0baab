"""Hyperparameters of many trials as flat names, with the domain that each was drawn from; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trainkit.tune.domains import Categorical, Domain, GridSearch, When
from trainkit.tune.values import OPAQUE, is_opaque

_PRIMITIVE = (str, int, float, bool, type(None))


@dataclass
class Hyperparameter:
    """One hyperparameter over all trials; what follows from its values is worked out once, at the end.

    Attributes:
        name: flat, such as "optimizer/lr" or "layers/0".
        domain: that the space has there; None where it has none that is known.
        values: by trial's place; a trial where it is inactive is absent. Numbers, texts, truth values and
            None stand as they are; anything else as text.
    """

    name: str
    domain: Domain | GridSearch | None = None
    values: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def is_numeric(self) -> bool:
        """True if all values are numbers, and were not drawn from a list."""
        return not isinstance(self.domain, (Categorical, GridSearch)) and all(
            isinstance(value, (int, float)) and not isinstance(value, bool) for value in self.values.values()
        )

    @cached_property
    def choices(self) -> list[Any]:
        """What it may be, in the space's order, then what it was besides: changed spaces, unknown domains."""
        listed: Sequence[Any] = ()
        if isinstance(self.domain, Categorical):
            listed = self.domain.categories
        elif isinstance(self.domain, GridSearch):
            listed = self.domain.values
        # What has domains of its own is found under further names. By type too, as True equals 1.
        every = [*(_leaf(each) for each in listed if not _holds_domain(each)), *self.values.values()]
        return list({(type(value), repr(value)): value for value in every}.values())

    @cached_property
    def is_mixed(self) -> bool:
        """True if choices are equal without being the same, as 1, 1.0 and True are."""
        return len(set(self.choices)) < len(self.choices)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Of a numeric one: the domain's, where it says, widened to the values that were tried."""
        ends = [
            end
            for end in (getattr(self.domain, "lower", None), getattr(self.domain, "upper", None))
            if isinstance(end, (int, float))
        ]
        if len(ends) == 2 and self.is_whole:
            ends[1] -= 1  # the upper end of whole numbers is excluded
        every = [*ends, *self.values.values()]
        return min(every), max(every)

    @cached_property
    def is_whole(self) -> bool:
        """True if all values are whole numbers."""
        return all(type(value) is int for value in self.values.values())

    @cached_property
    def is_log(self) -> bool:
        """True where the domain is logarithmic; without a domain, where values span three orders or more."""
        low, high = self.bounds
        if low <= 0:
            return False
        return bool(getattr(self.domain, "log", False)) or (self.domain is None and high / low >= 1000)


def hyperparameters_of(configs: Sequence[Mapping[str, Any]], space: Any) -> list[Hyperparameter]:
    """Return what varies, or may: each hyperparameter with a domain, and each that differs between trials.

    Args:
        configs: of the trials.
        space: the search space, as the experiment's file keeps it; what it doesn't say is told by the values.
    """
    found: dict[str, Hyperparameter] = {}
    for place, config in enumerate(configs):
        for name, value, domain in _leaves(config, space, ""):
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
    """Give name, value and domain of each leaf; `node` is what the space has at this place."""
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
    """The option that `value` was drawn from, where options have domains of their own; None otherwise."""
    if not isinstance(value, Mapping) or not any(map(_holds_domain, options)):
        return None
    alike = [each for each in options if isinstance(each, Mapping) and each.keys() == value.keys()]
    return next((each for each in alike if _agrees(value, each)), None)


def _agrees(value: Mapping[str, Any], option: Mapping[str, Any]) -> bool:
    return all(_holds_domain(below) or below == value[key] for key, below in option.items())


def _same_list(value: Sequence[Any], node: Any) -> bool:
    return isinstance(node, (list, tuple)) and len(node) == len(value) and _holds_domain(node)


def _holds_domain(node: Any) -> bool:
    if isinstance(node, When):
        return _holds_domain(node.content)
    if isinstance(node, (Domain, GridSearch)):
        return True
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ()
    return any(map(_holds_domain, children))


def _leaf(value: Any) -> Any:
    if type(value) in _PRIMITIVE and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    return str(value[OPAQUE]) if is_opaque(value) else repr(value)
