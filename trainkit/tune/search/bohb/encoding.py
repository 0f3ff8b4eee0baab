"""Configurations as rows of numbers: parameters in [0, 1], or the index of a category."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.errors import SpaceError
from trainkit.tune.search.alternatives import leaves_open
from trainkit.tune.search.bohb.model import Column
from trainkit.tune.search.codec import Declared
from trainkit.tune.space.codec import ChoiceCode, Code, NumberCode, code_of
from trainkit.tune.space.domains import Categorical, Domain, distinct
from trainkit.tune.space.search_space import Path, Space

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.search.bohb.model import Floats


def _code_of(name: str, domain: Domain) -> Code:
    if isinstance(domain, Categorical):  # a value that is listed twice is one category
        domain = dataclasses.replace(domain, categories=tuple(distinct(domain.categories)))
    return code_of(name, domain, "TuneBOHB")


class Encoding(Declared[Code]):
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
        super().__init__(space, _code_of, searcher="TuneBOHB", own=own)
        self._places = {name: place for place, name in enumerate(self.codes)}
        self.columns = tuple(
            Column(categories=len(code.categories)) if isinstance(code, ChoiceCode) else Column()
            for code in self.codes.values()
        )

    def encoded(self, values: Mapping[str, Any]) -> dict[str, float]:
        return {
            name: code.to_unit(value)
            if isinstance(code := self.codes[name], NumberCode)
            else code.encode(value)
            for name, value in values.items()
        }

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

        def ask(name: str, domain: Domain) -> Any:
            del domain
            code, number = self.codes[name], float(row[self._places[name]])
            return code.from_unit(number) if isinstance(code, NumberCode) else code.decode(number)

        return self.declared.walk(ask, rng)

    def snapped(self, rows: Floats) -> Floats:
        """`rows`, each number moved to the one that its value is encoded by."""
        moved = rows.copy()
        for place, code in enumerate(self.codes.values()):
            if isinstance(code, NumberCode) and code.stepped:
                moved[:, place] = [code.to_unit(code.from_unit(number)) for number in rows[:, place].tolist()]
        return moved
