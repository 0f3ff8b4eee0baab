"""Dictionary of environment settings for workers, under the name of `ray.runtime_env`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RuntimeEnv"]


class RuntimeEnv(dict[str, Any]):
    """Dictionary for the option `runtime_env=`, made from keyword arguments.

    The functions that receive the dictionary check it: `init` and `.options()` accept `env_vars` and
    `working_dir`. Entries that install packages are refused, because workers use the packages of the
    program's environment.

    Args:
        env_vars: environment variables of the workers.
        working_dir: folder in which the workers run.
        **kwargs: further entries; entries whose value is None are left out.
    """

    def __init__(
        self,
        *,
        env_vars: Mapping[str, str] | None = None,
        working_dir: str | None = None,
        **kwargs: Any,
    ) -> None:
        entries = {"env_vars": env_vars, "working_dir": working_dir, **kwargs}
        super().__init__({name: value for name, value in entries.items() if value is not None})

    def env_vars(self) -> dict[str, str]:
        """Return the environment variables."""
        return dict(self.get("env_vars") or {})

    def working_dir(self) -> str | None:
        """Return the folder in which workers run; None means the folder in which the program runs."""
        folder: str | None = self.get("working_dir")
        return folder

    def set(self, name: str, value: Any) -> None:
        """Change one entry."""
        self[name] = value

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as a plain `dict`."""
        return dict(self)

    def __reduce__(self) -> Any:
        return _made, (dict(self),)


def _made(entries: dict[str, Any]) -> RuntimeEnv:
    return RuntimeEnv(**entries)
