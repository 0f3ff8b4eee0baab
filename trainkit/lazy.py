"""Packages whose names are loaded when first used."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainkit.errors import did_you_mean


def no_such_name(module: str, name: str, names: Iterable[str]) -> Exception:
    """Return what a package raises that is asked for a name that it doesn't have; the nearest is told.

    Args:
        module: name of the package, whose `__getattr__` was called.
        name: asked for.
        names: that it has.
    """
    hint = did_you_mean(name, names)
    # `from package import name` shows no text of an AttributeError; a submodule is looked for after one.
    # Between the two may stand the function that adds old names to the package.
    callers = [sys._getframe(2), sys._getframe(2).f_back]
    imported = any(frame is not None and frame.f_code.co_name == "_handle_fromlist" for frame in callers)
    if hint and imported and importlib.util.find_spec(f"{module}.{name}") is None:
        return ImportError(f"cannot import name {name!r} from {module!r}.{hint}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}{'.' * bool(hint)}{hint}")


def lazily(module: str, home_of: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names are loaded when first used.

    Args:
        module: its own name.
        home_of: by name, the module that has it.
    """

    def __getattr__(name: str) -> Any:
        if name not in home_of:
            raise no_such_name(module, name, home_of)
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted(home_of)

    return __getattr__, __dir__
