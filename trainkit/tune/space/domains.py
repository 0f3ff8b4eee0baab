"""Domains, axes of a grid, conditions and computed values: the leaves of a search space."""

from __future__ import annotations

import dataclasses
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

from trainkit.errors import SpaceError
from trainkit.tune.core.checks import call_problem
from trainkit.tune.core.metrics import name_of

if TYPE_CHECKING:
    from numpy.random import Generator


class Spelled(ABC):
    """A leaf of a space that can be written as a call of a public function with arguments."""

    @property
    @abstractmethod
    def spelling(self) -> tuple[str, list[Any]]:
        """The public function's name, and the arguments that recreate this leaf."""

    def __str__(self) -> str:
        name, arguments = self.spelling
        return f"{name}({', '.join(map(_written, arguments))})"


def _written(value: Any) -> str:
    """Return an argument as text, in the notation in which a user writes a space."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_written(each)}" for key, each in value.items()) + "}"
    return str(value) if isinstance(value, Spelled) else repr(value)


class Domain(Spelled):
    """A set of values with a distribution.

    A domain is immutable, so that several keys of a space may share it.
    """

    @abstractmethod
    def draw(self, rng: Generator) -> Any:
        """Draw one value; `rng` is the source of all randomness."""

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """True if `value` belongs to the domain."""

    @property
    @abstractmethod
    def cardinality(self) -> int | None:
        """Number of values; None: infinite."""

    @abstractmethod
    def values(self) -> Sequence[Any]:
        """Return all values of a finite domain."""

    def sample(
        self,
        config: Mapping[str, Any] | None = None,
        size: int = 1,
        random_state: Generator | int | None = None,
    ) -> Any:
        """Draw a value, or a list of `size` values, outside of an experiment; for users, as in Ray.

        Args:
            config: ignored; accepted for compatibility with Ray.
            size: number of values.
            random_state: a seed or a NumPy generator; None: different values each time.
        """
        from numpy.random import default_rng

        rng = default_rng(random_state)
        return self.draw(rng) if size == 1 else [self.draw(rng) for _ in range(size)]


def same(one: Any, other: Any) -> bool:
    """Return True if two values are equal; supports arrays, NaN equals NaN, and True differs from 1."""
    if one is other:
        return True
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    try:
        answer = one == other
        # A comparison of arrays returns an array of booleans, which must be reduced to one.
        if type(answer) is not bool and hasattr(answer, "all"):
            return getattr(one, "shape", None) == getattr(other, "shape", None) and bool(answer.all())
        return bool(answer) or (one != one and other != other and type(one) is type(other))
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # if the shapes or types can't be compared, the values count as different
        return False


@dataclass(frozen=True)
class SampleFrom:
    """A value that a function computes from the other values of the configuration."""

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SpaceError(f"sample_from() needs a function of the spec, not {self.function!r}")

    def __str__(self) -> str:
        return f"sample_from({name_of(self.function)})"

    def compute(self, spec: Any) -> Any:
        """Call the function, with `spec` if the function takes an argument."""
        return self.function(spec) if self._takes_one else self.function()

    @cached_property
    def _takes_one(self) -> bool:
        return call_problem(self.function, 1) is None


@dataclass(frozen=True)
class When(Spelled):
    """A part of the space that exists only if all conditions hold.

    Attributes:
        conditions: pairs of a parameter's name and its allowed value or values.
        content: a domain, an axis, a constant, or a dictionary of these.
    """

    conditions: tuple[tuple[str, Any], ...]
    content: Any

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return "when", [dict(self.conditions), self.content]


@dataclass(frozen=True)
class Forbid(Spelled):
    """A rule that forbids combinations; its key does not appear in configurations.

    Attributes:
        clauses: dictionaries from names to values, or functions of the configuration; a configuration is
            forbidden if one of them matches.
    """

    clauses: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.clauses:
            raise SpaceError("forbid() needs at least one combination")
        for clause in self.clauses:
            named = isinstance(clause, Mapping) and bool(clause) and all(type(key) is str for key in clause)
            if not named and not callable(clause):
                raise SpaceError(
                    "forbid() needs dictionaries of names and values, such as {'optimizer': 'adam', "
                    f"'amsgrad': [True]}}, or functions of the configuration, not {clause!r}"
                )

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return "forbid", list(self.clauses)


@dataclass(frozen=True)
class Categorical(Domain):
    """A list of values, all equally likely.

    A category may be a dictionary with domains, a "branch". These domains are drawn only if the category is
    chosen, and are otherwise absent from the configuration.
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

    # --- modifiers, as in Ray ---------------------------------------------------------------------

    def uniform(self) -> Categorical:
        """Return this domain, because its categories are already equally likely."""
        return self

    def grid(self) -> GridSearch:
        """Return the axis of a grid that tries every category."""
        return GridSearch(self.categories)


