"""Spaces for hyperopt: our domains, or hyperopt's own expressions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.core.values import holds_opaque
from trainkit.tune.search.codec import Declared, Form
from trainkit.tune.space.domains import Categorical, Domain, Float, Integer, Normal, place_of
from trainkit.tune.space.merging import nested
from trainkit.tune.space.search_space import Space

if TYPE_CHECKING:
    from numpy.random import Generator


class HyperOptCoder(ABC):
    """One parameter: its expression, and its values as hyperopt counts them."""

    def __init__(self, node: Any) -> None:
        self.node = node

    @abstractmethod
    def decode(self, number: Any) -> Any:
        """Of the domain."""

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """The reverse."""


class _HyperOptReal(HyperOptCoder):
    def __init__(self, hp: Any, name: str, domain: Float) -> None:
        bounds = (domain.lower, domain.upper)
        if domain.log:
            super().__init__(hp.loguniform(name, *map(math.log, bounds)))
        else:
            super().__init__(hp.uniform(name, *bounds))
        self._first, self._last = domain.lower, math.nextafter(domain.upper, domain.lower)

    def decode(self, number: Any) -> float:
        return min(max(float(number), self._first), self._last)

    def encode(self, value: Any) -> float:
        return float(value)


class _HyperOptSteps(HyperOptCoder):
    """Multiples of q by their number k, each with half a step on both sides."""

    def __init__(self, hp: Any, name: str, domain: Float | Integer) -> None:
        self._q = Fraction(repr(domain.q))
        self._whole = isinstance(domain, Integer)
        self._first, self._last = (round(Fraction(bound) / self._q) for bound in domain.bounds)
        low, high = self._first - 0.5, self._last + 0.5
        if domain.log:
            super().__init__(hp.qloguniform(name, math.log(low), math.log(high), 1))
        else:
            super().__init__(hp.quniform(name, low, high, 1))

    def decode(self, number: Any) -> float:
        k = min(max(round(number), self._first), self._last)
        if self._whole:
            return int(k * self._q.numerator)
        return float(k * self._q.numerator / self._q.denominator)

    def encode(self, value: Any) -> float:
        return float(round(Fraction(value) / self._q))


class _Bell(HyperOptCoder):
    def __init__(self, hp: Any, name: str, domain: Normal) -> None:
        super().__init__(hp.normal(name, domain.mean, domain.sd))
        self._q = None if domain.q is None else Fraction(repr(domain.q))

    def decode(self, number: Any) -> float:
        if self._q is None:
            return float(number)
        return round(Fraction(float(number)) / self._q) * self._q.numerator / self._q.denominator

    def encode(self, value: Any) -> float:
        return float(value)


class _HyperOptChoice(HyperOptCoder):
    def __init__(self, hp: Any, name: str, domain: Categorical) -> None:
        super().__init__(hp.choice(name, list(range(len(domain.categories)))))
        self._name, self._categories = name, domain.categories

    def decode(self, number: Any) -> Any:
        return self._categories[int(number)]

    def encode(self, value: Any) -> int:
        place = place_of(value, self._categories)
        if place is None:
            raise SpaceError(f"{self._name}={value!r} is not in {self._name}'s list")
        return place


def coder_of(hp: Any, name: str, domain: Domain) -> HyperOptCoder:
    """Return what codes values of `domain`, with its expression by hyperopt's `hp`.

    Raises:
        SpaceError: it is no domain of ours.
    """
    match domain:
        case Float(q=None):
            return _HyperOptReal(hp, name, domain)
        case Float() | Integer():
            return _HyperOptSteps(hp, name, domain)
        case Normal():
            return _Bell(hp, name, domain)
        case Categorical():
            return _HyperOptChoice(hp, name, domain)
    raise SpaceError(f"{name}: HyperOptSearch does not know {domain}; give one of tune's domains")


DRAWS = 2000
"""Random draws where suggestions repeat: enough to find each of 200 configurations, as none are listed."""

Values = dict[str, Any]
"""What hyperopt knows of a trial: a number for each label."""


class Expression:
    """Dictionaries and lists with `hp.choice`, `hp.loguniform` and the like in them."""

    space: Space | None = None

    def __init__(self, space: Any, pyll: Any) -> None:
        self._pyll = pyll
        self._root = pyll.as_apply(space)
        if self._root.name != "dict" and not _leads_to_dictionaries(self._root):
            raise ConfigError(
                "space: a configuration is a dictionary, so give HyperOptSearch a dictionary, or an "
                "hp.choice of dictionaries"
            )
        self.nodes: dict[str, Any] = {}
        for node in pyll.dfs(self._root):
            if node.name == "hyperopt_param":
                label = node.arg["label"].obj
                if self.nodes.setdefault(label, node) is not node:
                    raise ConfigError(
                        f"space has two parameters labelled {label!r}: label each in its own way"
                    )
        if not self.nodes:
            raise ConfigError("space has no parameter of hyperopt's, such as hp.uniform('lr', 0, 1)")

    def configuration(self, values: Values, rng: Generator) -> tuple[dict[str, Any], Values]:
        del rng
        memo = {node: values[label] for label, node in self.nodes.items()}
        config = self._pyll.rec_eval(self._root, memo=memo, print_node_on_error=False)
        active: Values = {}
        self._collect(self._root, values, active)
        return _plain(config), active

    def _collect(self, node: Any, values: Values, active: Values) -> None:
        if node.name == "hyperopt_param":
            label = node.arg["label"].obj
            active[label] = values[label]
        elif node.name == "switch":
            place, *options = node.pos_args
            self._collect(place, values, active)
            if place.name == "hyperopt_param":
                options = [options[int(values[place.arg["label"].obj])]]
            for option in options:
                self._collect(option, values, active)
        else:
            for each in node.inputs():
                self._collect(each, values, active)

    def fixed(self, point: Mapping[str, Any]) -> tuple[Values, bool]:
        found = _found(self._root, nested(point), partial=True)
        if found is None:
            raise ConfigError(
                f"points_to_evaluate has {dict(point)!r}, which HyperOptSearch's space does not have: give "
                "values as the configuration has them, not their places in a choice"
            )
        active: Values = {}
        try:
            self._collect(self._root, found, active)
        except KeyError:
            return found, True
        return found, False

    def others(self, rng: Generator) -> Iterator[tuple[dict[str, Any], Values]]:
        for _ in range(DRAWS):
            values = {label: self._pyll.stochastic.sample(node, rng) for label, node in self.nodes.items()}
            yield self.configuration(values, rng)

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Values | None:
        return None if holds_opaque(config) else _found(self._root, config, partial=False)


def _leads_to_dictionaries(node: Any) -> bool:
    return node.name == "switch" and all(
        each.name == "dict" or _leads_to_dictionaries(each) for each in node.pos_args[1:]
    )


def _found(node: Any, value: Any, *, partial: bool) -> Values | None:
    """The values of the labels under `node` that make it come to `value`; None: there are none, or untold.

    Args:
        node: of the expression.
        value: of the configuration.
        partial: a dictionary may lack keys; otherwise it may have others, the constants of `param_space`.
    """
    match node.name:
        case "hyperopt_param":
            numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
            return {node.arg["label"].obj: value} if numeric else None
        case "literal":
            return {} if type(node.obj) is type(value) and node.obj == value else None
        case "float" | "int":
            return _found(node.pos_args[0], value, partial=partial)
        case "switch" if node.pos_args[0].name == "hyperopt_param":
            label = node.pos_args[0].arg["label"].obj
            options = list(enumerate(node.pos_args[1:]))
            if not partial:  # the one that says most of it
                options.sort(key=lambda option: -len(option[1].named_args))
            for place, option in options:
                found = _found(option, value, partial=partial)
                if found is not None:
                    return {label: place, **found}
            return None
        case "dict":
            named = dict(node.named_args)
            if not isinstance(value, Mapping) or not (
                value.keys() <= named.keys() if partial else value.keys() >= named.keys()
            ):
                return None
            keys = value if partial else named
            return _all(lambda key: _found(named[key], value[key], partial=partial), keys)
        case "pos_args":
            if not isinstance(value, (list, tuple)) or len(value) != len(node.pos_args):
                return None
            places = range(len(value))
            return _all(lambda place: _found(node.pos_args[place], value[place], partial=partial), places)
    return None


def _all(find: Callable[[Any], Values | None], keys: Any) -> Values | None:
    found: Values = {}
    for key in keys:
        part = find(key)
        if part is None:
            return None
        found |= part
    return found


def _plain(value: Any) -> Any:
    """Tuples of lists, and numbers of NumPy's, as a configuration has them."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


