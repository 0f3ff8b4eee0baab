"""What every domain is: a set of values with a distribution over it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.random import Generator


class Spelled(ABC):
    """A leaf of a space that can be written down: the name of a public function, and its arguments."""

    @property
    @abstractmethod
    def spelling(self) -> tuple[str, list[Any]]:
        """The public function and the arguments that make this leaf again."""

    def __str__(self) -> str:
        name, arguments = self.spelling
        return f"{name}({', '.join(map(repr, arguments))})"


class Domain(Spelled):
    """A set of values with a distribution over it; immutable, so one may stand at several keys."""

    @abstractmethod
    def draw(self, rng: Generator) -> Any:
        """Draw one value; all randomness comes from `rng`."""

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """True if `value` belongs to the domain."""

    @property
    @abstractmethod
    def cardinality(self) -> int | None:
        """How many values there are; None: no end of them."""

    @abstractmethod
    def values(self) -> Sequence[Any]:
        """All values, of a domain with finitely many."""

    def sample(
        self,
        config: Mapping[str, Any] | None = None,
        size: int = 1,
        random_state: Generator | int | None = None,
    ) -> Any:
        """Draw outside an experiment, as Ray's domains do: one value, or a list of `size` of them.

        Args:
            config: accepted for Ray's sake; no domain looks at it.
            size: number of values.
            random_state: a seed or a NumPy generator; None: different values each time.
        """
        from numpy.random import default_rng

        del config
        rng = default_rng(random_state)
        return self.draw(rng) if size == 1 else [self.draw(rng) for _ in range(size)]


def same(one: Any, other: Any) -> bool:
    """Equality that answers for arrays and NaN too, and tells True from 1."""
    if one is other:
        return True
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    try:
        answer = one == other
        if type(answer) is not bool and hasattr(answer, "all"):  # an array, of truth values
            return getattr(one, "shape", None) == getattr(other, "shape", None) and bool(answer.all())
        return bool(answer) or (one != one and other != other and type(one) is type(other))
    except (TypeError, ValueError):  # of shapes or types that can't be compared: not the same
        return False
