"""Classes by their names, for configurations that contain only plain text."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from trainkit.errors import ConfigError


def import_class(name: str) -> Any:
    """Return the class, or other callable, with a name such as "torch.optim.Adam".

    A space should contain the name of a class as text, because text is readable in tables and accepted by
    every searcher.

        param_space={"optimizer": tune.choice(["torch.optim.Adam", "torch.optim.SGD"]), "lr": 0.1}
        ...
        optimizer = tune.import_class(config["optimizer"])(model.parameters(), lr=config["lr"])

    Args:
        name: module and class, separated by a dot; for a nested class, module, outer classes and class. A
            name without a dot is looked up in `__main__`. In the process of a trial, only the names that the
            trainable uses can be found in `__main__`.

    Raises:
        ConfigError: the name does not exist; the message lists the most similar names.
        ImportError: the module exists, but one of its own imports fails.
    """
    parts = name.split(".") if isinstance(name, str) else []
    if not parts or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"import_class() needs a name such as 'torch.optim.Adam', not {name!r}")
    found = _from_main(name, sys._getframe(1).f_globals) if len(parts) == 1 else _from_module(name, parts)
    if isinstance(found, ModuleType) or not callable(found):
        kind = "a module" if isinstance(found, ModuleType) else f"an object of type {type(found).__name__}"
        raise ConfigError(f"import_class() needs the name of a class, but {name!r} is {kind}")
    return found


def _from_main(name: str, caller: Mapping[str, Any]) -> Any:
    # In a worker process, `__main__` is the program of the worker, and functions of the user's script have
    # their own globals, so both are searched.
    scopes = [vars(sys.modules["__main__"])]
    if caller.get("__name__") == "__main__":
        scopes.append(dict(caller))
    for scope in scopes:
        if name in scope:
            return scope[name]
    near = _nearest(name, (each for scope in scopes for each in scope))
    raise ConfigError(
        f"import_class(): __main__ of this process has no {name!r}{near}. Give the module too, as in "
        "'package.module.Class'. In a trial, __main__ contains only the names that the trainable mentions"
    )


def _from_module(name: str, parts: list[str]) -> Any:
    found: Any = _module(parts[0])
    if found is None:
        near = _nearest(parts[0], {each.partition(".")[0] for each in sys.modules})
        raise ConfigError(f"import_class({name!r}): no module {parts[0]!r}{near}. Is its package installed?")
    for place, part in enumerate(parts[1:], 1):
        inside = ".".join(parts[:place])
        outer = found
        found = getattr(outer, part, None)
        if found is None and isinstance(outer, ModuleType):
            found = _module(f"{inside}.{part}")
        if found is None:
            raise ConfigError(
                f"import_class({name!r}): {inside} has no {part!r}{_nearest(part, _names(outer))}"
            )
    return found


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # None is returned only if the module or its package is missing. A missing dependency of the module
        # must be reported.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _names(found: Any) -> Iterable[str]:
    yield from dir(found)
    if isinstance(found, ModuleType) and hasattr(found, "__path__"):
        yield from (each.name for each in pkgutil.iter_modules(found.__path__))


def _nearest(name: str, names: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in names if not each.startswith("_")}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3)
    return f"; similar names: {', '.join(by_lower[each] for each in near)}" if near else ""
