"""Functions that open a stored experiment for reading, and find its objective in its stored properties."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainkit.registry import each
from trainkit.tune.core.objectives import Objective
from trainkit.tune.store.memory import MemoryReader
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME

Reader = ExperimentReader | MemoryReader
"""Reader of an experiment. Close a reader soon, because a running experiment keeps writing to its file."""


def foreign_reader(folder: Path) -> Reader | None:
    """Return a plugin's reader of an experiment that another library wrote; None for a folder of trainkit."""
    if (folder / FILENAME).exists():
        return None
    readers = (read(folder) for read in each("trainkit.experiment_readers"))
    return next((reader for reader in readers if reader is not None), None)


def open_experiment(folder: Path) -> Reader:
    """Open the experiment in `folder` for reading, whether finished or running.

    Raises:
        StoreError: the experiment is missing, or its file is damaged or was not written by trainkit.
    """
    return foreign_reader(folder) or ExperimentReader(folder)


def metric_and_mode(facts: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the metric and mode of an experiment; (None, None) unless it has exactly one metric."""
    settings = facts["tune_config"]
    metric, mode = facts.get("objective", (settings["metric"], settings["mode"]))
    return (None, None) if isinstance(metric, list) else (metric, mode)


def known_objectives(facts: Mapping[str, Any]) -> tuple[Objective, ...]:
    """Return the objectives from an experiment's properties; () unless it has several objectives."""
    return tuple(Objective(metric, mode) for metric, mode in facts.get("objectives", []))