__all__ = ["HyperOptForm", "Values", "form_of"]


class HyperOptForm(Form, Protocol):
    """One of the two.

    Attributes:
        nodes: by label, hyperopt's expression of the parameter.
    """

    nodes: dict[str, Any]

    def configuration(self, values: Values, rng: Generator) -> tuple[dict[str, Any], Values]:
        """The configuration of these values, and those of them that it has."""


class HyperOptDomains(Declared[HyperOptCoder]):
    """Domains such as `tune.uniform(0, 1)`, with conditions."""

    def __init__(self, space: Space, hp: Any, *, own: bool = False) -> None:
        super().__init__(space, partial(coder_of, hp), searcher="HyperOptSearch", own=own)
        self.nodes = {name: code.node for name, code in self.codes.items()}

    def configuration(self, values: Values, rng: Generator) -> tuple[dict[str, Any], Values]:
        active: Values = {}

        def ask(name: str, domain: Domain) -> Any:
            del domain
            value = self.codes[name].decode(values[name])
            active[name] = self.codes[name].encode(value)  # as a restore will find it
            return value

        return self.declared.walk(ask, rng), active


def form_of(space: Any, hyperopt: Any, *, own: bool) -> HyperOptForm:
    """Return the form of what a user gives as `space`.

    Raises:
        ConfigError: it is neither.
    """
    pyll = hyperopt.pyll
    if isinstance(space, Space):
        return HyperOptDomains(space, hyperopt.hp)
    if isinstance(space, pyll.Apply):
        return Expression(space, pyll)
    if isinstance(space, Mapping) and space:
        if _holds_apply(space, pyll):
            return Expression(dict(space), pyll)
        return HyperOptDomains(Space.of(space), hyperopt.hp, own=own)
    raise ConfigError(
        f"space={space!r}: give domains, or a space of hyperopt's such as {{'x': hp.uniform(...)}}"
    )


def _holds_apply(value: Any, pyll: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_apply(each, pyll) for each in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_apply(each, pyll) for each in value)
    return isinstance(value, pyll.Apply)
