"""Codes, which convert the values of a domain to numbers for a model, and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.space.domains import Categorical, Domain, Float, Integer, Normal, place_of

_EXACT = 2**50
"""Limit for k: below it, a division of floats finds the k of a multiple k * q exactly."""

_CLOSEST = 2.0**-53
"""Smallest distance of a probability from 0 and from 1; at 0 and 1 a normal quantile is infinite."""


class Code(ABC):
    """A conversion between the values of a domain and numbers."""

    @abstractmethod
    def encode(self, value: Any) -> float:
        """Return the number that represents a value of the domain."""

    @abstractmethod
    def decode(self, number: float) -> Any:
        """Return the value that a number represents; for a number outside of the range, the nearest value."""


class NumberCode(Code):
    """A code of a domain of numbers.

    Attributes:
        ends: smallest and largest number for a model. If the domain has steps, the range extends half a step
            beyond the first and the last value, so that each value has an equal share of the range.
        log: True if the domain is log-uniform.
        stepped: True if the domain has steps, so that many numbers represent the same value.
    """

    stepped = False

    def __init__(self, ends: tuple[float, float], log: bool) -> None:
        self.ends, self.log = ends, log
        self._low, self._high = (math.log(ends[0]), math.log(ends[1])) if log else ends
        self._least = ends[0] * 1e-9
        # The ends are halved before the subtraction, because their difference may overflow.
        self._half_low, self._half_width = self._low / 2, self._high / 2 - self._low / 2

    def to_unit(self, value: Any) -> float:
        """Return a value's position between `ends`, from 0 to 1, on the scale of the domain."""
        number = self.encode(value)
        if self.log:
            number = math.log(max(number, self._least))
        return (number / 2 - self._half_low) / self._half_width

    def from_unit(self, share: float) -> Any:
        """Return the value at position `share` between `ends`, from 0 to 1, on the scale of the domain."""
        number = self._low * (1 - share) + self._high * share
        return self.decode(math.exp(number) if self.log else number)

    def snapped(self, shares: Sequence[float]) -> Sequence[float]:
        """Return, for each position, the exact position of the value that this position represents."""
        return [self.to_unit(self.from_unit(share)) for share in shares] if self.stepped else shares


class RealCode(NumberCode):
    """A code of a domain of real numbers; each number represents itself.

    Args:
        domain: a domain of real numbers without a step q.
        closed: True if the upper bound counts as a value of the domain.
    """

    def __init__(self, domain: Float, *, closed: bool = False) -> None:
        super().__init__((domain.lower, domain.upper), domain.log)
        self._first = domain.lower
        self._last = domain.upper if closed else math.nextafter(domain.upper, domain.lower)

    def encode(self, value: Any) -> float:
        return float(value)

    def decode(self, number: float) -> float:
        return float(min(max(number, self._first), self._last))


class StepCode(NumberCode):
    """A code that represents each multiple k * q by k; exact for a q in decimal notation.

    Attributes:
        first: smallest k.
        last: largest k.
    """

    stepped = True

    def __init__(self, domain: Float | Integer) -> None:
        self._steps = domain.steps
        self._q = float(domain.steps.q)
        self.first, self.last = domain.steps.first, domain.steps.last
        self._is_wide = max(abs(self.first), abs(self.last)) >= _EXACT
        super().__init__((self.first - 0.5, self.last + 0.5), domain.log)

    def encode(self, value: Any) -> int:
        return self._steps.count(value) if self._is_wide else round(value / self._q)

    def decode(self, number: float) -> float:
        count = number if isinstance(number, int) else math.floor(number + 0.5)
        return self._steps.value(min(max(count, self.first), self.last))

    def snapped(self, shares: Sequence[float]) -> Sequence[float]:
        # A model converts many positions at once, so this loop computes k directly, without calls of other
        # methods.
        low, high, half_low, half_width = self._low, self._high, self._half_low, self._half_width
        log, first, last = self.log, self.first, self.last
        places = []
        for share in shares:
            number = low * (1 - share) + high * share
            count = min(max(math.floor((math.exp(number) if log else number) + 0.5), first), last)
            places.append(((math.log(count) if log else count) / 2 - half_low) / half_width)
        return places


class NormalCode(NumberCode):
    """A code of normally distributed numbers; all positions, which are quantiles, are equally likely."""

    def __init__(self, domain: Normal) -> None:
        super().__init__((-math.inf, math.inf), log=False)
        self._normal = NormalDist(domain.mean, domain.sd)
        self._domain = domain
        self.stepped = domain.q is not None

    def encode(self, value: Any) -> float:
        return float(value)

    def decode(self, number: float) -> float:
        return self._domain.nearest(float(number))

    def to_unit(self, value: Any) -> float:
        return self._normal.cdf(float(value))

    def from_unit(self, share: float) -> float:
        return self.decode(self._normal.inv_cdf(min(max(share, _CLOSEST), 1 - _CLOSEST)))


class ChoiceCode(Code):
    """A code that represents each value of a list by its index.

    Attributes:
        categories: the values of the list.
    """

    def __init__(self, name: str, domain: Categorical) -> None:
        self._name, self.categories = name, domain.categories

    def encode(self, value: Any) -> int:
        place = place_of(value, self.categories)
        if place is None:
            raise SpaceError(f"{self._name}={value!r} is not one of the choices of {self._name}")
        return place

    def decode(self, number: float) -> Any:
        return self.categories[int(number)]


AnyCode = RealCode | StepCode | NormalCode | ChoiceCode


def code_of(name: str, domain: Domain, searcher: str) -> AnyCode:
    """Return the code of a parameter's domain.

    Args:
        name: name of the parameter, for messages.
        domain: domain of the parameter.
        searcher: the searcher's name, for messages.

    Raises:
        SpaceError: the domain is unsupported.
    """
    match domain:
        case Float(q=None):
            return RealCode(domain)
        case Float() | Integer():
            return StepCode(domain)
        case Normal():
            return NormalCode(domain)
        case Categorical():
            return ChoiceCode(name, domain)
    raise SpaceError(f"{name}: {searcher} does not support {domain}: use a domain of trainkit.tune")
