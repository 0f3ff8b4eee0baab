"""Configurations as rows of numbers: parameters in [0, 1], or the index of a category."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.errors import SpaceError
from trainkit.tune.search.alternatives import leaves_open
from trainkit.tune.search.bohb.model import Column
from trainkit.tune.search.codec import Declared
from trainkit.tune.space.domains import Categorical, Domain, Float, Integer, Normal, distinct, place_of
from trainkit.tune.space.search_space import Path, Space

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.search.bohb.model import Floats


class ColumnCoder(ABC):
    """Between a parameter's values and the numbers of its column.

    Attributes:
        column: where the numbers lie.
        stepped: True if many numbers stand for one value.
    """

    column = Column()
    stepped = False

    @abstractmethod
    def encode(self, value: Any) -> float:
        """The number of a value of the domain; of one that many stand for, the one in the middle."""

    @abstractmethod
    def decode(self, number: float) -> Any:
        """The value of the domain that a number in the column stands for."""


class _UnitReal(ColumnCoder):
    """Linear in the value, or in its logarithm."""

    def __init__(self, domain: Float) -> None:
        self._domain = domain
        self._last = math.nextafter(domain.upper, domain.lower)

    def encode(self, value: Any) -> float:
        lower, upper, number = self._domain.lower, self._domain.upper, float(value)
        if self._domain.log:
            lower, upper, number = math.log(lower), math.log(upper), math.log(number)
        # Halves, since upper - lower may overflow.
        return (number / 2 - lower / 2) / (upper / 2 - lower / 2)

    def decode(self, number: float) -> float:
        lower, upper = self._domain.lower, self._domain.upper
        if self._domain.log:
            value = math.exp(math.log(lower) * (1 - number) + math.log(upper) * number)
        else:
            value = lower * (1 - number) + upper * number
        return min(max(value, lower), self._last)


class _UnitSteps(ColumnCoder):
    """Multiples k of a step: each owns what rounds to it, so the column is first - 1/2 to last + 1/2."""

    stepped = True

    def __init__(self, domain: Float | Integer) -> None:
        q = Fraction(repr(domain.q))
        self._first, self._last = (round(Fraction(bound) / q) for bound in domain.bounds)
        self._numerator, self._denominator = q.numerator, q.denominator
        self._q = float(q)
        self._whole = isinstance(domain, Integer)
        self._log = domain.log
        if self._log:
            self._lower, self._upper = math.log(self._first - 0.5), math.log(self._last + 0.5)

    def encode(self, value: Any) -> float:
        k = int(value) // self._numerator if self._whole else round(float(value) / self._q)
        if self._log:
            return (math.log(k) - self._lower) / (self._upper - self._lower)
        return (k - self._first + 0.5) / (self._last - self._first + 1)

    def decode(self, number: float) -> float:
        if self._log:
            k = round(math.exp(self._lower * (1 - number) + self._upper * number))
        else:
            k = self._first + math.floor(number * (self._last - self._first + 1))
        k = min(max(k, self._first), self._last)
        return k * self._numerator if self._whole else k * self._numerator / self._denominator


class _UnitQuantile(ColumnCoder):
    """A normal distribution by its quantiles, so that the whole column is as likely."""

    def __init__(self, domain: Normal) -> None:
        self._normal = NormalDist(domain.mean, domain.sd)
        self._q = None if domain.q is None else Fraction(repr(domain.q))
        self.stepped = domain.q is not None

    def encode(self, value: Any) -> float:
        return self._normal.cdf(float(value))

    def decode(self, number: float) -> float:
        value = self._normal.inv_cdf(min(max(number, 2.0**-53), 1 - 2.0**-53))
        if self._q is None:
            return value
        k = round(Fraction(value) / self._q)
        return k * self._q.numerator / self._q.denominator


class _UnitChoice(ColumnCoder):
    """The index of a category; one that is listed twice is one."""

    def __init__(self, domain: Categorical) -> None:
        self._categories = distinct(domain.categories)
        self.column = Column(categories=len(self._categories))

    def encode(self, value: Any) -> float:
        place = place_of(value, self._categories)
        if place is None:
            raise SpaceError(f"{value!r} is not in {self._categories!r}")
        return float(place)

    def decode(self, number: float) -> Any:
        return self._categories[int(number)]


def coder_of(name: str, domain: Domain) -> ColumnCoder:
    """Return what encodes values of `domain`.

    Raises:
        SpaceError: it is no domain of ours.
    """
    match domain:
        case Float(q=None):
            return _UnitReal(domain)
        case Float() | Integer():
            return _UnitSteps(domain)
        case Normal():
            return _UnitQuantile(domain)
        case Categorical():
            return _UnitChoice(domain)
    raise SpaceError(f"{name}: TuneBOHB does not know {domain}; give one of tune's domains")


class Encoding(Declared[ColumnCoder]):
    """Of a space: rows with a column for each parameter, NaN where one is not active.

    Args:
        space: without a grid.
        own: configurations may have constants of `param_space` besides.

    Attributes:
        columns: in the order of the space's parameters.

    Raises:
        ConfigError: the space has a grid, or a domain that is none of ours.
    """

    def __init__(self, space: Space, *, own: bool = False) -> None:
        super().__init__(space, coder_of, searcher="TuneBOHB", own=own)
        self._places = {name: place for place, name in enumerate(self.codes)}
        self.columns = tuple(code.column for code in self.codes.values())

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[Path, Any], bool]:
        self.declared.point(point)  # raises for a value that the model could not know
        preset = self.declared.preset(point)
        return preset, leaves_open(self.declared, preset)

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Floats | None:
        try:
            return self.row(config)
        except SpaceError:  # of another space, or with an object that the store has not kept
            return None

    def row(self, config: Mapping[str, Any]) -> Floats:
        """The row of a configuration.

        Raises:
            SpaceError: it is none of the space.
        """
        row = np.full(len(self.columns), math.nan)
        for name, number in self.encoded(self.choices(config)).items():
            row[self._places[name]] = number
        return row

    def config(self, row: Floats, rng: Generator) -> dict[str, Any]:
        """The configuration of a row; columns of what is not active in it are not looked at.

        Args:
            row: without NaN where a parameter is active.
            rng: for what `sample_from` functions draw.
        """
        return self.declared.walk(
            lambda name, domain: self.codes[name].decode(float(row[self._places[name]])), rng
        )

    def snapped(self, rows: Floats) -> Floats:
        """`rows`, each number moved to the one that its value is encoded by."""
        moved = rows.copy()
        for place, coder in enumerate(self.codes.values()):
            if coder.stepped:
                moved[:, place] = [coder.encode(coder.decode(number)) for number in rows[:, place].tolist()]
        return moved
