"""Modules that have the names of others, which are loaded when first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
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


def nowhere(module: str, searcher: str) -> ImportError:
    """Return what importing `module` raises, as the `searcher` that Ray has there is not here."""
    return ImportError(
        f"{searcher} is not in trainkit: take OptunaSearch of trainkit.tune.search.optuna, whose sampler= "
        "takes any of Optuna's, such as GPSampler or CmaEsSampler; or extend trainkit.tune.search.Searcher",
        name=module,
    )


def lazily(module: str, home_of: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names are loaded when first used.

    Args:
        module: its own name.
        home_of: by name, the module that has it; one in the package by its last part.
    """

    def __getattr__(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = home_of[name] if "." in home_of[name] else f"{module}.{home_of[name]}"
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[module], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted(home_of)

    return __getattr__, __dir__
