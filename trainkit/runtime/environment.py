"""What a worker sees besides its program's surroundings: variables, and the folder it runs in."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainkit.errors import ArgumentTypeError, ConfigError

_OFFERED = ("env_vars", "working_dir")


@dataclass(frozen=True)
class Environment:
    """Additions to what a worker sees.

    Attributes:
        variables: environment variables.
        working_dir: absolute path of the folder to run in; None keeps the program's.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None


def environment_of(env: Mapping[str, str], runtime_env: Mapping[str, Any] | None) -> Environment:
    """`env` and `runtime_env` as one.

    Raises:
        ConfigError: a value is no string, or `runtime_env` asks for what is not offered.
    """
    if runtime_env is not None and not isinstance(runtime_env, Mapping):
        raise ArgumentTypeError(
            f"runtime_env={runtime_env!r}: give a dictionary, such as {{'env_vars': {{}}}}"
        )
    asked = dict(runtime_env or {})
    unknown = sorted(set(asked) - set(_OFFERED))
    if unknown:
        raise ConfigError(
            f"runtime_env holds {', '.join(unknown)}; offered are {', '.join(_OFFERED)}. Workers of this "
            "machine run with the program's own packages: install what is missing beside it."
        )
    variables = {**(asked.get("env_vars") or {}), **env}
    wrong = {name: value for name, value in variables.items() if {type(name), type(value)} != {str}}
    if wrong:
        raise ArgumentTypeError(f"env holds {wrong!r}: names and values must be strings")
    folder = asked.get("working_dir")
    if folder is not None:
        folder = os.path.abspath(folder)
        if not os.path.isdir(folder):
            raise ConfigError(f"runtime_env working_dir={folder!r} is not a folder")
    return Environment(variables, folder)


@contextlib.contextmanager
def inside(folder: str | None) -> Iterator[None]:
    """Run in `folder`, with its modules first on `sys.path`; None changes nothing."""
    if folder is None:
        yield
        return
    sys.path.insert(0, folder)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
