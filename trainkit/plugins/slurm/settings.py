"""Settings of a site: partition, account, modules and others, from pyproject.toml and the user's file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainkit.errors import ConfigError, did_you_mean

KINDS: dict[str, type | tuple[type, type]] = {
    "partition": str,
    "account": str,
    "job_name": str,
    "nodes": int,
    "gpus": (int, str),
    "cpus": int,
    "mem": (int, str),
    "time": (int, str),
    "signal_before": int,
    "max_requeues": int,
    "modules": list,
    "before": list,
    "python": str,
    "options": dict,
    "max_jobs": int,
    "max_hours": int,
    "idle_s": int,
}
"""Type of the value of each setting."""


_WORDS: dict[type, str] = {str: "a text", int: "a whole number", list: "a list of texts", dict: "a table"}


def user_file() -> Path:
    """Return the user's file, with a table for each cluster."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "trainkit" / "clusters.toml"


def settings_of(cluster: str | None, folder: Path) -> dict[str, Any]:
    """Return the settings of a cluster.

    The table `[tool.trainkit.cluster.NAME]` of the project's pyproject.toml overrides single values of the
    table `[NAME]` of the user's file.

    Args:
        cluster: name of the cluster; None means the only cluster of the files, if there is one.
        folder: folder in which, and above which, pyproject.toml is looked for.

    Raises:
        ConfigError: the cluster is unknown, or must be named; a setting is unknown or has the wrong type; or
            a file is not valid TOML.
    """
    users = user_file()
    above = (each / "pyproject.toml" for each in [folder, *folder.parents])
    project = next(filter(os.path.exists, above), None)
    tables: dict[str, dict[str, Any]] = {}
    for path, inner in ((users, _whole), (project, _of_project)):
        if path is not None and path.exists():
            for name, table in inner(_read(path)).items():
                tables.setdefault(name, {}).update(_checked(table, name, path))
    if cluster is None:
        if len(tables) > 1:
            names = " or ".join(sorted(tables))
            raise ConfigError(f"several clusters have settings: give --cluster or slurm://, with {names}")
        return next(iter(tables.values()), {})
    if cluster not in tables:
        raise ConfigError(
            f"cluster {cluster!r} has no settings.{did_you_mean(cluster, tables)} Add a table "
            f"[{cluster}] to {users}, or [tool.trainkit.cluster.{cluster}] to pyproject.toml"
        )
    return tables[cluster]


def _whole(content: Mapping[str, Any]) -> Mapping[str, Any]:
    return content


def _of_project(content: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("tool", "trainkit", "cluster"):
        content = content.get(name, {})
        if not isinstance(content, dict):
            raise ConfigError(f"pyproject.toml: {name} must be a table, not {content!r}")
    return content


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _checked(table: Any, name: str, path: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(
            f"{path}: {name} must be a table [{name}] with settings of a cluster, not {table!r}"
        )
    for key, value in table.items():
        if key not in KINDS:
            raise ConfigError(
                f"{path}: [{name}] has no setting {key!r}.{did_you_mean(key, KINDS)} "
                f"Settings: {', '.join(KINDS)}"
            )
        if not isinstance(value, KINDS[key]) or isinstance(value, bool):
            kinds = KINDS[key]
            words = " or ".join(_WORDS[kind] for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
            raise ConfigError(f"{path}: [{name}] {key} must be {words}, not {value!r}")
    return table
