"""`trainkit dashboard`: pages on experiments, served until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainkit.cli import HELP, Command
from trainkit.cli.experiments import folder_of_experiments
from trainkit.dashboard.server import Dashboard


class ServeDashboard(Command):
    """`trainkit dashboard`."""

    help = HELP["dashboard"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", metavar="DIR", nargs="?", help="of experiments; or one experiment")
        parser.add_argument("--port", type=int, default=0, help="to listen at (default: one that is free)")

    def run(self, arguments: argparse.Namespace) -> int:
        root: Path = folder_of_experiments(arguments.folder)
        with Dashboard(root, arguments.port) as server:
            sys.stdout.write(f"Experiments in {root}: open {server.address}\nCtrl-C ends this.\n")
            sys.stdout.flush()
            try:
                server.serve_forever(poll_interval=0.2)
            except KeyboardInterrupt:
                sys.stdout.write("\n")
        return 0
