"""Encoding of configurations as rows of numbers."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trainkit.errors import ConfigError, SpaceError
from trainkit.tune.search.encoded_space import Declared, leaves_open
from trainkit.tune.space.configurations import grow
from trainkit.tune.space.domains import Categorical, Domain, distinct, place_of
from trainkit.tune.space.search_space import Path, Space
from trainkit.tune.space.transforms import ChoiceCode, NormalCode, NumberCode, code_of
from trainkit.tune.space.tree import in_config

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Flags: TypeAlias = "NDArray[np.bool_]"

LEAST_ORDERED = 3
"""Smallest number of different numbers in a list that counts as ordered; a list of two numbers counts as
unordered.
"""

RAREST = 1e-3
"""Probability of each tail of a normal distribution from which no value is suggested."""

_DRAWS = 128
"""Number of random rows from which the mean number of active parameters is estimated."""
_MOST_PATTERNS = 4096
"""Maximum number of remembered sets of active parameters."""


class ListCode:
    """A code of a list of numbers: the values in increasing order, at equal distances.

    Args:
        name: name of the parameter, for messages.
        values: the numbers, without repetitions.
    """

    stepped = True

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self._name, self._values = name, sorted(values)

    def to_unit(self, value: Any) -> float:
        """Return a value's position, from 0 to 1."""
        return (self.encode(value) + 0.5) / len(self._values)

    def nearest_unit(self, number: float) -> float:
        """Return the position of any number, between the positions of the values next to it."""
        places = (np.arange(len(self._values)) + 0.5) / len(self._values)
        return float(np.interp(number, np.array(self._values, dtype=float), places))

    def from_unit(self, share: float) -> Any:
        """Return the value at a position from 0 to 1."""
        return self._values[min(int(share * len(self._values)), len(self._values) - 1)]

    def encode(self, value: Any) -> int:
        """Return the index of a value."""
        place = place_of(value, self._values)
        if place is None:
            raise SpaceError(f"{self._name}={value!r} is not one of the choices of {self._name}")
        return place

    def snapped(self, shares: Sequence[float]) -> Sequence[float]:
        """Return, for each position, the position of the value that it represents."""
        size = len(self._values)
        return [(min(int(share * size), size - 1) + 0.5) / size for share in shares]


AnyCode: TypeAlias = NumberCode | ListCode | ChoiceCode


def _code_of(name: str, domain: Domain) -> AnyCode:
    if isinstance(domain, Categorical):
        values = distinct(domain.categories)  # equal values of a list form one category
        if len(values) >= LEAST_ORDERED and all(map(_is_ordered, values)):
            return ListCode(name, values)
        domain = dataclasses.replace(domain, categories=tuple(values))
    return code_of(name, domain, "GaussianProcessSearch")


