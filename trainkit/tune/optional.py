"""Packages that not everyone has: loaded when first needed, or named with what installs them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import MissingDependencyError


def load(module: str, what: str, extra: str) -> Any:
    """Import and return a module of an optional package.

    Args:
        module: such as "matplotlib.figure".
        what: that needs it, in the plural, such as "plots".
        extra: of trainkit, that brings it.

    Raises:
        MissingDependencyError: it is not installed.
    """
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError.of(f"{what} need {package}", extra, error) from error


def pandas_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A table with a row each; a key that a row lacks is NaN there."""
    return load("pandas", "tables", "tune").DataFrame([dict(row) for row in rows])
