"""`trainkit stop EXPERIMENT [TRIAL]`: ask the process that runs an experiment to stop it, or one trial."""

from __future__ import annotations

import sys
from pathlib import Path

from trainkit.cli.experiments import chosen_trial, experiment_folder
from trainkit.clock import SYSTEM, Clock
from trainkit.errors import ConfigError, TuneError
from trainkit.tune.running.commands import ask_to_stop, asker
from trainkit.tune.storing.chronicle import ChronicleReader
from trainkit.tune.storing.ownership import owner_of
from trainkit.tune.storing.schema import FILENAME

_EVERY_S = 0.1
PATIENCE_S = 120.0
"""A trial has five seconds to its next report and sixty for its clean-up; then it is killed."""


def stop_experiment(word: str, trial: str | None, clock: Clock = SYSTEM) -> int:
    """Stop the experiment that `word` means, as Ctrl-C does, or one of its trials; return once it has ended.

    Raises:
        ConfigError: there is no such experiment or trial, nobody runs it, or the trial has ended already.
        TuneError: nothing came of it.
    """
    folder = experiment_folder(word)
    owner = owner_of(folder)
    if owner is None:
        raise ConfigError(f"nobody runs the experiment in {folder}, so there is nothing to stop")
    with ChronicleReader(folder) as reader:
        chosen = None if trial is None else chosen_trial(reader.trials(), trial)
    if chosen is not None and chosen.status.is_finished:
        raise ConfigError(f"trial {chosen.trial_id} has ended already: {chosen.status}, {chosen.reason}")
    wish = ask_to_stop(folder, None if chosen is None else chosen.trial_id, asker())
    patience_ends = clock.monotonic() + PATIENCE_S
    while clock.monotonic() < patience_ends:
        running = owner_of(folder) is not None
        done = end_of(folder) if chosen is None else _outcome(folder, chosen.trial_id)
        if done and (chosen is not None or not running):
            sys.stdout.write(f"{done}\n")
            return 0
        if not running:
            wish.unlink(missing_ok=True)  # else whoever goes on with the experiment would be stopped
            raise TuneError(f"the process {owner} that ran {folder} has ended before it took this up")
        clock.sleep(_EVERY_S)
    raise TuneError(f"the process {owner} that runs {folder} has not done it within {PATIENCE_S:g} s")


def _outcome(folder: Path, trial_id: str) -> str:
    """What became of the trial; '' if it hasn't ended."""
    with ChronicleReader(folder) as reader:
        trial = chosen_trial(reader.trials(), trial_id)
    return f"trial {trial_id} is {trial.status}: {trial.reason}" if trial.status.is_finished else ""


def wait_for_end(folder: Path, patience_ends: float, clock: Clock = SYSTEM) -> bool:
    """Wait until nobody runs the experiment any more; False if somebody does at `patience_ends`."""
    while owner_of(folder) is not None:
        if clock.monotonic() >= patience_ends:
            return False
        clock.sleep(_EVERY_S)
    return True


def end_of(folder: Path) -> str:
    """Return how the experiment ended; '' if it hasn't, or nothing is kept of it."""
    if not (folder / FILENAME).exists():
        return ""
    with ChronicleReader(folder) as reader:
        last = next(reversed(reader.events()), None)
    if last is None or last.kind != "ended":
        return ""
    return (
        f"{folder} has ended: {last.detail}; go on with it by "
        f"tune.Tuner.restore({str(folder)!r}, trainable).fit()"
    )
