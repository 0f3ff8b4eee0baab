"""Command line: experiments (`ls show tail why stop clean dashboard`) and sessions (`status why stop`)."""

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
        "list-experiments": "trainkit.cli.show:ListExperiments",
        "lsx": "trainkit.cli.show:ListExperiments",
        "show": "trainkit.cli.show:Show",
        "list-trials": "trainkit.cli.show:Show",
        "status": "trainkit.cli.sessions:Status",
        "stop": "trainkit.cli.stop:Stop",
        "tail": "trainkit.cli.tail:Tail",
        "why": "trainkit.cli.why:Why",
    },
)
"""One row for each name of a command; other packages add commands by entry points."""


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
