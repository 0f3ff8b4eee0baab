"""Commands for experiments (`ls show tail ...`), sessions (`status why stop`) and scripts (`run`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import ClassVar

from trainkit.registry import Registry

COMMANDS = Registry(
    "command",
    {
        "clean": "trainkit.cli.clean:Clean",
        "dashboard": "trainkit.cli.dashboard:ServeDashboard",
        "ls": "trainkit.cli.show:ListExperiments",
        "run": "trainkit.cli.run:Run",
        "list-experiments": "trainkit.cli.show:ListExperiments",
        "lsx": "trainkit.cli.show:ListExperiments",
        "show": "trainkit.cli.show:Show",
        "list-trials": "trainkit.cli.show:Show",
        "status": "trainkit.cli.sessions:Status",
        "stop": "trainkit.cli.stop:Stop",
        "tail": "trainkit.cli.tail:Tail",
        "why": "trainkit.cli.why:Why",
    },
    base="trainkit.cli:Command",
)
"""One row for each name of a command; other packages add commands by entry points."""

HELP = {
    "clean": "remove the checkpoints of trials that have ended",
    "dashboard": "look at experiments in a browser, and stop trials",
    "ls": "the experiments in a folder",
    "run": "run a script on several ranks, as torchrun and accelerate launch do",
    "show": "an experiment's trials",
    "status": "what runs in your sessions, what it holds, and what waits",
    "stop": "stop a trial or an experiment; or end sessions with all that runs in them, which it asks about",
    "tail": "what trials report, as it comes",
    "why": "why a trial was stopped, or something waits, or how it ended",
}
"""Lines of our own commands in the list of all, for which none is loaded."""
ALIASES = {"ls": ("list-experiments", "lsx"), "show": ("list-trials",)}
"""Further names of our own commands."""


class Command:
    """Base class of the commands of `trainkit`; a new object runs each time.

    Attributes:
        help: line in the list of commands.
        aliases: further names, which have rows of their own in COMMANDS.
    """

    help: ClassVar[str] = ""
    aliases: ClassVar[Sequence[str]] = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments; by default there are none."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit code, 0 or 1.

        Raises:
            TrainkitError: printed as one line, with exit code 1.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run()")


def confirmed(question: str) -> bool:
    """Ask the user; any answer but yes means no."""
    sys.stdout.write(question)
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
