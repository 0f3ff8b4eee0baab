"""Commands for experiments (`ls show tail ...`), sessions (`status why stop`) and scripts (`run`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import ClassVar

from trainkit.registry import Registry, added

COMMANDS = Registry(
    "command",
    {
        "add": "trainkit.cli.steer:Add",
        "clean": "trainkit.cli.clean:Clean",
        "first": "trainkit.cli.steer:First",
        "ls": "trainkit.cli.show:ListExperiments",
        "list-experiments": "trainkit.cli.show:ListExperiments",
        "lsx": "trainkit.cli.show:ListExperiments",
        "pause": "trainkit.cli.steer:Pause",
        "resume": "trainkit.cli.steer:Resume",
        "set": "trainkit.cli.steer:Set",
        "show": "trainkit.cli.show:Show",
        "list-trials": "trainkit.cli.show:Show",
        "status": "trainkit.cli.sessions:Status",
        "stop": "trainkit.cli.stop:Stop",
        "tail": "trainkit.cli.tail:Tail",
        "why": "trainkit.cli.why:Why",
    },
    base="trainkit.cli:Command",
)
"""Commands by name; other packages add commands by entry points."""

HELP = {
    "add": "make a running experiment try a configuration next",
    "clean": "remove the checkpoints of trials that have ended",
    "first": "run a waiting trial before the others",
    "ls": "list the experiments in a folder",
    "pause": "pause a running experiment, or one of its trials, until it is resumed",
    "resume": "resume a paused experiment or trial",
    "set": "change a running experiment's number of trials, trials at once, and time budget",
    "show": "show an experiment's trials",
    "status": "show what runs and waits in your sessions, and the resources in use",
    "stop": "stop a trial or an experiment; or end whole sessions, after a confirmation",
    "tail": "print the reports of trials as they arrive",
    "why": "explain why a trial was stopped, why something waits, or how it ended",
} | {name: entry.help for name, entry in added(COMMANDS.group).items()}
"""Help lines of trainkit's own commands.

They are kept in this table so that a list of commands needs no imports.
"""
ALIASES = {"ls": ("list-experiments", "lsx"), "show": ("list-trials",)}
"""Further names of trainkit's own commands."""


class Command:
    """Base class of the commands of `trainkit`; each run of a command creates a new object.

    Attributes:
        help: help line in the list of commands.
        aliases: further names of the command; each name must also be a key of COMMANDS.
    """

    help: ClassVar[str] = ""
    aliases: ClassVar[Sequence[str]] = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments; by default a command has no arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit code, 0 or 1.

        Raises:
            TrainkitError: the command failed; the error is printed as one line, and the exit code is 1.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run()")


def confirmed(question: str) -> bool:
    """Ask the user a question; return True only for the answer "y" or "yes"."""
    sys.stdout.write(question)
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
