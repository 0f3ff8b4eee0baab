"""For modules that stand where Ray's scripts look for them: the names of another, when first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def names_of(module: str, *homes: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module that has the names of others.

    Args:
        module: its own name.
        homes: the modules, in which names are looked for in this order.
    """

    def __getattr__(name: str) -> Any:
        if not name.startswith("__"):
            for home in homes:
                found = importlib.import_module(home)
                if hasattr(found, name):
                    return getattr(found, name)
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}; it has those of {', '.join(homes)}"
        )

    def __dir__() -> list[str]:
        return sorted({name for home in homes for name in dir(importlib.import_module(home))})

    return __getattr__, __dir__
