"""Calls with those of many arguments that a function takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def taken(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `arguments` that `function` takes; all, where it takes any."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}