def _is_ordered(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


class Encoding(Declared[AnyCode]):
    """Encoding of a space: a row has a column for each parameter.

    A number, or a value of a list of numbers, is encoded as its position from 0 to 1 on the scale of its
    domain. A value of any other list is encoded as its index. An inactive parameter has the position 0.5 or
    the index 0. Rows with an inactive parameter still differ from rows in which it is active, because the
    parent parameter has a different value.

    Args:
        space: a space without a grid.
        own: True if configurations may also contain constants of `param_space`.

    Attributes:
        categories: number of values of each column with indices, and 0 for a column with positions; shape
            (d,).
        low: smallest position of each column in a suggestion, shape (d,).
        high: largest position of each column in a suggestion, shape (d,).
        parents: True for the columns of parameters that decide whether other parameters are active; shape
            (d,).
        active: mean number of active parameters in a random configuration.

    Raises:
        ConfigError: the space has a grid, or an unsupported domain.
    """

    def __init__(self, space: Space, *, own: bool = False) -> None:
        super().__init__(space, _code_of, searcher="GaussianProcessSearch", own=own)
        self._codes = list(self.codes.values())
        self._places = {name: place for place, name in enumerate(self.codes)}
        self.categories = np.array(
            [len(code.categories) if isinstance(code, ChoiceCode) else 0 for code in self._codes], dtype=int
        )
        is_normal = [isinstance(code, NormalCode) for code in self._codes]
        self.low: Floats = np.where(is_normal, RAREST, 0.0)
        self.high: Floats = 1 - self.low
        read = {each.path for conditions in space.conditions.values() for each in conditions}
        outer = {name for each in space.parameters for name, _ in each.branches}
        self.parents = np.array(
            [each.name in outer or in_config(each.path) in read for each in space.parameters], dtype=bool
        )
        self._patterns: dict[bytes, Flags] = {}
        drawn = self.from_unit(np.random.default_rng(0).random((_DRAWS, len(self))))
        self.active = float(self.activity(drawn).sum(axis=1).mean()) if len(self) else 0.0

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._codes)

    # --- between configurations and rows ----------------------------------------------------------

    def fixed(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        # The user's values are kept as they are, because encoding and decoding may change them.
        return self.declared.point(point), leaves_open(self.declared, self.declared.preset(point))

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Floats | None:
        try:
            return self.row(config)
        # The configuration is outside the space, or contains an object that the store keeps only by name.
        except SpaceError:
            return None

    def row(self, config: Mapping[str, Any]) -> Floats:
        """Return the row of a configuration.

        Raises:
            SpaceError: the configuration does not belong to the space.
        """
        row = np.where(self.categories > 0, 0.0, 0.5)
        for name, value in self.choices(config).items():
            row[self._places[name]] = self.position(name, value)
        return row

    def position(self, name: str, value: Any) -> float:
        """Return the position or the index of a parameter's value."""
        code = self.codes[name]
        return code.encode(value) if isinstance(code, ChoiceCode) else min(max(code.to_unit(value), 0.0), 1.0)

    def config(self, row: Floats, fixed: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """Return the configuration of a row, with the values of `fixed`; `sample_from` uses `rng`."""

        def ask(name: str, domain: Domain) -> Any:
            return fixed[name] if name in fixed else self._value(self._places[name], row)

        return self.declared.walk(ask, rng)

    def allows(self, config: Mapping[str, Any]) -> bool:
        """Return True if no rule of the space forbids a configuration."""
        return self.declared.forbidden_by(config) is None

    def drawn(self, rng: Generator, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a random configuration with the values of `fixed` that no rule forbids."""
        return self.declared.configuration(0, rng, self.declared.preset(fixed or {}))

    def _value(self, place: int, row: Floats) -> Any:
        code, number = self._codes[place], float(row[place])
        return code.decode(number) if isinstance(code, ChoiceCode) else code.from_unit(number)

    # --- many rows --------------------------------------------------------------------------------

    def from_unit(self, shares: Floats) -> Floats:
        """Return rows, shape (n, d), from numbers between 0 and 1.

        Each number is a position in a parameter's range or list.
        """
        indices = np.minimum(np.floor(shares * self.categories), np.maximum(self.categories - 1, 0))
        return np.where(self.categories > 0, indices, shares)

    def snapped(self, rows: Floats) -> Floats:
        """Return the rows of the configurations of `rows`, with default values of inactive parameters.

        Positions outside of `low` and `high` are moved to these limits.
        """
        moved = np.where(self.categories > 0, rows, np.clip(rows, self.low, self.high))
        for place, code in enumerate(self._codes):
            if not isinstance(code, ChoiceCode) and code.stepped:
                moved[:, place] = code.snapped(moved[:, place].tolist())
        return np.where(self.activity(moved), moved, np.where(self.categories > 0, 0.0, 0.5))

    def activity(self, rows: Floats) -> Flags:
        """Return True for each active parameter of each row; shape (n, d)."""
        if not (len(rows) and self.parents.any()):
            return np.ones(rows.shape, dtype=bool)
        keys, which = np.unique(rows[:, self.parents], axis=0, return_inverse=True)
        which = which.ravel()
        first = np.unique(which, return_index=True)[1]
        known = [self._pattern(key.tobytes(), rows[place]) for key, place in zip(keys, first, strict=True)]
        return np.array(known)[which]

    def _pattern(self, key: bytes, row: Floats) -> Flags:
        # A real-valued parameter on which other parameters depend has a different value in each row.
        if len(self._patterns) > _MOST_PATTERNS:
            self._patterns.clear()
        if key not in self._patterns:
            active = np.zeros(len(self), dtype=bool)

            def choose(path: Path, leaf: Any) -> Any:
                place = self._places[self.declared.by_path[path].name]
                active[place] = True
                return self._value(place, row)

            grow(self.declared.tree, self.declared.conditions, choose)
            self._patterns[key] = active
        return self._patterns[key]


def encoding_of(space: Any, *, own: bool) -> Encoding:
    """Return the encoding of a searcher's own space, or of its experiment's space.

    Raises:
        ConfigError: the space can't be encoded.
    """
    if own and not (isinstance(space, Mapping) and space):
        raise ConfigError(
            f"space={space!r}: give GaussianProcessSearch domains, such as {{'lr': tune.uniform(0, 1)}}"
        )
    return Encoding(Space.of(space) if own else space, own=own)
