"""How an actor's methods are called: what `@method` says, and what their kind implies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from trainkit.errors import ConfigError
from trainkit.runtime.specs import STREAMING, Interface, MethodSpec

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__trainkit_method__"


def method(
    *,
    num_returns: int | Literal["streaming"] | None = None,
    concurrency_group: str | None = None,
    max_task_retries: int | None = None,
) -> Callable[[F], F]:
    """Say how a method of a remote class is called.

    Args:
        num_returns: how many references a call returns; see `Options.num_returns`.
        concurrency_group: the group of `concurrency_groups` that it runs in.
        max_task_retries: see `Options.max_task_retries`; None is the actor's own.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, (num_returns, concurrency_group, max_task_retries))
        return function

    return mark


def is_generator(function: Any) -> bool:
    """Whether a call yields its results one by one."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def returns_of(num_returns: int | Literal["streaming"] | None, *, generator: bool) -> int:
    """`num_returns` as a number; STREAMING for results that come one by one."""
    if num_returns is None:
        return STREAMING if generator else 1
    if num_returns == "streaming":
        return STREAMING
    if isinstance(num_returns, bool) or not isinstance(num_returns, int) or num_returns < 1:
        raise ConfigError(f"num_returns={num_returns!r}: give 1 or more, or 'streaming'")
    return num_returns


def interface_of(cls: type, label: str) -> Interface:
    """What handles of `cls` need to know."""
    methods = {}
    is_async = False
    for name, function in inspect.getmembers(cls, callable):
        if name.startswith("__") and name != "__call__":
            continue
        returns, group, retries = getattr(function, _MARK, (None, None, None))
        methods[name] = MethodSpec(
            num_returns=returns_of(returns, generator=is_generator(function)),
            concurrency_group=group,
            max_task_retries=retries,
        )
        is_async |= inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return Interface(name=label, methods=methods, is_async=is_async)
