"""How an actor's methods are called: what `@method` says, and what their kind implies."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from trainkit.errors import ArgumentTypeError, ConfigError
from trainkit.runtime.arity import arity_of
from trainkit.runtime.current import engine
from trainkit.runtime.specs import DYNAMIC, STREAMING, Interface, MethodSpec, ObjectRef

if TYPE_CHECKING:
    from typing import Unpack

    from trainkit.runtime.streams import ObjectRefGenerator
    from trainkit.runtime.typed import MarkMethod, Method, MethodOptions, Unknown

P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
_MARK = "__trainkit_method__"


@overload
def method(
    function: Callable[Concatenate[Any, P], Unknown], /
) -> Method[Callable[..., ObjectRef[Any]], Callable[..., Any]]: ...
@overload
def method(  # type: ignore[overload-overlap]
    function: Callable[Concatenate[Any, P], AsyncIterator[Y]], /
) -> Method[Callable[P, ObjectRefGenerator[Y]], Callable[P, AsyncIterator[Y]]]: ...
@overload
def method(  # type: ignore[overload-overlap]
    function: Callable[Concatenate[Any, P], Iterator[Y]], /
) -> Method[Callable[P, ObjectRefGenerator[Y]], Callable[P, Iterator[Y]]]: ...
@overload
def method(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
) -> Method[Callable[P, ObjectRef[R]], Callable[P, Coroutine[Any, Any, R]]]: ...
@overload
def method(
    function: Callable[Concatenate[Any, P], R], /
) -> Method[Callable[P, ObjectRef[R]], Callable[P, R]]: ...
@overload
def method(**options: Unpack[MethodOptions]) -> MarkMethod: ...
def method(
    function: Any = None,
    /,
    *,
    num_returns: int | Literal["streaming", "dynamic"] | None = None,
    concurrency_group: str | None = None,
    max_task_retries: int | None = None,
    retry_exceptions: bool | Sequence[type[BaseException]] = False,
) -> Any:
    """Say how a method of a remote class is called, as a decorator with or without options.

    Without options it changes nothing but what type checkers know: a marked method's `.remote(...)` has
    its arguments checked, and returns a reference to a value of the right type. Inside the class it is
    called as any other method.

    Args:
        function: the method, if the decorator stands without parentheses.
        num_returns: how many references a call returns; see `Options.num_returns`.
        concurrency_group: the group of `concurrency_groups` that it runs in.
        max_task_retries: see `Options.max_task_retries`; None is the actor's own.
        retry_exceptions: such a call is also made again when it raises: True for any exception, or a list of
            classes.

    Raises:
        ConfigError: it is given something else than a method, or an impossible `num_returns`.
    """
    returns_of(num_returns, generator=False)  # a wrong one is told where it stands
    kinds = retried(retry_exceptions)

    def mark(marked: Any) -> Any:
        if not inspect.isroutine(marked):
            raise ConfigError(f"method() takes a method of a class, not {marked!r}; give options by name")
        plain = getattr(marked, "__func__", marked)  # of a staticmethod or classmethod, what the class shows
        setattr(plain, _MARK, (num_returns, concurrency_group, max_task_retries, kinds))
        return marked

    return mark if function is None else mark(function)


def retried(kinds: bool | Sequence[type[BaseException]]) -> bool | tuple[type[BaseException], ...]:
    """Return `retry_exceptions` in a form that a call can carry; raises ArgumentTypeError if it is none."""
    if isinstance(kinds, bool):
        return kinds
    if not isinstance(kinds, Sequence) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
    ):
        raise ArgumentTypeError(f"retry_exceptions={kinds!r}: give True or a list of classes")
    return tuple(kinds)


def is_generator(function: Any) -> bool:
    """Whether a call yields its results one by one."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def returns_of(num_returns: int | Literal["streaming", "dynamic"] | None, *, generator: bool) -> int:
    """`num_returns` as a number; STREAMING or DYNAMIC for as many as the function yields."""
    if num_returns is None:
        return STREAMING if generator else 1
    if num_returns == "streaming":
        return STREAMING
    if num_returns == "dynamic":
        return DYNAMIC
    if isinstance(num_returns, bool) or not isinstance(num_returns, int):
        raise ArgumentTypeError(f"num_returns={num_returns!r}: give 0 or more, 'streaming' or 'dynamic'")
    if num_returns < 0:
        raise ConfigError(f"num_returns={num_returns!r}: give 0 or more, 'streaming' or 'dynamic'")
    return num_returns


def _ready(actor: Any) -> bool:
    return True


def _call(actor: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(actor, *args, **kwargs)


def _terminate(actor: Any) -> None:
    engine().exit_actor()


_BUILT_IN: Mapping[str, Callable[..., Any]] = {
    "__ray_ready__": _ready,
    "__ray_call__": _call,
    "__ray_terminate__": _terminate,
}
BUILT_IN: Mapping[str, MethodSpec] = {
    name: MethodSpec(arity=arity_of(function, bound=True)) for name, function in _BUILT_IN.items()
}
"""The methods that every actor has: it is there; it calls a function with its object; it ends."""


def method_of(instance: Any, name: str) -> Callable[..., Any]:
    """Return the method of that name, bound to `instance`.

    It is looked up on the class, so that an attribute of the same name does not hide it.
    """
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        return functools.partial(built_in, instance)
    kind = type(instance)
    for base in kind.__mro__:
        if name in vars(base):
            found = vars(base)[name]
            bind = getattr(type(found), "__get__", None)
            return found if bind is None else bind(found, instance, kind)  # type: ignore[no-any-return]
    return getattr(instance, name)  # type: ignore[no-any-return]


def _takes_self(cls: type, name: str) -> bool:
    """Whether the object comes before a method's arguments, and isn't bound to it already."""
    return inspect.isfunction(inspect.getattr_static(cls, name))


def interface_of(cls: type, label: str) -> Interface:
    """What handles of `cls` need to know."""
    methods = {}
    is_async = False
    for name, function in inspect.getmembers(cls, callable):
        if name.startswith("__") and name != "__call__":
            continue
        returns, group, retries, kinds = getattr(function, _MARK, (None, None, None, False))
        methods[name] = MethodSpec(
            num_returns=returns_of(returns, generator=is_generator(function)),
            concurrency_group=group,
            max_task_retries=retries,
            retry_exceptions=kinds,
            arity=arity_of(function, bound=_takes_self(cls, name)),
        )
        is_async |= inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return Interface(name=label, methods=methods, is_async=is_async)
