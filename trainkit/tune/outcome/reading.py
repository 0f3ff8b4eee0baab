"""Where results are read from: an experiment of ours, or a folder that Ray Tune wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from trainkit.errors import StoreError
from trainkit.tune.objectives import Objective
from trainkit.tune.outcome.ray_folder import RayFolder, is_ray_folder
from trainkit.tune.schedulers.pbt.lineage import Exchange
from trainkit.tune.storing.history import ExperimentReader
from trainkit.tune.storing.schema import FILENAME
from trainkit.tune.storing.spans import Span
from trainkit.tune.storing.storage import locate, working_folder
from trainkit.tune.trial import Attempt, Trial


class Reader(Protocol):
    """What results ask of the experiment they come from; close it soon, a running one goes on writing."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...

    def facts(self) -> dict[str, Any]:
        """What holds for the whole experiment, by name."""

    def trials(self) -> list[Trial]:
        """All trials in the order suggested."""

    def history(self, trial_id: str) -> list[dict[str, Any]]:
        """The reports of a trial by iteration."""

    def histories(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """The same for each trial that has reported."""

    def checkpoint_results(self, trial_id: str) -> dict[int, dict[str, Any]]:
        """By checkpoint number, the report that it came with."""

    def decisions(self, trial_id: str | None = None) -> list[dict[str, Any]]:
        """What was decided on the reports of a trial, or of all."""

    def stops(self) -> dict[str, dict[str, Any]]:
        """By trial, the reason of the stop that was decided on its last report, if one was."""

    def exchanges(self) -> list[Exchange]:
        """How trials went on with other configurations, in order."""

    def attempts(self, trial_id: str) -> list[Attempt]:
        """The runs of a trial."""

    def spans(self) -> list[Span]:
        """When each attempt ran, and what became of it, in the order of their starts."""

    def times(self) -> dict[str, tuple[float | None, float | None]]:
        """By trial, when it began and when it ended, in seconds since 1970."""


def open_experiment(folder: Path) -> Reader:
    """Open the experiment in `folder` to read, be it finished or running.

    Raises:
        StoreError: there is none, or its file is damaged or foreign.
    """
    if not (folder / FILENAME).exists() and is_ray_folder(folder):
        return RayFolder(folder)
    return ExperimentReader(folder)


def experiment_folder(path: str | os.PathLike[str], filesystem: Any = None) -> Path:
    """The folder that `path` means: itself, where the file that it names lies, or the copy of an address.

    Args:
        path: a folder, a file in it, or an address such as "s3://bucket/experiment".
        filesystem: of fsspec, that `path` is a path of; None: the one that it names.

    Raises:
        StoreError: there is nothing.
        StorageError: the address can't be read.
    """
    folder, _ = working_folder(path, filesystem)
    if folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise StoreError(f"{folder} holds no experiment: there is no such folder")
    return folder


def trial_folder(path: str | os.PathLike[str], filesystem: Any = None) -> Path:
    """The folder of a trial that `path` means, in the folder of its experiment, which exists.

    Raises:
        StoreError, StorageError: see `experiment_folder`.
    """
    place = locate(path, filesystem)
    if isinstance(place, Path):
        return experiment_folder(place.parent) / place.name
    above, _, name = os.fspath(path).rstrip("/").rpartition("/")
    return experiment_folder(above, filesystem) / name


def metric_and_mode(facts: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """What "best" means in the experiment with these facts; None where it hasn't said."""
    settings = facts["tune_config"]
    metric, mode = facts.get("objective", (settings["metric"], settings["mode"]))
    return (None, None) if isinstance(metric, list) else (metric, mode)


def known_objectives(facts: Mapping[str, Any]) -> tuple[Objective, ...]:
    """The objectives of the experiment with these facts, where it has several."""
    return tuple(Objective(metric, mode) for metric, mode in facts.get("objectives", []))
