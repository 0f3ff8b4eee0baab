"""Folders of experiments and trials, found by a path or an address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainkit.errors import ExperimentNotFoundError, StoreError
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME
from trainkit.tune.sync.storage import locate, working_folder


def experiment_folder(path: str | os.PathLike[str], filesystem: Any = None) -> Path:
    """Return the experiment folder that `path` refers to. For an address, the folder is a local copy.

    Args:
        path: a folder, a file in the folder, or an address such as "s3://bucket/experiment".
        filesystem: an fsspec file system for `path`; None: the file system that `path` names.

    Raises:
        StoreError: the folder is missing.
        StorageError: the address can't be read.
    """
    place = locate(path, filesystem)
    folder = place if isinstance(place, Path) else working_folder(path, filesystem)[0]
    if folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise ExperimentNotFoundError(f"{folder} holds no experiment: there is no such folder")
    return folder


def trial_folder(path: str | os.PathLike[str], filesystem: Any = None) -> Path:
    """Return the trial folder that `path` refers to; its experiment's folder must exist.

    The folder of an experiment with a single trial, such as a trainer's run, refers to that trial.

    Raises:
        StoreError: the folder is missing, or `path` is an experiment with no trial or with several trials.
        StorageError: the address can't be read.
    """
    place = locate(path, filesystem)
    if isinstance(place, Path):
        if (place / FILENAME).is_file():
            return _only_trial(place)
        return experiment_folder(place.parent) / place.name
    above, _, name = os.fspath(path).rstrip("/").rpartition("/")
    return experiment_folder(above, filesystem) / name


def _only_trial(experiment: Path) -> Path:
    with ExperimentReader(experiment) as reader:
        names = [trial.dirname for trial in reader.trials()]
    if len(names) != 1:
        raise StoreError(
            f"{experiment} has {len(names)} trials: give the folder of one, or use ResultGrid.from_path()"
        )
    return experiment / names[0]
