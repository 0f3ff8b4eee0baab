"""Whether a call's arguments fit, told where the call is made and not where it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

Arity = tuple[int, int]
"""The least and the most arguments by place that fit by themselves."""

ANY: Arity = (0, 1 << 30)
_NEVER: Arity = (1, 0)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def arity_of(function: Callable[..., Any], *, bound: bool = False) -> Arity:
    """How many arguments by place `function` takes; ANY if it doesn't tell.

    Args:
        function: what will be called. A decorator's own signature counts, not that of what it wraps.
        bound: its first argument is the object it is a method of.
    """
    try:
        parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return ANY
    if any(item.kind is item.KEYWORD_ONLY and item.default is item.empty for item in parameters):
        return _NEVER  # so that `require_fit` looks more closely
    by_place = [item for item in parameters if item.kind in _BY_PLACE]
    least = sum(item.default is item.empty for item in by_place)
    endless = any(item.kind is item.VAR_POSITIONAL for item in parameters)
    most = ANY[1] if endless else len(by_place)
    return (max(0, least - bound), most if endless else max(0, most - bound))


def require_fit(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    bound: bool = False,
) -> None:
    """Raise TypeError, as a direct call would, if the arguments don't fit."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*((None, *args) if bound else args), **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None
