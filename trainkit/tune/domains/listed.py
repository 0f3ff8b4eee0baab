"""Values from a list: one of them, or each of them in turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.errors import SpaceError
from trainkit.tune.domains.base import Domain, Spelled, same

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True)
class Categorical(Domain):
    """One of a list of values, each as likely.

    A category that is a dictionary with domains is a branch: these are drawn if it is chosen, and are
    not in the configuration otherwise.
    """

    categories: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", listed("choice", self.categories))

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return "choice", [list(self.categories)]

    def __len__(self) -> int:
        return len(self.categories)

    def __getitem__(self, place: int) -> Any:
        return self.categories[place]

    @property
    def cardinality(self) -> int:
        return len(self.values())

    def values(self) -> Sequence[Any]:
        return distinct(self.categories)

    def draw(self, rng: Generator) -> Any:
        return self.categories[int(rng.integers(len(self.categories)))]

    def contains(self, value: Any) -> bool:
        return place_of(value, self.categories) is not None

    # --- as Ray's domains are changed -------------------------------------------------------------

    def uniform(self) -> Categorical:
        """Itself: each category is as likely."""
        return self

    def grid(self) -> GridSearch:
        """The axis of a grid that tries every category."""
        return GridSearch(self.categories)


@dataclass(frozen=True)
class GridSearch(Spelled):
    """Values that are all tried: an axis of the grid, not a distribution."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", listed("grid_search", self.values))

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return "grid_search", [list(self.values)]


def listed(spelling: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return `values` as a tuple.

    Raises:
        SpaceError: `values` is empty or not a list.
    """
    if isinstance(values, (str, bytes, dict)) or not isinstance(values, Iterable):
        raise SpaceError(f"{spelling}({values!r}): give a list of values")
    found = tuple(values)
    if not found:
        raise SpaceError(f"{spelling}([]): give at least one value")
    return found


def place_of(value: Any, values: Sequence[Any]) -> int | None:
    """Where `value` stands in `values`: itself, one equal and of its type, or one equal; None: nowhere."""
    for place, each in enumerate(values):
        if each is value:
            return place
    found = [place for place, each in enumerate(values) if same(each, value)]
    alike = [place for place in found if type(values[place]) is type(value)]
    return next(iter(alike or found), None)


def distinct(values: Sequence[Any]) -> list[Any]:
    """`values` without repetitions; a repr tells 1, 1.0 and True apart."""
    return list({(type(value), repr(value)): value for value in values}.values())