@dataclass(frozen=True)
class GridSearch(Spelled):
    """An axis of a grid: each of its values is tried with every combination of the other axes."""

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
        raise SpaceError(f"{spelling}() needs a list of values, not {values!r}")
    found = tuple(values)
    if not found:
        raise SpaceError(f"{spelling}([]) needs at least one value")
    return found


def place_of(value: Any, values: Sequence[Any]) -> int | None:
    """Return the index of `value` itself, or else of an equal value, preferably of the same type."""
    for place, each in enumerate(values):
        if each is value:
            return place
    found = [place for place, each in enumerate(values) if same(each, value)]
    alike = [place for place in found if type(values[place]) is type(value)]
    return next(iter(alike or found), None)


def distinct(values: Sequence[Any]) -> list[Any]:
    """Return `values` without duplicates; values of different types, such as 1, 1.0 and True, all stay."""
    # Different objects may have the same representation, for example long arrays.
    kept: dict[Any, Any] = {}
    others: list[Any] = []
    for place, value in enumerate(values):
        if _is_plain(value):
            kept.setdefault((type(value), repr(value)), value)
        elif not any(type(each) is type(value) and same(each, value) for each in others):
            others.append(value)
            kept[place] = value
    return list(kept.values())


def _is_plain(value: Any) -> bool:
    if isinstance(value, (dict, list, tuple)):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, (str, bytes, numbers.Number))


_MAX_STEPS = 2**62


class Steps:
    """The multiples k * q for k from `first` to `last`, exact for a q in decimal notation.

    With q = 0.1, the third multiple is 0.3, although 3 * 0.1 in floats is larger. Multiples of a whole q are
    whole numbers.
    """

    first: int
    last: int

    def __init__(self, q: float, first: Any = -math.inf, last: Any = math.inf) -> None:
        self.q, self.first, self.last = Fraction(repr(q)), first, last
        self._numerator, self._denominator = self.q.as_integer_ratio()
        self._whole = isinstance(q, int)

    def value(self, k: int) -> float:
        # Python divides whole numbers of any size with a single rounding, so the result is exact.
        return k * self._numerator if self._whole else k * self._numerator / self._denominator

    def count(self, value: float) -> int:
        """Return k of the multiple k * q that is nearest to a value."""
        return round(Fraction(value) / self.q)

    def holds(self, value: float) -> bool:
        """Return True if `value` is a multiple in the range, up to a rounding error as in 3 * 0.1."""
        if not math.isfinite(value):
            return False
        k = self.count(value)
        return self.first <= k <= self.last and abs(value - self.value(k)) <= 1e-9 * max(
            abs(value), float(self.q)
        )


class _Numbers(Domain):
    """Base of domains of numbers, with the modifiers that Ray's domains have."""

    def quantized(self, q: float) -> Self:
        """Return the domain of the multiples of `q`, inside the bounds if the domain has any."""
        changed: Self = dataclasses.replace(cast("Any", self), q=q)
        return changed


