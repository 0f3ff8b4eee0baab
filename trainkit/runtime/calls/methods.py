"""Lookup of an actor's methods by name, and built-in methods of every actor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from trainkit.runtime import specs
from trainkit.runtime.session import engine


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


BUILT_IN: Mapping[str, specs.MethodSpec] = {
    name: specs.MethodSpec(arity=specs.arity_of(function, bound=True)) for name, function in _BUILT_IN.items()
}
"""Built-in methods of every actor. Their tasks are to check that the actor runs, to call a function with the
actor's object, and to end the actor.
"""


def method_of(instance: Any, name: str) -> Callable[..., Any]:
    """Return the method named `name`, bound to `instance`.

    The method is looked up on the class, because an instance attribute of the same name would hide the
    method.
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
