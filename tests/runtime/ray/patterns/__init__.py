"""Small programs in the ways that Ray's documentation teaches: functions of the module they run with.

`@program` collects them; `run` carries them out under one module and tells what each printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Program = Callable[[Any], None]

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Add a program; its first argument is `ray` or `trainkit`."""
    if function.__name__ in PROGRAMS:
        raise ValueError(f"there are two programs named {function.__name__}")
    PROGRAMS[function.__name__] = function
    return function
