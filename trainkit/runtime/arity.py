"""The arguments that a function takes, so that a wrong call fails where it is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_ENDLESS = 1 << 30


class Arity(NamedTuple):
    """The arguments that a function takes.

    Attributes:
        least: how many arguments by place suffice alone.
        most: how many may be given by place. A function that needs an argument by name has none between
            `least` and `most`.
        places: the names of the arguments by place, in order.
        required: so many of `places` have no default.
        nameless: so many of `places` can only be given by place.
        names: the names of the arguments that can only be given by name.
        required_names: those of `names` that have no default.
        any_name: arguments of any other name are taken.
    """

    least: int
    most: int
    places: tuple[str, ...] = ()
    required: int = 0
    nameless: int = 0
    names: tuple[str, ...] = ()
    required_names: tuple[str, ...] = ()
    any_name: bool = False

    def require(self, function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError, as a direct call would, if the arguments don't fit.

        Args:
            function: its name.
            args: the arguments by place.
            kwargs: the arguments by name.
        """
        given = len(args)
        endless = self.most == _ENDLESS
        if given > len(self.places) and not endless:
            raise TypeError(f"{function}(): too many positional arguments")
        by_name = self.places[self.nameless :]
        twice = [name for name in self.places[self.nameless : given] if name in kwargs]
        if twice:
            raise TypeError(f"{function}(): multiple values for argument {twice[0]!r}")
        for index, name in enumerate(self.places[given : self.required], given):
            if index < self.nameless or name not in kwargs:
                raise TypeError(f"{function}(): missing a required argument: {name!r}")
        for name in self.required_names:
            if name not in kwargs:
                raise TypeError(f"{function}(): missing a required argument: {name!r}")
        if not self.any_name:
            for name in kwargs:
                if name not in by_name and name not in self.names:
                    raise TypeError(f"{function}(): got an unexpected keyword argument {name!r}")


ANY = Arity(0, _ENDLESS, any_name=True)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def arity_of(function: Callable[..., Any], *, bound: bool = False) -> Arity:
    """Return the arguments that `function` takes; ANY if it doesn't tell.

    Args:
        function: what will be called. A decorator's own signature counts, not that of what it wraps.
        bound: its first argument is the object it is a method of.
    """
    try:
        parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return ANY
    kinds = {item.kind for item in parameters}
    places = [item for item in parameters if item.kind in _BY_PLACE][int(bound) :]
    named = [item for item in parameters if item.kind is item.KEYWORD_ONLY]
    required = sum(item.default is item.empty for item in places)
    required_names = tuple(item.name for item in named if item.default is item.empty)
    most = _ENDLESS if inspect.Parameter.VAR_POSITIONAL in kinds else len(places)
    return Arity(
        least=_ENDLESS + 1 if required_names else required,
        most=most,
        places=tuple(item.name for item in places),
        required=required,
        nameless=sum(item.kind is item.POSITIONAL_ONLY for item in places),
        names=tuple(item.name for item in named),
        required_names=required_names,
        any_name=inspect.Parameter.VAR_KEYWORD in kinds,
    )