@dataclass(frozen=True)
class _Range(_Numbers):
    """Base of domains of numbers between two bounds."""

    lower: float
    upper: float
    log: bool = False

    def uniform(self) -> Self:
        """Return a domain with the same bounds and a uniform distribution."""
        return dataclasses.replace(self, log=False)

    def loguniform(self, base: float = 10) -> Self:
        """Return a domain with the same bounds and a log-uniform distribution; `base` has no effect."""
        return dataclasses.replace(self, log=True)

    def _require_order(self, excluded: str = "") -> None:
        if not self.lower < self.upper:
            raise SpaceError(
                f"{self}: the lower bound {self.lower!r} is not below the upper bound {self.upper!r}"
                f"{excluded}"
            )
        if self.log and self.lower <= 0:
            raise SpaceError(f"{self}: a logarithmic scale needs a lower bound above 0, not {self.lower!r}")


@dataclass(frozen=True)
class Float(_Range):
    """Real numbers in [lower, upper), uniform in the value or, with `log`, in its logarithm.

    With `q`, the values are the multiples of q in [lower, upper], including bounds that are multiples. All
    multiples are equally likely. With `log`, the probability of a multiple is the total probability of the
    log-uniform numbers that are rounded to it.
    """

    q: float | None = None

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _finite(self, f"{name} bound", getattr(self, name)))
        self._require_order()
        if self.q is not None:
            object.__setattr__(self, "q", _step(self, self.q))
            _require_room(self, self.q)
            if self.steps.last - self.steps.first >= _MAX_STEPS:
                raise SpaceError(f"{self}: q={self.q!r} is too small for this range: leave q out")

    @cached_property
    def steps(self) -> Steps:
        """The multiples of q that are the values of a domain with q."""
        q, lower, upper = (Fraction(repr(number)) for number in (self.q, self.lower, self.upper))
        return Steps(self.q or 0.0, math.ceil(lower / q), math.floor(upper / q))

    @cached_property
    def _logs(self) -> tuple[float, float]:
        if self.q is None:
            return math.log(self.lower), math.log(self.upper)
        # The range extends half a step beyond the first and the last value. So as many numbers are rounded to
        # the first and to the last value as to any other value.
        return math.log(self.steps.first - 0.5), math.log(self.steps.last + 0.5)

    @cached_property
    def _last(self) -> float:
        return math.nextafter(self.upper, self.lower)

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        name = ("" if self.q is None else "q") + ("loguniform" if self.log else "uniform")
        return name, [self.lower, self.upper, *([] if self.q is None else [self.q])]

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value; in a domain without q, the second bound is not a value."""
        if self.q is None:
            return self.lower, self.upper
        return self.steps.value(self.steps.first), self.steps.value(self.steps.last)

    @property
    def cardinality(self) -> int | None:
        return None if self.q is None else self.steps.last - self.steps.first + 1

    def values(self) -> Sequence[float]:
        return [self.steps.value(k) for k in range(self.steps.first, self.steps.last + 1)]

    def draw(self, rng: Generator) -> float:
        if self.q is not None:
            return self.steps.value(self._index(rng))
        share = rng.random()
        if not self.log:
            # `lower + share * (upper - lower)` is avoided, because the difference may overflow.
            return min(self.lower * (1 - share) + self.upper * share, self._last)
        low, high = self._logs
        value = math.exp(low + share * (high - low))
        return min(max(value, self.lower), self._last)

    def _index(self, rng: Generator) -> int:
        first, last = self.steps.first, self.steps.last
        if not self.log:
            return first + int(rng.integers(last - first + 1))
        low, high = self._logs
        return min(max(round(math.exp(low + rng.random() * (high - low))), first), last)

    def contains(self, value: Any) -> bool:
        number = _as_float(value)
        return self.steps.holds(number) if self.q is not None else self.lower <= number <= self.upper


@dataclass(frozen=True)
class Integer(_Range):
    """Whole numbers in [lower, upper), uniform; with `log`, n has a probability proportional to log((n + 1) /
    n).

    With `q` above 1, the values are the multiples of q in [lower, upper], including bounds that are
    multiples.
    """

    lower: int
    upper: int
    q: int = 1

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "q"):
            number = getattr(self, name)
            called = name if name == "q" else f"{name} bound"
            if isinstance(number, bool) or not isinstance(number, numbers.Integral):
                raise SpaceError(f"{self}: {called} {number!r} is not a whole number")
            if not -(2**63) <= int(number) <= 2**63:
                raise SpaceError(f"{self}: {called} {number!r} does not fit in 64 bits")
            object.__setattr__(self, name, int(number))
        self._require_order(", which is excluded" if self.q == 1 else "")
        _step(self, self.q)
        if self.q > 1:
            _require_room(self, self.q)

    @cached_property
    def steps(self) -> Steps:
        """The multiples of q that are the values of the domain."""
        last = self.upper - 1 if self.q == 1 else self.upper // self.q
        return Steps(self.q, -(-self.lower // self.q), last)

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        name = ("" if self.q == 1 else "q") + ("lograndint" if self.log else "randint")
        return name, [self.lower, self.upper, *([] if self.q == 1 else [self.q])]

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value, both included."""
        return self.steps.first * self.q, self.steps.last * self.q

    @property
    def cardinality(self) -> int:
        return self.steps.last - self.steps.first + 1

    def values(self) -> Sequence[int]:
        return range(self.steps.first * self.q, self.steps.last * self.q + 1, self.q)

    def draw(self, rng: Generator) -> int:
        if not self.log:
            return int(rng.integers(self.steps.first, self.steps.last + 1)) * self.q
        low, high = math.log(self.steps.first), math.log(self.steps.last + 1)
        k = math.floor(math.exp(low + rng.random() * (high - low)))
        return min(max(k, self.steps.first), self.steps.last) * self.q

    def contains(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            return False
        return int(value) % self.q == 0 and self.steps.first <= int(value) // self.q <= self.steps.last


@dataclass(frozen=True)
class Normal(_Numbers):
    """Real numbers around `mean` with standard deviation `sd`; with `q`, rounded to multiples of q."""

    mean: float = 0.0
    sd: float = 1.0
    q: float | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "sd"):
            object.__setattr__(self, name, _finite(self, name, getattr(self, name)))
        if self.sd <= 0:
            raise SpaceError(f"{self}: the standard deviation {self.sd!r} is not above 0")
        if self.q is not None:
            object.__setattr__(self, "q", _step(self, self.q))

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return ("randn", [self.mean, self.sd]) if self.q is None else ("qrandn", [self.mean, self.sd, self.q])

    @property
    def cardinality(self) -> None:
        return None

    def values(self) -> Sequence[float]:
        raise SpaceError(f"{self} has infinitely many values, which cannot be listed")

    @cached_property
    def steps(self) -> Steps:
        """The multiples of q that are the values of a domain with q."""
        return Steps(self.q or 0.0)

    def draw(self, rng: Generator) -> float:
        return self.nearest(self.mean + self.sd * rng.standard_normal())

    def nearest(self, value: float) -> float:
        """Return the value of the domain that is nearest to a number."""
        return value if self.q is None else self.steps.value(self.steps.count(value))

    def contains(self, value: Any) -> bool:
        number = _as_float(value)
        return math.isfinite(number) and (self.q is None or self.steps.holds(number))


def _as_float(value: Any) -> float:
    """Return a real number as a float; NaN for any other value, and for an integer larger than all floats."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _finite(domain: Domain, called: str, number: Any) -> float:
    if isinstance(number, bool) or not isinstance(number, numbers.Real) or not math.isfinite(number):
        raise SpaceError(f"{domain}: {called} {number!r} is not a finite number")
    return float(number)


def _step(domain: Domain, q: Any) -> float:
    step = _finite(domain, "q", q)
    if step <= 0:
        raise SpaceError(f"{domain}: q={q!r} must be above 0")
    return step


def _require_room(domain: Float | Integer, q: float) -> None:
    # The bounds are compared as decimal fractions, because a step of 0.2 must fit between 0.1 and 0.3, whose
    # difference in floats is smaller. A range that is not shorter than a step contains a multiple of the
    # step.
    if Fraction(repr(domain.upper)) - Fraction(repr(domain.lower)) < Fraction(repr(q)):
        raise SpaceError(f"{domain}: q={q!r} is larger than the range of {domain.upper - domain.lower!r}")
