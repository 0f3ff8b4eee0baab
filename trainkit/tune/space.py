"""Domains: what one hyperparameter may be. Declarative values, checked when written, drawn when asked."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.errors import SpaceError

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = [
    "Categorical",
    "Domain",
    "Float",
    "GridSearch",
    "Integer",
    "SampleFrom",
    "choice",
    "grid_search",
    "loguniform",
    "randint",
    "sample_from",
    "uniform",
]


class Domain(ABC):
    """A set of values with a distribution over it; immutable, so one may stand at several keys."""

    @abstractmethod
    def sample(self, rng: Generator) -> Any:
        """Draw one value; all randomness comes from `rng`."""

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """True if a draw could give `value`."""

    @property
    @abstractmethod
    def spelling(self) -> tuple[str, list[Any]]:
        """The public function and the arguments that make this domain again."""

    def __str__(self) -> str:
        name, arguments = self.spelling
        return f"{name}({', '.join(map(repr, arguments))})"


@dataclass(frozen=True)
class Float(Domain):
    """Real numbers in [lower, upper), uniform in the value or, with `log`, in its logarithm."""

    lower: float
    upper: float
    log: bool = False

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            bound = getattr(self, name)
            if isinstance(bound, bool) or not isinstance(bound, numbers.Real) or not math.isfinite(bound):
                raise SpaceError(f"{self}: {name} bound {bound!r} is not a finite number")
            object.__setattr__(self, name, float(bound))
        if not self.lower < self.upper:
            raise SpaceError(f"{self}: the lower bound {self.lower!r} is not below the upper {self.upper!r}")
        if self.log and self.lower <= 0:
            raise SpaceError(f"{self}: the lower bound {self.lower!r} has no logarithm; give one above 0")

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return ("loguniform" if self.log else "uniform"), [self.lower, self.upper]

    def sample(self, rng: Generator) -> float:
        share = float(rng.random())
        if not self.log:
            # Written as a weighted mean, since upper - lower may overflow.
            return min(self.lower * (1 - share) + self.upper * share, math.nextafter(self.upper, self.lower))
        low, high = math.log(self.lower), math.log(self.upper)
        return min(max(math.exp(low + share * (high - low)), self.lower), self.upper)

    def contains(self, value: Any) -> bool:
        return isinstance(value, numbers.Real) and self.lower <= float(value) <= self.upper


@dataclass(frozen=True)
class Integer(Domain):
    """Whole numbers in [lower, upper), each as likely."""

    lower: int
    upper: int

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            bound = getattr(self, name)
            if isinstance(bound, bool) or not isinstance(bound, numbers.Integral):
                raise SpaceError(f"{self}: {name} bound {bound!r} is not a whole number")
            if not -(2**63) <= int(bound) <= 2**63:
                raise SpaceError(f"{self}: {name} bound {bound!r} is beyond 64 bits")
            object.__setattr__(self, name, int(bound))
        if not self.lower < self.upper:
            raise SpaceError(
                f"{self}: the lower bound {self.lower!r} is not below the upper {self.upper!r}, "
                "which is excluded"
            )

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return "randint", [self.lower, self.upper]

    def sample(self, rng: Generator) -> int:
        return int(rng.integers(self.lower, self.upper))

    def contains(self, value: Any) -> bool:
        return isinstance(value, numbers.Integral) and self.lower <= int(value) < self.upper


@dataclass(frozen=True)
class Categorical(Domain):
    """One of a list of values, each as likely; a value may hold further domains, drawn if it is chosen."""

    categories: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", _listed("choice", self.categories))

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return "choice", [list(self.categories)]

    def sample(self, rng: Generator) -> Any:
        return self.categories[int(rng.integers(len(self.categories)))]

    def contains(self, value: Any) -> bool:
        return any(value is category or value == category for category in self.categories)


@dataclass(frozen=True)
class GridSearch:
    """Values that are all tried: an axis of the grid, not a distribution."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _listed("grid_search", self.values))

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return "grid_search", [list(self.values)]

    def __str__(self) -> str:
        return f"grid_search({list(self.values)!r})"


@dataclass(frozen=True)
class SampleFrom:
    """A value computed from the rest of the configuration."""

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SpaceError(f"sample_from({self.function!r}): give a function of the spec")

    def __str__(self) -> str:
        return f"sample_from({getattr(self.function, '__qualname__', type(self.function).__name__)})"


def uniform(lower: float, upper: float) -> Float:
    """Return the domain of real numbers in [lower, upper), each as likely.

    Raises:
        SpaceError: a bound is not a finite number, or `lower` is not below `upper`.
    """
    return Float(lower, upper)


def loguniform(lower: float, upper: float, base: float = 10) -> Float:
    """Return the domain of real numbers in [lower, upper) whose logarithm is uniform.

    Args:
        lower: above 0.
        upper: above `lower`.
        base: accepted for Ray's sake; every base gives the same distribution.

    Raises:
        SpaceError: a bound is not a finite number above 0, or `lower` is not below `upper`.
    """
    del base
    return Float(lower, upper, log=True)


def randint(lower: int, upper: int) -> Integer:
    """Return the domain of whole numbers from `lower` to `upper` - 1, each as likely.

    Raises:
        SpaceError: a bound is not a whole number, or `lower` is not below `upper`.
    """
    return Integer(lower, upper)


def choice(categories: Iterable[Any]) -> Categorical:
    """Return the domain of the values listed, each as likely.

    Raises:
        SpaceError: `categories` is empty or not a list.
    """
    return Categorical(_listed("choice", categories))


def grid_search(values: Iterable[Any]) -> GridSearch:
    """Return an axis of a grid: every value is tried, with every value of the other axes.

    Raises:
        SpaceError: `values` is empty or not a list.
    """
    return GridSearch(_listed("grid_search", values))


def sample_from(function: Callable[[Any], Any]) -> SampleFrom:
    """Return a value computed by `function(spec)`, in which `spec.config.x` is the value drawn for x.

    The global generators of `random` and NumPy are seeded while it runs, so a seeded experiment repeats.
    """
    return SampleFrom(function)


def _listed(spelling: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes, dict)) or not isinstance(values, Iterable):
        raise SpaceError(f"{spelling}({values!r}): give a list of values")
    listed = tuple(values)
    if not listed:
        raise SpaceError(f"{spelling}([]): give at least one value")
    return listed
