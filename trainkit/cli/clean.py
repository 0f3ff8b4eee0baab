"""`trainkit clean`: remove the checkpoints of an experiment that has ended."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from trainkit.cli import HELP, Command, confirmed
from trainkit.cli.experiments import add_experiment, experiment_folder
from trainkit.errors import ConfigError
from trainkit.resources import describe_bytes
from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Trial
from trainkit.tune.results.overview import Overview
from trainkit.tune.store.writer import ExperimentStore


class Clean(Command):
    """`trainkit clean`."""

    help = HELP["clean"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_experiment(parser)
        parser.add_argument(
            "--keep-best",
            action="store_true",
            help="keep the checkpoints of the trial with the best last report",
        )
        parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")

    def run(self, arguments: argparse.Namespace) -> int:
        return clean(arguments.experiment, keep_best=arguments.keep_best, yes=arguments.yes)


def clean(word: str, *, keep_best: bool, yes: bool) -> int:
    """Remove the checkpoints of trials that have ended.

    Args:
        word: path or name of the experiment.
        keep_best: True keeps the checkpoints of the best trial.
        yes: True does not ask for confirmation.

    Raises:
        ConfigError: the experiment does not exist, or its best trial is unknown.
        StoreError: a process is running the experiment.
    """
    folder = experiment_folder(word)
    store = ExperimentStore.open(folder)  # this also locks the experiment
    try:
        overview = Overview.of(folder, 0.0)
        kept = None
        if keep_best:
            if overview.best is None:
                raise ConfigError(
                    f"{folder} has no best trial: it has no metric, no trial reported the metric, or all "
                    "trials have failed"
                )
            kept = overview.best[0]
        doomed = [
            trial
            for trial in overview.trials
            if trial.status.is_finished and trial.trial_id != kept and trial.checkpoints
        ]
        if not doomed:
            sys.stdout.write("there is nothing to remove\n")
            return 0
        count = sum(len(trial.checkpoints) for trial in doomed)
        size = sum(_bytes(folder, trial) for trial in doomed)
        besides = f" (not those of {kept}, the best trial)" if kept else ""
        what = f"{count} checkpoints of {len(doomed)} trials, {describe_bytes(size)}, in {folder}{besides}"
        if not yes and not confirmed(f"Remove {what}? [y/N] "):
            sys.stdout.write("nothing was removed\n")
            return 1
        # The checkpoints are removed from the store before their folders are deleted. If this process is
        # killed in between, a restore removes the folders to which the store no longer refers.
        store.commit(
            [ev.CheckpointDropped(trial, checkpoint) for trial in doomed for checkpoint in trial.checkpoints]
        )
        for trial in doomed:
            for checkpoint in trial.checkpoints:
                shutil.rmtree(folder / trial.dirname / checkpoint.dirname, ignore_errors=True)
        sys.stdout.write(f"removed {what}\n")
        return 0
    finally:
        store.close()


def _bytes(folder: Path, trial: Trial) -> int:
    return sum(
        path.stat().st_size
        for checkpoint in trial.checkpoints
        for path in (folder / trial.dirname / checkpoint.dirname).rglob("*")
        if path.is_file()
    )
