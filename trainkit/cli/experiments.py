"""Lookup of experiments and trials from the user's arguments."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from trainkit import settings
from trainkit.errors import ConfigError, did_you_mean
from trainkit.tune.core.trial import Trial
from trainkit.tune.results.overview import experiments_in
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME

TRIAL = "its id, name or number, or the beginning of one"


def add_experiment(parser: argparse.ArgumentParser, *, nargs: str | None = None) -> None:
    """Declare the argument `experiment`."""
    help = "path of the experiment's folder, or its name where experiments are written"
    parser.add_argument("experiment", metavar="EXPERIMENT", nargs=nargs, help=help)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare the argument `--json` of a command that changes a running experiment."""
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def whole_number(text: str) -> int:
    """Return the whole number in `text`; argparse prints the error that this function raises."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, not {text!r}")
    return int(text)


def folder_of_experiments(word: str | None) -> Path:
    """Return the folder with the path `word`; for None, return the default folder for experiments."""
    return Path(word).expanduser().absolute() if word else settings.results_dir().absolute()


def is_experiment(word: str) -> bool:
    """Return True if `word` is the path or the name of an experiment."""
    return _folder(word) is not None


def experiment_folder(word: str) -> Path:
    """Return the folder of the experiment with the path `word`, or with this name in the default folder.

    Raises:
        ConfigError: the experiment does not exist.
    """
    folder = _folder(word)
    if folder is None:
        near = near_experiment(word)
        also = f".{near}" if near else "; `trainkit ls DIR` lists the experiments in DIR"
        raise ConfigError(f"{not_found(word)}{also}")
    return folder


def not_found(word: str) -> str:
    """Return the message that no experiment `word` exists in the folders that were searched."""
    here, there = _places(word)
    return f"{word!r} is not an experiment: {FILENAME} is neither in {here} nor in {there}"


def near_experiment(word: str) -> str:
    """Return " Did you mean 'mnist'?" for the experiment with the most similar name or path, or ''."""
    path = Path(word).expanduser()
    beside = [str(path.parent / folder.name) for folder in experiments_in(path.parent)]
    return did_you_mean(word, [*beside, *(folder.name for folder in experiments_in(settings.results_dir()))])


def _folder(word: str) -> Path | None:
    return next((folder for folder in _places(word) if (folder / FILENAME).exists()), None)


def _places(word: str) -> tuple[Path, Path]:
    return Path(word).expanduser().absolute(), settings.results_dir().absolute() / word


def chosen_trial(folder: Path, word: str | None) -> str | None:
    """Return the id of the trial that `find_trial` finds for `word`; None if `word` is None.

    Raises:
        ConfigError: no trial or more than one trial matches.
    """
    if word is None:
        return None
    with ExperimentReader(folder) as reader:
        return find_trial(reader.trials(), word).trial_id


def find_trial(trials: Sequence[Trial], word: str) -> Trial:
    """Return the trial whose id, name, folder or number is `word`, or the only trial that `word` abbreviates.

    Raises:
        ConfigError: no trial or more than one trial matches.
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
            raise ConfigError(f"{word!r} fits {len(found)} trials: {few}{', ...' if len(found) > 5 else ''}")
    there = f"{trials[0].trial_id} to {trials[-1].trial_id}" if trials else "none yet"
    raise ConfigError(f"no trial has an id, name or number that starts with {word!r}; trials: {there}")
