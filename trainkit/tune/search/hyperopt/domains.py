"""Our domains as hyperopt's expressions, and their values as it counts them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.domains import Categorical, Domain, Float, Integer, Normal
from trainkit.tune.domains.listed import place_of


class Coder(ABC):
    """One parameter: its expression, and its values as hyperopt counts them."""

    def __init__(self, node: Any) -> None:
        self.node = node

    @abstractmethod
    def decode(self, number: Any) -> Any:
        """Of the domain."""

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """The reverse."""


class _Real(Coder):
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


class _Steps(Coder):
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


class _Bell(Coder):
    def __init__(self, hp: Any, name: str, domain: Normal) -> None:
        super().__init__(hp.normal(name, domain.mean, domain.sd))
        self._q = None if domain.q is None else Fraction(repr(domain.q))

    def decode(self, number: Any) -> float:
        if self._q is None:
            return float(number)
        return round(Fraction(float(number)) / self._q) * self._q.numerator / self._q.denominator

    def encode(self, value: Any) -> float:
        return float(value)


class _Choice(Coder):
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


def coder_of(hp: Any, name: str, domain: Domain) -> Coder:
    """Return what codes values of `domain`, with its expression by hyperopt's `hp`.

    Raises:
        SpaceError: it is no domain of ours.
    """
    match domain:
        case Float(q=None):
            return _Real(hp, name, domain)
        case Float() | Integer():
            return _Steps(hp, name, domain)
        case Normal():
            return _Bell(hp, name, domain)
        case Categorical():
            return _Choice(hp, name, domain)
    raise SpaceError(f"{name}: HyperOptSearch does not know {domain}; give one of tune's domains")
