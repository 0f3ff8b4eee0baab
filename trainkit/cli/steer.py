"""`trainkit add`, `pause`, `resume`, `first` and `set`: commands to a running experiment."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from trainkit.cli import HELP, Command
from trainkit.cli.experiments import TRIAL, add_experiment, add_json, chosen_trial, experiment_folder
from trainkit.client import Answer, Experiment
from trainkit.errors import ConfigError


class Steer(Command):
    """Base class of commands that send a request to a running experiment and print its answer."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_experiment(parser)
        self.add_own(parser)
        add_json(parser)

    def add_own(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments."""
        raise NotImplementedError(f"{type(self).__name__} must define add_own()")

    def tell(self, experiment: Experiment, arguments: argparse.Namespace) -> Answer:
        """Send the command to the experiment, and return the experiment's answer."""
        raise NotImplementedError(f"{type(self).__name__} must define tell()")

    def run(self, arguments: argparse.Namespace) -> int:
        answer = self.tell(Experiment(experiment_folder(arguments.experiment)), arguments)
        sys.stdout.write(f"{answer.as_json() if arguments.json else answer.outcome}\n")
        return 0


class Pause(Steer):
    """`trainkit pause`."""

    help = HELP["pause"]

    def add_own(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trial", metavar="TRIAL", nargs="?", help=f"only this trial: {TRIAL}")

    def tell(self, experiment: Experiment, arguments: argparse.Namespace) -> Answer:
        return experiment.pause(chosen_trial(experiment.folder, arguments.trial))


class Resume(Pause):
    """`trainkit resume`."""

    help = HELP["resume"]

    def tell(self, experiment: Experiment, arguments: argparse.Namespace) -> Answer:
        return experiment.resume(chosen_trial(experiment.folder, arguments.trial))


class First(Steer):
    """`trainkit first`."""

    help = HELP["first"]

    def add_own(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trial", metavar="TRIAL", help=TRIAL)

    def tell(self, experiment: Experiment, arguments: argparse.Namespace) -> Answer:
        return experiment.prioritise(chosen_trial(experiment.folder, arguments.trial) or "")


class Add(Steer):
    """`trainkit add`."""

    help = HELP["add"]

    def add_own(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "values",
            metavar="NAME=VALUE",
            nargs="+",
            help="hyperparameters, such as lr=0.1 or net/width=8, as JSON or text; or one JSON object",
        )

    def tell(self, experiment: Experiment, arguments: argparse.Namespace) -> Answer:
        return experiment.add(configuration(arguments.values))


def configuration(words: Sequence[str]) -> dict[str, Any]:
    """Return the configuration from words such as `lr=0.1 act=relu`, or from one JSON object.

    Raises:
        ConfigError: the words have neither form.
    """
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return dict(json.loads(words[0]))
        except ValueError as error:
            raise ConfigError(f"{words[0]} is not a JSON object: {error}") from None
    found = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not name or not sign:
            raise ConfigError(f"{word!r} must have the form NAME=VALUE, such as lr=0.1")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


class Set(Steer):
    """`trainkit set`."""

    help = HELP["set"]

    def add_own(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--num-samples", type=int, metavar="N", help="samples in total; -1: unlimited")
        parser.add_argument(
            "--time-budget-s",
            type=float,
            metavar="S",
            help="seconds since the start of this run; -1: unlimited",
        )
        parser.add_argument(
            "--max-concurrent-trials",
            type=int,
            metavar="N",
            help="number of trials at once; 0: as many as fit",
        )

    def tell(self, experiment: Experiment, arguments: argparse.Namespace) -> Answer:
        return experiment.set(
            num_samples=arguments.num_samples,
            time_budget_s=arguments.time_budget_s,
            max_concurrent_trials=arguments.max_concurrent_trials,
        )
