"""Leaves of a space that are no domains: what is computed, what depends, what must not be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.domains.base import Spelled


@dataclass(frozen=True)
class SampleFrom:
    """A value computed from the rest of the configuration."""

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SpaceError(f"sample_from({self.function!r}): give a function of the spec")
        object.__setattr__(self, "_takes_one", _takes_one(self.function))

    _takes_one: bool = field(init=False, repr=False, compare=False)

    def __str__(self) -> str:
        return f"sample_from({name_of(self.function)})"

    def compute(self, spec: Any) -> Any:
        """Call the function, with `spec` if it takes an argument."""
        return self.function(spec) if self._takes_one else self.function()


@dataclass(frozen=True)
class When(Spelled):
    """A part of the space that is there only where all conditions hold.

    Attributes:
        conditions: the value, or values, that each named parameter must have.
        content: a domain, an axis, a constant, or a dictionary of these.
    """

    conditions: tuple[tuple[str, Any], ...]
    content: Any

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return "when", [dict(self.conditions), self.content]


@dataclass(frozen=True)
class Forbid(Spelled):
    """Combinations that are never proposed; its key is in no configuration.

    Attributes:
        clauses: of which none may hold: names with their values, or functions of the configuration.
    """

    clauses: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.clauses:
            raise SpaceError("forbid(): give at least one combination")
        for clause in self.clauses:
            named = isinstance(clause, Mapping) and bool(clause) and all(type(key) is str for key in clause)
            if not named and not callable(clause):
                raise SpaceError(
                    f"forbid({clause!r}): give a dictionary of names and values, such as "
                    "{'optimizer': 'adam', 'amsgrad': [True]}, or a function of the configuration"
                )

    @property
    def spelling(self) -> tuple[str, list[Any]]:
        return "forbid", list(self.clauses)


def name_of(function: Any) -> str:
    """What a function is called in messages."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True
