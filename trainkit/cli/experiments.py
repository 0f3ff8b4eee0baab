"""Lookup of experiments and trials by name, and `trainkit ls`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trainkit import settings
from trainkit.cli.sessions import duration, wide_console
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, StoreError
from trainkit.tune.core.trial import Trial
from trainkit.tune.results.overview import Overview
from trainkit.tune.store.schema import FILENAME


def is_experiment(word: str) -> bool:
    """Whether `word` means an experiment."""
    return _folder(word) is not None


def experiment_folder(word: str) -> Path:
    """The experiment that `word` means: a path, or the name of a folder where experiments are written.

    Raises:
        ConfigError: there is none.
    """
    folder = _folder(word)
    if folder is None:
        raise ConfigError(f"{not_found(word)}; `trainkit ls DIR` shows which there are in DIR")
    return folder


def not_found(word: str) -> str:
    """Where an experiment `word` was looked for, and is not."""
    here, there = _places(word)
    return f"{word!r} is no experiment: no {FILENAME} is in {here} or in {there}"


def _folder(word: str) -> Path | None:
    return next((folder for folder in _places(word) if (folder / FILENAME).exists()), None)


def _places(word: str) -> tuple[Path, Path]:
    return Path(word).expanduser().absolute(), settings.results_dir().absolute() / word


def chosen_trial(trials: Sequence[Trial], word: str) -> Trial:
    """The trial that `word` means: its id, name or folder, the beginning of one of them, or its number.

    Raises:
        ConfigError: none, or more than one.
    """
    for names in (
        lambda trial: word in (trial.trial_id, trial.name, trial.dirname),
        lambda trial: word.isdecimal() and trial.index == int(word),
        lambda trial: any(name.startswith(word) for name in (trial.trial_id, trial.name, trial.dirname)),
    ):
        found = [trial for trial in trials if names(trial)]
        if len(found) == 1:
            return found[0]
        if found:
            few = ", ".join(trial.trial_id for trial in found[:5])
            raise ConfigError(f"{word!r} means {len(found)} trials: {few}{', ...' if len(found) > 5 else ''}")
    there = f"{trials[0].trial_id} to {trials[-1].trial_id}" if trials else "none yet"
    raise ConfigError(
        f"no trial has an id, name or number {word!r}, or one that starts so; there are {there}"
    )


def list_experiments(folder: str | None) -> int:
    """Show the experiments in `folder`; None: where experiments are written.

    Raises:
        ConfigError: there is no such folder.
    """
    from rich.table import Table

    root = Path(folder).expanduser().absolute() if folder is not None else settings.results_dir().absolute()
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder")
    found = sorted(path.parent for path in root.glob(f"*/{FILENAME}"))
    console = wide_console()
    if not found:
        console.print(f"no experiment is in {root}", soft_wrap=True)
        return 0
    now = SYSTEM.now()
    table = Table(box=None, header_style="dim")
    for column in ("experiment", "state", "trials", "best by last report", "age"):
        table.add_column(column)
    problems = []
    for path in found:
        try:
            overview = Overview.of(path, now)
        except StoreError as error:
            problems.append(str(error))
            continue
        age = duration(max(0.0, now - overview.created))
        table.add_row(path.name, overview.state, overview.counts, overview.best_words, age)
    console.print(table)
    sys.stderr.write("".join(f"trainkit: {problem}\n" for problem in problems))
    return 1 if problems else 0
