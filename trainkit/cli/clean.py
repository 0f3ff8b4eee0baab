"""`trainkit clean`: remove the checkpoints of an experiment that has ended."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections.abc import Sequence
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
        folder = experiment_folder(arguments.experiment)
        # opening the store also locks the experiment
        with contextlib.closing(ExperimentStore.open(folder)) as store:
            overview = Overview.of(folder, 0.0)
            kept = _best_trial(overview) if arguments.keep_best else None
            doomed = [
                trial
                for trial in overview.trials
                if trial.status.is_finished and trial.trial_id != kept and trial.checkpoints
            ]
            if not doomed:
                sys.stdout.write("there is nothing to remove\n")
                return 0
            what = _description(folder, doomed, kept)
            if not arguments.yes and not confirmed(f"Remove {what}? [y/N] "):
                sys.stdout.write("nothing was removed\n")
                return 1
            pairs = [(trial, checkpoint) for trial in doomed for checkpoint in trial.checkpoints]
            # The checkpoints are removed from the store before their folders are deleted. If this process is
            # killed between the two steps, a restore removes the folders to which the store no longer refers.
            store.commit([ev.CheckpointDropped(*pair) for pair in pairs])
            for trial, checkpoint in pairs:
                shutil.rmtree(folder / trial.dirname / checkpoint.dirname, ignore_errors=True)
            sys.stdout.write(f"removed {what}\n")
            return 0


def _best_trial(overview: Overview) -> str:
    if overview.best is None:
        raise ConfigError(
            f"{overview.folder} has no best trial: it has no metric, no feasible trial reported the metric, "
            "or all trials have failed"
        )
    return overview.best[0]


def _description(folder: Path, doomed: Sequence[Trial], kept: str | None) -> str:
    count = sum(len(trial.checkpoints) for trial in doomed)
    size = sum(_bytes(folder, trial) for trial in doomed)
    besides = f" (not those of {kept}, the best trial)" if kept else ""
    return f"{count} checkpoints of {len(doomed)} trials, {describe_bytes(size)}, in {folder}{besides}"


def _bytes(folder: Path, trial: Trial) -> int:
    return sum(
        path.stat().st_size
        for checkpoint in trial.checkpoints
        for path in (folder / trial.dirname / checkpoint.dirname).rglob("*")
        if path.is_file()
    )
