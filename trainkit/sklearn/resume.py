"""Outcomes of a search that was cut off, for the next `fit` to start from.

After Ctrl-C the search object keeps an `Unfinished`, and the next `fit` compares the digest of its task.
After SIGKILL the experiment's file, where there is a `name`, holds the reports, and the next `fit` reads it.

Both ways the outcomes travel to the workers with the task, and a fold that is known is not done again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.errors import StoreError
from trainkit.sklearn.outcomes import CANDIDATE_KEY, KnownOutcomes, Outcome, outcomes_of
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME


@dataclass(frozen=True)
class PartialSearch:
    """Outcomes of the candidates of a search that was cut off.

    Attributes:
        task: digest of what they were evaluated on.
        known: what they came to.
    """

    task: str
    known: KnownOutcomes


def known_of(reports: Iterable[Mapping[str, Any]], folds: int) -> dict[str, list[Outcome]]:
    """Return what is known from the last reports of candidates: of each, the folds from the first on."""
    known: dict[str, list[Outcome]] = {}
    for report in reports:
        key = report.get(CANDIDATE_KEY)
        done = itertools.takewhile(lambda outcome: outcome is not None, outcomes_of(report, folds))
        outcomes = [outcome for outcome in done if outcome is not None]
        if key and len(outcomes) > len(known.get(key, ())):
            known[key] = outcomes
    return known


@contextlib.contextmanager
def claimed(parent: Path, name: str) -> Iterator[str]:
    """Give the next experiment called `name` a folder of its own: search, search_2, search_3 ...

    Made at once, as that is what only one can do of those that begin at the same time. One that is still
    empty at the end of the block, as nothing came of the experiment, is removed.

    Raises:
        StoreError: it can't be made.
    """
    folder = _new_folder(parent, name)
    try:
        yield folder.name
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _new_folder(parent: Path, name: str) -> Path:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return next(parent / each for each in _names(name) if _is_made(parent / each))
    except OSError as error:
        raise StoreError(f"the experiment's folder {parent / name} cannot be made: {error}") from error


def _is_made(folder: Path) -> bool:
    """Make it; False if it is there already."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def left_in(parent: Path, name: str, folds: int) -> dict[str, list[Outcome]]:
    """Return what is known from the experiments called `name` since the last of them that was finished.

    Raises:
        StoreError: the file of one is damaged or foreign.
    """
    made = itertools.takewhile(lambda folder: folder.exists(), (parent / each for each in _names(name)))
    folders = [folder for folder in made if (folder / FILENAME).exists()]  # others have come to nothing yet
    reports: list[Mapping[str, Any]] = []
    for folder in reversed(folders):
        with ExperimentReader(folder) as reader:
            total = reader.facts().get("total_samples")
            trials = reader.trials()
        if all(trial.status.is_finished for trial in trials) and len(trials) >= (total or 0):
            break
        reports += [trial.last_result for trial in trials]
    return known_of(reports, folds)


def _names(name: str) -> Iterator[str]:
    return itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
